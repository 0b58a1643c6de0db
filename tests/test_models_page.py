"""The examples of docs/models_with_state.md run, in order, and learn."""

import pathlib
import re

import jax
import numpy as np
import pytest

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "models_with_state.md"


@pytest.mark.slow
def test_examples_of_the_page():
    names: dict = {}
    with jax.numpy_dtype_promotion("standard"):
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compile(block, PAGE.name, "exec"), names)
    assert names["accuracy"] > 0.9
    assert names["personal_accuracy"] > 0.9
    initial = names["setup"].params
    frozen, head = (names[key].server.params for key in ("frozen_state", "head_state"))
    np.testing.assert_array_equal(frozen["norm"]["var"], initial["norm"]["var"])
    np.testing.assert_array_equal(head["body"]["kernel"], initial["body"]["kernel"])
    assert np.abs(head["norm"]["mean"]).max() > 0
    assert names["token_history"].metrics["accuracy"][-1] == 1
