"""Streamed evaluation against NumPy over all examples at once."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_sim.data.federated import FederatedData
from fedjax_sim.evaluation import client_evaluator, evaluator, merge_evaluators

RNG = np.random.default_rng(0)
X = RNG.standard_normal((23, 3)).astype(np.float32)
Y = RNG.standard_normal(23).astype(np.float32)
W = RNG.standard_normal(3).astype(np.float32)
OFFSETS = np.array([0, 0, 5, 6, 6, 18, 23, 23])  # clients of 0, 5, 1, 0, 12, 5 and 0 examples
# Means of at most 23 float32 numbers near 1, in another order.
TOLERANCE = 1e-5


def metrics(params, examples):
    error = examples["x"] @ params - examples["y"]
    return {"loss": error**2, "small": (jnp.abs(error) < 1).astype(error.dtype)}


def expected_values(w=W):
    error = X.astype(np.float64) @ w - Y
    return {"loss": error**2, "small": (np.abs(error) < 1).astype(np.float64)}


def expected_summary(values):
    means = np.array([values[a:b].mean() for a, b in itertools.pairwise(OFFSETS) if b > a])
    quantiles = {f"q{q}": np.quantile(means, q / 100) for q in (10, 50, 90)}
    return {"mean": means.mean(), "min": means.min(), "max": means.max(), **quantiles}


# Divisors of 23, non-divisors, one batch, and a batch larger than the data.
@pytest.mark.parametrize("batch_size", [1, 4, 23, 100])
def test_means_over_examples(batch_size):
    evaluate = evaluator(metrics, {"x": X, "y": Y}, batch_size)
    actual = jax.jit(lambda evaluate, w: evaluate(w))(evaluate, jnp.asarray(W))
    assert actual.keys() == {"loss", "small"}
    for name, values in expected_values().items():
        np.testing.assert_allclose(actual[name], values.mean(), rtol=TOLERANCE)


@pytest.mark.parametrize("batch_size", [1, 4, 23, 100])
def test_summary_over_clients(batch_size):
    data = FederatedData({"x": X, "y": Y}, OFFSETS)
    evaluate = client_evaluator(metrics, data, batch_size)
    actual = jax.jit(lambda evaluate, w: evaluate(w))(evaluate, jnp.asarray(W))
    expected = {
        f"{name}/{statistic}": value
        for name, values in expected_values().items()
        for statistic, value in expected_summary(values).items()
    }
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=TOLERANCE, err_msg=name)


def test_quantile_names():
    data = FederatedData({"x": X, "y": Y}, OFFSETS)
    evaluate = client_evaluator(metrics, data, quantiles=(0.025, 1.0))
    result = evaluate(jnp.asarray(W))
    assert {"loss/q2.5", "loss/q100"} < result.keys()
    assert result["loss/q100"] == result["loss/max"]


def test_vmap_over_params():
    both = merge_evaluators(
        all=evaluator(metrics, {"x": X, "y": Y}, 4),
        client=client_evaluator(metrics, FederatedData({"x": X, "y": Y}, OFFSETS), 4),
    )
    params = jnp.asarray(np.stack([W, 2 * W, -W]))
    batched = jax.jit(lambda both, params: jax.vmap(both)(params))(both, params)
    for i, w in enumerate(params):
        for name, value in both(w).items():
            # The batched product may be summed in another order.
            np.testing.assert_allclose(batched[name][i], value, rtol=TOLERANCE, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [4, 100])
def test_gradient(x64, batch_size):
    x, y, w = X.astype(np.float64), Y.astype(np.float64), jnp.asarray(W, jnp.float64)
    evaluate = evaluator(metrics, {"x": x, "y": y}, batch_size)
    gradient = jax.grad(lambda w: evaluate(w)["loss"])(w)
    assert gradient.dtype == jnp.float64
    np.testing.assert_allclose(gradient, 2 / 23 * x.T @ (x @ W - y), rtol=1e-12)
    clients = client_evaluator(metrics, FederatedData({"x": x, "y": y}, OFFSETS), batch_size)
    gradient = jax.grad(lambda w: clients(w)["loss/mean"])(w)
    weights = np.concatenate([np.full(n, 1 / n / 4) for n in np.diff(OFFSETS) if n])
    np.testing.assert_allclose(gradient, 2 * x.T @ (weights * (x @ W - y)), rtol=1e-12)


def test_only_one_batch_of_activations_is_live():
    """Memory of the gradient does not grow with the number of examples."""

    def wide(params, examples):
        hidden = jnp.tanh(examples["x"][:, None] * params)  # [B, 1000]
        return {"loss": hidden.sum(axis=1)}

    def temporaries(length):
        evaluate = evaluator(wide, {"x": jnp.ones(length)}, batch_size=10)
        gradient = jax.grad(lambda params, evaluate: evaluate(params)["loss"])
        compiled = jax.jit(gradient).lower(jnp.ones(1000), evaluate).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    # 200 times the examples; kept activations would add 4 MB to the 40 KB of a batch.
    assert temporaries(2000) < temporaries(10) + 10**6


def test_data_are_arguments_of_the_compiled_program():
    evaluate = evaluator(metrics, {"x": X, "y": Y}, 4)
    shapes = {leaf.shape for leaf in jax.tree.leaves(evaluate)}
    assert shapes == {(23, 3), (23,)}


@pytest.mark.parametrize(
    "build",
    [
        lambda x: evaluator(metrics, {"x": x, "y": Y}, 4),
        lambda x: client_evaluator(metrics, FederatedData({"x": x, "y": Y}, OFFSETS), 4),
        lambda x: merge_evaluators(all=evaluator(metrics, {"x": x, "y": Y}, 4)),
    ],
)
def test_equal_evaluators_compile_once(build):
    chex.clear_trace_counter()
    evaluate = jax.jit(chex.assert_max_traces(lambda evaluate, w: evaluate(w), n=1))
    first = evaluate(build(X), jnp.asarray(W))
    second = evaluate(build(2 * X), jnp.asarray(W))
    assert all(first[name] != second[name] for name in first if "loss" in name)


def test_merged_names():
    evaluate = merge_evaluators(
        test=evaluator(metrics, {"x": X, "y": Y}), norm=lambda w: {"params": jnp.linalg.norm(w)}
    )
    result = evaluate(jnp.asarray(W))
    assert list(result) == ["test/loss", "test/small", "norm/params"]
    np.testing.assert_allclose(result["norm/params"], np.linalg.norm(W), rtol=TOLERANCE)


def test_errors():
    data = FederatedData({"x": X, "y": Y}, OFFSETS)
    with pytest.raises(ValueError, match=r"lengths \[22, 23\]"):
        evaluator(metrics, {"x": X, "y": Y[1:]})
    with pytest.raises(ValueError, match=r"lengths \[0\]; expected .* at least 1"):
        evaluator(metrics, {"x": X[:0], "y": Y[:0]})
    with pytest.raises(ValueError, match="batch_size is 0"):
        evaluator(metrics, {"x": X, "y": Y}, batch_size=0)
    with pytest.raises(ValueError, match="quantiles contains 10"):
        client_evaluator(metrics, data, quantiles=(10,))
    with pytest.raises(ValueError, match="evaluators is empty"):
        merge_evaluators()
    for wrong in (lambda values: values.mean(), lambda values: values > 0):
        evaluate = evaluator(
            lambda p, e, f=wrong: {"loss": f(metrics(p, e)["loss"])}, data.examples
        )
        with pytest.raises(ValueError, match=r"for 'loss'; expected floating values \[23\]"):
            evaluate(jnp.asarray(W))
