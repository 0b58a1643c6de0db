"""States of a run, read from its folder or computed again: the same bits."""

import dataclasses

import jax
import numpy as np
import pytest
from test_fork import AT, KEYS, begun, scaffold, setup

import fedjax_sim as fs
from fedjax_sim.runs import FolderError
from fedjax_sim.studies.forks.stored import state_at


@pytest.mark.slow
def test_stored_and_computed_states_are_equal(tmp_path):
    begin = dataclasses.replace(setup(), timeline=setup().timeline[:AT])
    fs.simulate(scaffold(), begin, KEYS, storage=tmp_path)
    stores = [None, fs.Storage(tmp_path), fs.Storage(tmp_path / "other")]
    states = [state_at(scaffold(), setup(), KEYS, AT, storage=store) for store in stores]
    for state in states:
        jax.tree.map(np.testing.assert_array_equal, state, begun().state)


@pytest.mark.slow
def test_states_of_another_run_are_refused(tmp_path):
    """Stored or not: data or an algorithm may have changed since the folder was written."""
    begin = dataclasses.replace(setup(), timeline=setup().timeline[:AT])
    fs.simulate(scaffold(), begin, KEYS, storage=tmp_path)
    moved = dataclasses.replace(setup(), params=np.ones(len(KEYS), np.float32))
    for done in (AT, AT - 1):
        with pytest.raises(FolderError, match="holds another run: params, rounds, timeline"):
            state_at(scaffold(), moved, KEYS, done, storage=fs.Storage(tmp_path))
    with pytest.raises(FolderError, match="what the algorithm computes has changed"):
        state_at(fs.scaffold(0.2), setup(), KEYS, AT, storage=fs.Storage(tmp_path))


@pytest.mark.slow
def test_a_checkpoint_from_before_an_accepted_change_is_one_of_the_run(tmp_path):
    """The newest two checkpoints may be of before and after the change."""

    def at(round):
        return dataclasses.replace(setup(), timeline=setup().timeline[:round])

    fs.simulate(scaffold(), at(2), KEYS, storage=tmp_path)
    other = dataclasses.replace(setup(), weighting=lambda work: 1.0 * setup().weighting(work))
    storage = fs.Storage(tmp_path, accept_changed_code=True)
    begin = dataclasses.replace(other, timeline=setup().timeline[:AT])
    result = fs.simulate(scaffold(), begin, KEYS, storage=storage)
    for done in (2, AT):
        assert (tmp_path / "checkpoints" / str(done)).is_dir()
    state = state_at(scaffold(), other, KEYS, AT, storage=fs.Storage(tmp_path))
    jax.tree.map(np.testing.assert_array_equal, state, result.state)


def test_refuses_rounds_of_no_fork():
    with pytest.raises(ValueError, match=r"round is 6; expected 1 \.\. 5, before the last round"):
        state_at(scaffold(), setup(), KEYS, 6)
    with pytest.raises(ValueError, match=r"round is 2\.5; expected an integer"):
        state_at(scaffold(), setup(), KEYS, 2.5)  # type: ignore[arg-type]
