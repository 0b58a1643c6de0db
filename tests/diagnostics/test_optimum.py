"""Newton's method against closed forms, scipy, and losses without a minimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.tree_util import Partial

import fedjax_sim as fs
from fedjax_sim.diagnostics.optimum import mean_loss, optimum
from fedjax_sim.models import softmax_regression
from fedjax_sim.objectives import binary_cross_entropy, cross_entropy, with_l2


def least_squares(x, y, w):
    return jnp.mean((x @ w["w"] + w["b"] - y) ** 2) / 2


def logistic(x, y, l2, w):
    z = x @ w
    return jnp.mean(jnp.logaddexp(0.0, z) - y * z) + l2 / 2 * jnp.sum(w**2)


def logistic_data(seed, size=40, dim=5):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, dim)) * 3.0
    return x, (x @ rng.normal(size=dim) + 3 * rng.normal(size=size) > 0).astype(float)


@pytest.mark.slow
def test_least_squares_are_one_step():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=30)
    start = {"w": jnp.ones(4), "b": jnp.array(2.0)}
    result = optimum(Partial(least_squares, x, y), start)
    expected = np.linalg.lstsq(np.c_[x, np.ones(30)], y, rcond=None)[0]
    # Condition number below 10: a few roundings.
    np.testing.assert_allclose(
        np.append(result.params["w"], result.params["b"]), expected, rtol=1e-13
    )
    residual = np.c_[x, np.ones(30)] @ expected - y
    np.testing.assert_allclose(result.value, (residual**2).mean() / 2, rtol=1e-14)
    assert result.gradient_norm <= 1e-12
    # The second is that of the first's rounding error, if any.
    assert result.steps in (1, 2)


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.sampled_from([1e-3, 0.1, 1.0]))
def test_logistic_regression_against_scipy(seed, l2):
    x, y = logistic_data(seed)
    start = np.random.default_rng(seed).normal(size=5).astype(np.float32) * 10  # far out
    result = optimum(Partial(logistic, x, y, np.float64(l2)), start)

    def value_and_gradient(w):
        z = x @ w
        p = 1 / (1 + np.exp(-z))
        value = np.mean(np.logaddexp(0, z) - y * z) + l2 / 2 * w @ w
        return value, x.T @ (p - y) / len(y) + l2 * w

    options = {"gtol": 1e-9, "maxiter": 1000}
    reference = scipy.optimize.minimize(
        value_and_gradient, np.zeros(5), jac=True, method="BFGS", options=options
    )
    # Its gradient is below 1e-7 whatever it says; mu >= l2 turns that into a distance.
    np.testing.assert_allclose(result.params, reference.x, rtol=0, atol=1e-7 / l2)
    assert result.value <= reference.fun + 1e-15
    # The gradient of our own: NumPy's formula adds a rounding error.
    assert np.linalg.norm(value_and_gradient(result.params)[1]) < 2e-12
    assert result.steps < 20


@pytest.mark.slow
def test_softmax_regression_whose_minimisers_form_a_set():
    """Adding a vector to all classes' weights changes nothing: the one nearest to 0 is found."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 4, 60).astype(np.int32)
    model = softmax_regression(3, 4)
    objective = cross_entropy(model.apply)

    def loss(examples, params):
        return objective(params, examples, None).mean()

    result = optimum(Partial(loss, {"x": x, "y": y}), model.init(jax.random.key(0)))
    kernel, bias = result.params["linear"]["kernel"], result.params["linear"]["bias"]
    logits = x.astype(float) @ kernel.T + bias
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert np.abs((p - np.eye(4)[y]).T @ np.c_[x, np.ones(60)] / 60).max() < 2e-12
    # No step has a component in the null space, to rounding.
    assert np.abs(kernel.sum(0)).max() < 1e-13
    assert kernel.dtype == np.float64


