"""FedBN: normalisation layers stay with the clients, for batch normalisation in nnx and linen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from small_problems import KEY, assert_close, compiled

import fedjax_sim as fs
from fedjax_sim.compression import random_k, top_k, zeros
from fedjax_sim.engine.evaluation import personal_evaluator
from fedjax_sim.models import from_linen, from_nnx
from fedjax_sim.objectives import squared_error
from fedjax_sim.tree.leaves import normalisation, split

pytestmark = pytest.mark.usefixtures("x64")

SCALES = np.array([1.0, 30.0])  # of the clients' features: the shift that FedBN is for


class Net(nnx.Module):
    def __init__(self, rngs):
        self.bn = nnx.BatchNorm(3, momentum=0.5, rngs=rngs)
        self.dense = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.bn(x))


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        return linen.Dense(1)(x)


MODELS = {
    "nnx": lambda: from_nnx(Net),
    "linen": lambda: from_linen(LinenNet(), jax.ShapeDtypeStruct((1, 3), jnp.float64)),
}


def data():
    rng = np.random.default_rng(0)
    clients = []
    for scale in SCALES:
        x = rng.normal(size=(8, 3))
        clients.append({"x": scale * x + scale, "y": x @ np.ones((3, 1))})
    return fs.from_clients(clients)


def final(model, algorithm, rounds=3, eval_fn=None):
    task = fs.empirical_task(squared_error(model), data(), fs.full_batch(2))
    params = jax.tree.map(lambda x: x.astype(jnp.float64), model.init(jax.random.key(0)))
    timeline = fs.timelines.full(rounds, 2, task.num_steps)
    go = compiled(lambda setup: fs.run(algorithm, setup, KEY))
    return params, *go(fs.Setup(task, timeline, params, eval_fn, eval_every=rounds))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_scales_biases_and_statistics_stay_with_the_clients(name):
    """By hand: momentum 1/2 and full batches, so statistics s <- (s + m) / 2, six times."""
    model = MODELS[name]()
    algorithm = fs.running_statistics(fs.fedbn(0.05), model.statistics, combine="private")
    params, state, _ = final(model, algorithm)
    layer = ("bn",) if name == "nnx" else ("batch_stats", "BatchNorm_0")
    kept, scales = state.clients.personal, state.clients.inner.personal
    for key in layer:
        kept = kept[key]
    for i in range(2):
        x = data().client(i)["x"]
        weight = 0.5**6
        assert_close(kept["mean"][i], (1 - weight) * x.mean(0), 1e-12)
        assert_close(kept["var"][i], weight + (1 - weight) * x.var(0), 1e-12)
    parts = jax.tree.leaves(scales)
    assert [leaf.shape for leaf in parts] == [(2, 3), (2, 3)]  # scale and bias per client
    assert all(np.abs(leaf[0] - leaf[1]).max() > 1e-4 for leaf in parts)
    # The server has the initial normalisation and trained kernels.
    own, rest = split(params, normalisation)
    now, trained = split(state.server.params, normalisation)
    jax.tree.map(np.testing.assert_array_equal, now, own)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), rest, trained)
    assert min(jax.tree.leaves(moved)) > 1e-4


@pytest.mark.slow
def test_private_statistics_evaluate_shifted_clients():
    """The claim: with features of other scales one normalisation fits no client.

    Personal models of FedBN; averaged statistics with the server's model.
    """
    model = MODELS["nnx"]()

    def metrics(params, examples):
        return {"error": ((model.apply(params, examples["x"]) - examples["y"]) ** 2).sum(1)}

    evaluate = personal_evaluator(metrics, data())
    private = fs.running_statistics(fs.fedbn(0.05), model.statistics, "private")
    averaged = fs.running_statistics(fs.fedavg(0.05), model.statistics)
    errors = [
        float(final(model, algorithm, 60, evaluate)[2].metrics["error/max"][-1])
        for algorithm in (private, averaged)
    ]
    assert errors[0] < 0.01
    assert errors[1] > 1


def test_model_without_normalisation_is_refused():
    with pytest.raises(ValueError, match="params has the layers dense1, dense2; expected a norm"):
        fs.fedbn(0.1).init(fs.models.mlp(4, (3,), 2).init(jax.random.key(0)))


@pytest.mark.parametrize(
    ("wrap", "also_kept"),
    [
        (lambda a: fs.private(a, normalisation, 0.1), True),
        (lambda a: fs.fine_tuned(a, 0.1, steps=1), True),
        (lambda a: fs.transforms.transform_oracle(a, lambda oracle: oracle), True),
        (lambda a: fs.compressed(a, top_k(1), near=zeros), False),
        (lambda a: fs.ef14(a, top_k(1)), False),
        (lambda a: fs.ef21(a, top_k(1)), False),
        (lambda a: fs.ef21_p(a, top_k(1)), False),
        (lambda a: fs.diana(a, random_k(1), 0.5), False),
        (lambda a: fs.marina(a, random_k(1), 0.5), False),
        (lambda a: fs.pp_marina(a, random_k(1)), False),
    ],
)
def test_statistics_are_wrapped_last(wrap, also_kept):
    """Statistics that clients keep are in no messages, so codecs do not see them."""
    kept = fs.running_statistics(fs.fedavg(0.1), normalisation, "private")
    if not also_kept:
        wrap(kept)
    for algorithm in [fs.running_statistics(fs.fedavg(0.1), normalisation), *[kept] * also_kept]:
        with pytest.raises(ValueError, match="apply running_statistics last"):
            wrap(algorithm)
