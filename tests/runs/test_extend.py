"""More rounds in the same folder continue the run."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import records
from sweep_problems import quadratic_trial

import fedjax_sim as fs

TRIAL = quadratic_trial(num_seeds=1, num_rounds=12).setup


def go(directory, rounds, *, eval_every=2, seed=0, **options):
    timeline = TRIAL.timeline
    if seed:
        timeline = dataclasses.replace(timeline, num_steps=np.asarray(timeline.num_steps) - 1)
    setup = fs.Setup(
        TRIAL.task, timeline[:rounds], TRIAL.params[0], TRIAL.eval_fn, eval_every=eval_every
    )
    return fs.simulate(
        fs.scaffold(0.1), setup, jax.random.key(1), **records(folder=directory, **options)
    )


@pytest.mark.slow
def test_more_rounds_continue_the_run(tmp_path):
    whole = go(tmp_path / "whole", 12)
    go(tmp_path / "parts", 4)
    go(tmp_path / "parts", 8)
    last = go(tmp_path / "parts", 12)
    assert last.history is not None
    assert last.history.round.tolist() == [10, 12]
    jax.tree.map(np.testing.assert_array_equal, last.state, whole.state)
    histories = [(tmp_path / name / "history.csv").read_bytes() for name in ("parts", "whole")]
    assert histories[0] == histories[1]
    with pytest.raises(ValueError, match="another run: rounds, timeline differ"):
        go(tmp_path / "parts", 8)


@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False])
def test_an_evaluation_of_the_initial_model_counts(tmp_path, first):
    go(tmp_path, 4, eval_initial=first)
    for rounds in (4, 8):
        with pytest.raises(ValueError, match="another run: eval_initial"):
            go(tmp_path, rounds, eval_initial=not first)
    assert json.loads((tmp_path / "run.json").read_text())["eval_initial"] == first
    assert go(tmp_path, 8, eval_initial=first).history.round.tolist() == [6, 8]


@pytest.mark.slow
def test_other_rounds_are_refused(tmp_path):
    go(tmp_path, 5)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(ValueError, match="rounds is 12, and the directory has 5 rounds with an"):
        go(tmp_path, 12)
    with pytest.raises(ValueError, match="rounds, timeline differ"):
        go(tmp_path, 12, seed=1)
    with pytest.raises(ValueError, match="eval_every, rounds, timeline differ"):
        go(tmp_path, 12, eval_every=5)
    assert (tmp_path / "run.json").read_bytes() == before
    assert json.loads(before)["rounds"] == 5
    assert go(tmp_path, 5).history is None
    assert jnp.isfinite(go(tmp_path, 5).state.server.params).all()
