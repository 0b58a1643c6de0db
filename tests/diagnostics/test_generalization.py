"""The gap between test and train metrics against means in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim.diagnostics.generalization import generalization_gap, metric
from fedjax_sim.engine.evaluation import evaluator

RNG = np.random.default_rng(0)
TRAIN, TEST = (RNG.normal(size=(n, 3)).astype(np.float32) for n in (23, 11))


def metrics(params, examples):
    out = examples["x"] @ params
    return {"loss": out**2, "positive": (out > 0).astype(out.dtype)}


def test_metrics_of_both_sets_and_their_gap():
    w = np.array([0.5, -1.0, 2.0], np.float32)
    evaluate = generalization_gap(metrics, {"x": TRAIN}, {"x": TEST}, batch_size=4)
    result = jax.jit(lambda evaluate, w: evaluate(w))(evaluate, jnp.asarray(w))
    for name, value in {"loss": np.square, "positive": lambda out: out > 0}.items():
        train, test = (value(x.astype(np.float64) @ w).mean() for x in (TRAIN, TEST))
        # Means of float32 squares near 5.
        np.testing.assert_allclose(result[f"train/{name}"], train, rtol=1e-5)
        np.testing.assert_allclose(result[f"test/{name}"], test, rtol=1e-5)
        np.testing.assert_allclose(result[f"gap/{name}"], test - train, atol=1e-5)
    assert len(result) == 6


@pytest.mark.slow
def test_as_the_evaluation_of_a_run():
    data = fs.FederatedData({"x": TRAIN}, np.array([0, 10, 23]))
    evaluate = generalization_gap(metrics, data.examples, {"x": TEST})
    task = fs.empirical_task(lambda w, batch, key: (batch["x"] @ w - 1) ** 2, data, fs.epochs(1, 5))
    timeline = fs.timelines.full(4, 2, task.num_steps)

    @jax.jit
    def run(task, evaluate):
        setup = fs.Setup(task, timeline, jnp.zeros(3), eval_fn=evaluate, eval_every=2)
        return fs.run(fs.fedavg(0.05), setup, jax.random.key(0))

    state, history = run(task, evaluate)
    assert history.metrics["gap/loss"].shape == (2,)
    last = evaluate(state.server.params)["gap/loss"]
    np.testing.assert_allclose(history.metrics["gap/loss"][-1], last, rtol=1e-4, atol=1e-6)
    assert last != 0


def test_one_metric_as_a_loss():
    evaluate = evaluator(metrics, {"x": TRAIN}, 5)
    loss = metric(evaluate, "loss")
    assert [leaf.shape for leaf in jax.tree.leaves(loss)] == [(23, 3)]  # carries its data
    gradient = jax.grad(loss)(jnp.ones(3))
    expected = 2 * TRAIN.T @ TRAIN.sum(1) / 23
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)  # float32 sums of 23
    with pytest.raises(ValueError, match=r"name is 'accuracy'; expected one of \['loss', 'pos"):
        metric(evaluate, "accuracy")(jnp.ones(3))
