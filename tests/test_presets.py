"""Presets as setups."""

import jax
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.studies.setups import resolve

SMALL = {"seeds": 2, "rounds": 3, "model": "softmax_regression"}


@pytest.mark.slow
def test_a_preset_is_the_setup_of_the_command_line():
    setup = fs.presets.quickstart(**SMALL)
    run = resolve(fs.Study(fs.presets.options(**SMALL)))  # type: ignore[arg-type]
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
