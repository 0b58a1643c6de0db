"""Models as options: adapters, initial models, running statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_problems import compiled

import fedjax_sim as fs
from fedjax_sim.models import Model, mlp
from fedjax_sim.studies.setups.build import resolve
from fedjax_sim.studies.setups.model import (
    FfaLora,
    Lora,
    NoAdapters,
    adapted,
    initial_params,
    on_adapters,
)
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.study import Study
from fedjax_sim.wrappers.received import upload_shapes


@pytest.fixture
def net() -> Model:
    shapes = {"query": (6, 64), "value": (6, 64), "head": (10, 6)}
    return Model(
        lambda key: {name: {"kernel": jnp.ones(shape)} for name, shape in shapes.items()},
        lambda params, x: x,
    )


@pytest.mark.parametrize(("adapters", "trained"), [(Lora(2), 2 * (12 + 128)), (FfaLora(2), 2 * 12)])
def test_uploads_are_adapters(net, adapters, trained):
    params = jax.eval_shape(adapted(net, adapters).init, jax.random.key(0))
    upload = upload_shapes(on_adapters(fs.fedavg(0.1), adapters), params)
    assert sum(leaf.size for leaf in jax.tree.leaves(upload)) == trained
    assert adapted(net, NoAdapters()) is net


@pytest.mark.slow
def test_all_seeds_start_from_the_file_and_have_adapters_of_their_own(net, tmp_path):
    kernels = {"query": np.ones((6, 64)), "value": np.zeros((6, 64)), "head": np.ones((10, 6))}
    path = tmp_path / "model.npz"
    np.savez(path, allow_pickle=False, **{f"{k}/kernel": v for k, v in kernels.items()})
    keys = jax.random.split(jax.random.key(0), 2)
    params = initial_params(path, Lora(1), adapted(net, Lora(1)), keys)
    for name, kernel in kernels.items():
        np.testing.assert_array_equal(params["base"][name]["kernel"], np.stack([kernel, kernel]))
        assert params["base"][name]["kernel"].dtype == jnp.float32
    a = params["adapters"]["query"]["kernel"]["a"]
    assert (a[0] != a[1]).any()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"head/kernel is missing; expected \(10, 6\)"),
        ({"head/kernel": np.ones((3, 6))}, r"head/kernel is of shape \(3, 6\); expected \(10"),
        ({"head/kernel": np.full((10, 6), "a")}, "head/kernel has dtype <U1; expected a floating"),
        ({"head/kernel": np.ones((10, 6), np.int8)}, "head/kernel has dtype int8; expected a fl"),
        ({"head/kernel": np.ones((10, 6), complex)}, "head/kernel has dtype complex128; expected"),
        ({"head/kernel": np.full((10, 6), np.nan)}, "head/kernel has nan; expected finite numbers"),
        ({"head/kernel": np.full((10, 6), 1e300)}, r"has 1e\+300; expected finite .* of float32"),
        (
            {"head/kernel": np.ones((10, 6)), "body/kernel": np.ones(2), "norm": np.ones(1)},
            "which has body/kernel, norm besides the arrays of the model; expected a file of the",
        ),
        (None, "cannot be read .*; expected a file that fedjax-sim export wrote"),
    ],
)
def test_files_of_other_models_are_refused(arrays, message, tmp_path):
    net = Model(lambda key: {"head": {"kernel": jnp.zeros((10, 6))}}, lambda params, x: x)
    path = tmp_path / "model.npz"
    if arrays is not None:
        np.savez(path, allow_pickle=False, **arrays)
    keys = jax.random.split(jax.random.key(0), 1)
    with pytest.raises(ValueError, match=f"initial_model is '.*model.npz'.*({message})"):
        initial_params(path, NoAdapters(), net, keys)


def test_models_without_attention_are_refused():
    with pytest.raises(ValueError, match="adapters is 'lora'; expected a model with kernels of"):
        adapted(mlp(3, (4,), 2), Lora(2))


def normalised(rngs):
    def flat(x):
        return x.reshape(-1, 64)

    layers = nnx.BatchNorm(64, momentum=0.5, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
    return nnx.Sequential(flat, *layers, nnx.Linear(64, 10, rngs=rngs))


def study(**values) -> Study:
    small = {"num_clients": 20, "local_steps": 3, "seeds": 1, "rounds": 2}
    return Study(options(**small | values), model=fs.models.from_nnx(normalised))


@pytest.mark.slow
@pytest.mark.parametrize("statistics", ["averaged", "private", "frozen"])
def test_own_model_with_batch_normalisation_and_dropout(statistics):
    run = resolve(study(algorithms=("fedadam",), statistics=statistics))
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
    names = ("fedavg", "fedbn")
    run = resolve(study(algorithms=names, num_clients=4, cohort_size=4))
    states, personal = {}, {}
    for name in names:
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
@pytest.mark.filterwarnings("ignore:setup.eval_fn evaluates the server")  # states on the host
@pytest.mark.parametrize(
    ("algorithm", "values", "evaluated"),
    [
        ("fedbn", {}, True),
        ("fedbn", {"statistics": "frozen"}, False),
        ("fedavg", {}, False),
        ("fedavg", {"statistics": "private"}, True),
        ("fedbn", {"examples_memory": 1.0, "states": "host"}, False),
        ("fedbn", {"examples_memory": 1.0}, True),
    ],
)
def test_personal_models_are_evaluated_where_clients_keep_statistics(algorithm, values, evaluated):
    names = resolve(study(algorithms=(algorithm,), **values)).setups[algorithm].eval_fn.func.names
    assert names == ("test", "train") + ("personal",) * evaluated
