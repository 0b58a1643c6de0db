"""The examples of docs/models_with_state.md run, in order, and learn."""

import pathlib
import re

import jax
import numpy as np
import pandas as pd
import pytest

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "models_with_state.md"


@pytest.mark.slow
def test_examples_of_the_page():
    names: dict = {}
    with jax.numpy_dtype_promotion("standard"):
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compile(block, PAGE.name, "exec"), names)
    assert names["accuracy"] > 0.9
    assert names["mean_accuracy"] > 0.9
    assert names["personal_accuracy"] > 0.9
    initial = names["setup"].params
    frozen, head = (names[key].server.params for key in ("frozen_state", "head_state"))
    np.testing.assert_array_equal(frozen["norm"]["var"], initial["norm"]["var"])
    np.testing.assert_array_equal(head["body"]["kernel"], initial["body"]["kernel"])
    assert np.abs(head["norm"]["mean"]).max() > 0
    assert names["token_history"].metrics["accuracy"][-1] == 1


def test_accuracies_by_momentum_are_those_of_the_results():
    folder = PAGE.parents[1] / "experiments" / "results" / "pictures"
    results = pd.read_csv(folder / "batch_norm.csv")
    text = PAGE.read_text()
    for momentum in (0.9, 0.99):
        (cells,) = re.findall(rf"^\| {momentum} \| (.*) \|$", text, re.MULTILINE)
        for rounds, cell in zip((10, 30, 100, 300), cells.split(" | "), strict=True):
            rows = (results["momentum"] == momentum) & (results["round"] == rounds)
            values = results[rows].sort_values("seed")["value"]
            assert cell == ", ".join(f"{value:.3f}" for value in values)
    assert f"{0.99**30:.0%} of the start is left with 0.99".replace("%", " %") in " ".join(
        text.split()
    )
