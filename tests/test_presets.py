"""Presets as setups, and the page about the user's own objects."""

import pathlib
import re

import jax
import numpy as np
import pytest
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.references import __doc__ as CONTRACTS

import fedjax_sim as fs
from fedjax_sim.cli.options import split_arguments
from fedjax_sim.studies.setups.build import resolve

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "your_own.md"
SMALL = {"seeds": 2, "rounds": 3, "model": "softmax_regression"}


@pytest.mark.slow
def test_a_preset_is_the_setup_of_the_command_line():
    setup = fs.presets.quickstart(**SMALL)
    run = resolve(RunConfig(**SMALL))  # type: ignore[arg-type]
    ours, theirs = (jax.tree.leaves((x.task, x.timeline, x.params)) for x in
                    (setup, run.setups["fedavg"]))  # fmt: skip
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        *(jax.random.key_data(keys) for keys in (fs.presets.keys(2), run.problem.keys))
    )


@pytest.mark.slow
def test_a_preset_for_one_seed_has_no_axis_of_seeds():
    options = {**SMALL, "seeds": None, "seed": 1}
    alone, both = fs.presets.quickstart(**options), fs.presets.quickstart(**SMALL)
    np.testing.assert_array_equal(alone.timeline.clients, both.timeline.clients[1])
    for one, several in zip(
        jax.tree.leaves(alone.params), jax.tree.leaves(both.params), strict=True
    ):
        np.testing.assert_array_equal(one, several[1])


@pytest.mark.slow
def test_examples_of_the_page():
    text = PAGE.read_text()
    names: dict = {}
    with jax.numpy_dtype_promotion("standard"):
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
            exec(compile(block, PAGE.name, "exec"), names)
    assert len(names["final"]) == 2
    assert len(names["result"].simulations["FedAvg"]) == 2


def test_the_page_has_the_contracts_of_the_code():
    text = PAGE.read_text()
    for option in (
        "algorithms",
        "model",
        "dataset",
        "partition",
        "loss",
        "metrics",
        "sampling",
        "timeline",
    ):
        assert f"`--{option}`" in text
        assert f"--{option}" in CONTRACTS
        assert option in RunConfig.__dataclass_fields__
    for command in re.findall(r"^fedjax-sim (?:run|sweep) (.*)$", text, re.MULTILINE):
        _, options = split_arguments(command.split())
        for option in (word[2:].replace("-", "_") for word in options if word.startswith("--")):
            assert option in RunConfig.__dataclass_fields__ or option in ("grid", "metric")
