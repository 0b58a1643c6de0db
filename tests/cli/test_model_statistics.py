"""``--statistics`` for the user's models with batch normalisation."""

import jax
import numpy as np
import pytest
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim.cli.build import resolve
from fedjax_sim.cli.config import RunConfig

MODULE = """
from flax import nnx

def net(num_classes, rngs):
    flat = lambda x: x.reshape(-1, 64)
    layers = nnx.BatchNorm(64, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
    return nnx.Sequential(flat, *layers, nnx.Linear(64, num_classes, rngs=rngs))
"""


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["averaged", "private", "frozen"])
def test_own_model_with_batch_normalisation_and_dropout(statistics, tmp_path, monkeypatch):
    (tmp_path / "own_normalised.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    config = RunConfig(
        model="own_normalised:net",
        algorithms=("fedadam",),
        statistics=statistics,
        num_clients=20,
        local_steps=3,
        seeds=1,
        rounds=2,
    )
    run = resolve(config)
    setup, key = run.setups["fedadam"], run.problem.keys[0]
    setup = jax.tree.map(lambda x: x[0], (setup.params, setup.timeline)), setup.task

    @compiled
    def go(setup):
        (params, timeline), task = setup
        return fs.run(run.algorithm("fedadam"), fs.Setup(task, timeline, params), key)[0]

    state = go(setup)
    mean = np.asarray(state.server.params["layers"]["1"]["mean"])
    assert (np.abs(mean).max() > 0) == (statistics == "averaged")
    assert np.isfinite(state.server.params["layers"]["3"]["kernel"]).all()
    if statistics == "private":
        kept = np.asarray(state.clients.personal["layers"]["1"]["mean"])
        visited = np.unique(setup[0][1].clients)
        assert set(np.nonzero(np.abs(kept).max(axis=1))[0]) == set(visited)