def test_data_and_model_in_single_precision_are_no_limit():
    x, y = logistic_data(3)
    x, y = x.astype(np.float32), y.astype(np.float32)
    losses = with_l2(binary_cross_entropy(lambda w, x: x @ w), 0.1)

    def loss(x, y, w):
        return losses(w, {"x": x, "y": y}, None).mean()

    result = optimum(Partial(loss, jnp.asarray(x), jnp.asarray(y)), jnp.zeros(5))
    assert result.gradient_norm <= 1e-12
    assert jnp.asarray(result.params).dtype == jnp.float32  # outside, single precision as before


def test_conjugate_gradients_find_the_same():
    x, y = logistic_data(5)
    loss = Partial(logistic, x, y, np.float64(0.01))
    dense, conjugate = (optimum(loss, np.zeros(5), max_dense=d) for d in (5, 4))
    # Gradients of 1e-12 over a strong convexity of 0.01.
    np.testing.assert_allclose(conjugate.params, dense.params, rtol=0, atol=2e-10)
    assert conjugate.steps <= dense.steps + 10


def test_mean_loss_counts_clients_alike():
    sizes = [3, 0, 1, 6]
    rng = np.random.default_rng(4)
    x = rng.normal(size=(10, 2)).astype(np.float32).astype(np.float64)
    data = fs.FederatedData({"x": x}, np.cumsum([0, *sizes]))
    loss = mean_loss(lambda w, batch, key: jnp.sum((batch["x"] - w) ** 2, axis=1), data)
    w = np.array([0.5, -1.0])
    losses = ((x - w) ** 2).sum(axis=1)
    expected = np.mean([losses[:3].mean(), losses[3], losses[4:].mean()])
    np.testing.assert_allclose(loss(jnp.asarray(w, jnp.float32)), expected, rtol=1e-6)
    result = optimum(loss, np.zeros(2))
    best = np.mean([x[:3].mean(axis=0), x[3], x[4:].mean(axis=0)], axis=0)
    # Examples and shares of clients are as given, though a float32 loss was evaluated above.
    np.testing.assert_allclose(result.params, best, rtol=0, atol=1e-14)


def test_no_minimum_to_be_found():
    x = np.array([[1.0], [2.0]])
    separable = Partial(logistic, x, np.ones(2), np.float64(0))
    with pytest.raises(FloatingPointError, match="does not attain its minimum"):
        optimum(separable, np.zeros(1))
    with pytest.raises(FloatingPointError, match="after 3 Newton steps; expected at most"):
        optimum(separable, np.zeros(1), max_steps=3)
    with pytest.raises(FloatingPointError, match="eigenvalue -2; expected a convex loss"):
        optimum(lambda w: jnp.sum(w**4 - w**2), np.zeros(2) + 1e-9)


def test_errors():
    for options, message in (
        ({"tolerance": 0.0}, "tolerance is 0.0; expected a positive number"),
        ({"max_steps": 0}, "max_steps is 0; expected at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            optimum(jnp.sum, np.zeros(2), **options)
    with pytest.raises(ValueError, match=r"params has leaves of dtypes \['int64'\]"):
        optimum(jnp.sum, np.zeros(2, int))


@pytest.mark.parametrize("curvatures", [[1.0, -2.0, 3.0], [-1.0, -2.0, -3.0], [1.0, 2.0, -1e-3]])
def test_conjugate_gradients_do_not_go_to_a_saddle_or_a_maximum(curvatures):
    """The value 0 was returned as the minimum of losses without one."""
    loss = Partial(lambda a, x: jnp.sum(a * x**2), np.array(curvatures))
    with pytest.raises(FloatingPointError, match="along a direction; expected a convex loss"):
        optimum(loss, np.ones(3), max_dense=0)


def test_conjugate_gradients_with_minimisers_that_form_a_set():
    x = np.random.default_rng(2).normal(size=(4, 9))
    loss = Partial(lambda x, w: jnp.sum((x @ w - 1) ** 2), x)
    start = np.full(9, 0.5)
    result = optimum(loss, start, tolerance=1e-10, max_dense=0)
    expected = start + np.linalg.pinv(x) @ (1 - x @ start)  # the nearest one
    np.testing.assert_allclose(result.params, expected, rtol=0, atol=1e-9)
