"""States of a run, read from its folder or computed again: the same bits."""

import dataclasses

import jax
import numpy as np
import pytest
from test_fork import AT, KEYS, begun, scaffold, setup

import fedjax_sim as fs
from fedjax_sim.studies.forks.stored import state_at


@pytest.mark.slow
def test_stored_and_computed_states_are_equal(tmp_path):
    begin = dataclasses.replace(setup(), timeline=setup().timeline[:AT])
    fs.simulate(scaffold(), begin, KEYS, storage=tmp_path)
    paths = [None, tmp_path, tmp_path / "other"]
    states = [state_at(scaffold(), setup(), KEYS, AT, directory=path) for path in paths]
    for state in states:
        jax.tree.map(np.testing.assert_array_equal, state, begun().state)


def test_refuses_rounds_of_no_fork():
    with pytest.raises(ValueError, match=r"round is 6; expected 1 \.\. 5, before the last round"):
        state_at(scaffold(), setup(), KEYS, 6)
