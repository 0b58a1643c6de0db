"""Bounds on the derivatives of linear models: their suprema, and data that stay below."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_sim as fs
from fedjax_sim.diagnostics.gradient_moments import batch_moments
from fedjax_sim.diagnostics.heterogeneity import heterogeneity
from fedjax_sim.diagnostics.linear_models import LOGISTIC, SOFTMAX, linear_model_bounds
from fedjax_sim.diagnostics.smoothness import curvature, hessian_lipschitz
from fedjax_sim.objectives import cross_entropy, with_l2

KEY = jax.random.key(0)


def link_of_softmax(z, v):
    p = np.exp(z - z.max())
    p /= p.sum()
    mean = p @ v
    return (
        np.linalg.norm(p - np.eye(len(p))[np.argmin(p)]),
        p @ (v - mean) ** 2,
        p @ (v - mean) ** 3,
    )


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.integers(2, 6))
def test_softmax_derivatives_stay_below_their_suprema(seed, classes):
    rng = np.random.default_rng(seed)
    v = rng.normal(size=classes)
    result = link_of_softmax(
        rng.normal(size=classes) * rng.choice([0.1, 1, 10]), v / np.sqrt(v @ v)
    )
    assert result[0] <= SOFTMAX.gradient
    assert result[1] <= SOFTMAX.hessian + 1e-15
    assert abs(result[2]) <= SOFTMAX.third + 1e-15


def test_softmax_suprema_are_attained():
    """By two classes: the variance at equal odds, the third moment at p = (1 +- 1 / sqrt 3) / 2."""
    v = np.array([1.0, -1.0]) / np.sqrt(2)
    np.testing.assert_allclose(link_of_softmax(np.zeros(2), v)[1], SOFTMAX.hessian, rtol=1e-14)
    low = (1 - 1 / np.sqrt(3)) / 2
    at = np.log(np.array([low, 1 - low]))
    np.testing.assert_allclose(abs(link_of_softmax(at, v)[2]), SOFTMAX.third, rtol=1e-14)
    sup = scipy.optimize.minimize_scalar(lambda z: -abs(_third(z)), bounds=(0, 5), method="bounded")
    # Flat at its maximum: scipy's argument is good to 1e-5, its value to the square.
    np.testing.assert_allclose(-sup.fun, LOGISTIC.third, rtol=1e-9)


def _third(z):
    s = 1 / (1 + np.exp(-z))
    return s * (1 - s) * (1 - 2 * s)


@pytest.mark.slow
def test_softmax_bounds_hold_on_data(x64):
    model = fs_softmax()
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, 3)), rng.integers(0, 3, 20).astype(np.int32)
    data = fs.FederatedData({"x": x, "y": y}, np.array([0, 8, 20]))
    objective = with_l2(cross_entropy(model), 0.1)
    task = fs.empirical_task(objective, data, fs.full_batch(1))
    points = jnp.asarray(rng.normal(size=(4, 3, 4)) * np.array([0, 0.3, 1, 3])[:, None, None])
    bounds = linear_model_bounds(x, data.offsets, SOFTMAX, l2=0.1)
    bent = curvature(task, points, KEY, iterations=12)
    assert (np.asarray(bent.clients.largest) <= bounds.client_L * (1 + 1e-6)).all()
    assert np.max(bent.clients.largest) > 0.3 * bounds.L  # it is of that size
    assert np.min(bent.total.smallest) >= bounds.mu - 1e-12
    assert np.max(hessian_lipschitz(task, points, KEY)) <= bounds.Q
    moments = batch_moments(objective, data, points, 1)
    assert moments.sigma <= bounds.sigma
    assert 0 < heterogeneity(task, points).zeta <= bounds.zeta
    plain = linear_model_bounds(x, data.offsets, SOFTMAX)
    largest = batch_moments(cross_entropy(model), data, points, 1).largest
    assert np.max(largest) <= plain.G
    assert np.inf == bounds.G


@pytest.mark.parametrize("offsets", [[0, 2, 4], [0, 2, 7], [2, 4, 6]])
def test_rows_that_offsets_do_not_cover_are_refused(offsets):
    with pytest.raises(ValueError, match=r"offsets goes from \d to \d; expected from 0 to 6, the"):
        linear_model_bounds(np.ones((6, 2)), offsets, SOFTMAX)


def fs_softmax():
    return lambda w, x: x @ w[:, :3].T + w[:, 3]
