"""``--statistics`` for the user's models with batch normalisation."""

import jax
import numpy as np
import pytest
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim.studies.setups.build import resolve
from fedjax_sim.studies.setups.config import RunConfig

MODULE = """
from flax import nnx

def net(num_classes, rngs):
    flat = lambda x: x.reshape(-1, 64)
    layers = nnx.BatchNorm(64, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
    return nnx.Sequential(flat, *layers, nnx.Linear(64, num_classes, rngs=rngs))
"""


@pytest.fixture(autouse=True)
def own_model(tmp_path, monkeypatch):
    (tmp_path / "own_normalised.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["averaged", "private", "frozen"])
def test_own_model_with_batch_normalisation_and_dropout(statistics):
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


@pytest.mark.slow
def test_clients_of_fedbn_keep_statistics_beside_an_algorithm_that_averages_them():
    """Its personal models have the client's scales, biases and statistics."""
    config = RunConfig(
        model="own_normalised:net",
        algorithms=("fedavg", "fedbn"),
        num_clients=4,
        cohort_size=4,
        local_steps=3,
        seeds=1,
        rounds=2,
    )
    run = resolve(config)
    states, personal = {}, {}
    for name in config.algorithms:
        result = fs.simulate(run.algorithm(name), run.setups[name], run.problem.keys)
        states[name] = jax.tree.map(lambda x: np.asarray(x[0]), result.state)
        personal[name] = result.history.metrics["personal/accuracy/mean"][0, -1]
    mean = {name: s.server.params["layers"]["1"]["mean"] for name, s in states.items()}
    assert np.abs(mean["fedavg"]).max() > 0
    assert np.abs(mean["fedbn"]).max() == 0
    kept = states["fedbn"].clients.personal["layers"]["1"]["mean"]
    assert np.abs(kept).max(axis=1).min() > 0  # of every client
    assert personal["fedbn"] > personal["fedavg"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "statistics", "evaluated"),
    [("fedbn", "averaged", True), ("fedbn", "frozen", False), ("fedavg", "averaged", False)],
)
def test_personal_models_are_evaluated_where_clients_keep_statistics(
    algorithm, statistics, evaluated
):
    config = RunConfig(
        model="own_normalised:net", algorithms=(algorithm,), statistics=statistics, seeds=1
    )
    names = resolve(config).setups[algorithm].eval_fn.func.names
    assert names == ("test", "train") + ("personal",) * evaluated
