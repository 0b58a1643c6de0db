"""Bounds of the iterate bias against exact biases."""

import functools
import itertools

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given
from symbols import BIAS, by_symbols

from fedjax_sim.theory import fedavg

CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-10)  # float64, some ten operations
bias_bound, growth_bias_bound, bias_lower_bound, third_order_bias_lower_bound = (
    by_symbols(function, BIAS)
    for function in (
        fedavg.bias_bound,
        fedavg.growth_bias_bound,
        fedavg.bias_lower_bound,
        fedavg.third_order_bias_lower_bound,
    )
)


def logistic(x):
    return 1 / (1 + np.exp(-x))


def exact_bias(lr, k, sigma, start=0.0):
    """E x_k - z_k for F' = logistic(x - 1) - logistic(-1), over all 2^k paths of noise +-sigma."""

    def slope(x):
        return logistic(x - 1) - logistic(-1.0)

    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=k)))
    x, z = np.full(len(signs), start), start
    for sign in signs.T:
        x, z = x - lr * (slope(x) + sigma * sign), z - lr * slope(z)
    return x.mean() - z


@pytest.mark.parametrize("start", [-2.0, 0.0, 1.0, 3.0])
@pytest.mark.parametrize(("lr", "sigma"), [(0.2, 1.0), (2.0, 0.5), (4.0, 0.1)])
def test_smooth_bias_is_below_its_bounds(x64, lr, sigma, start):
    """L = 1/4 and Q = 1 / (6 sqrt 3) are the logistic function's largest derivatives."""
    L, Q = 0.25, 1 / (6 * np.sqrt(3))
    for k in (1, 2, 5, 10):
        bias = abs(exact_bias(lr, k, sigma, start))
        for bound in (
            bias_bound(lr=lr, k=k, L=L, sigma=sigma),
            bias_bound(lr=lr, k=k, L=L, sigma=sigma, Q=Q),
            growth_bias_bound(lr=lr, k=k, L=L, sigma=sigma),
        ):
            assert bias <= bound
        if k == 1:
            assert bias < 1e-15  # one step is unbiased


def test_third_order_bound_is_near_for_small_rates(x64):
    """From the optimum the bias is (k - 1) / k of it, up to the next order, lr L k <= 2.5 %."""
    p = logistic(-1.0)
    third = p * (1 - p) * (1 - 2 * p)
    for k in (2, 5, 10):
        bound = bias_bound(lr=0.01, k=k, L=0.25, sigma=0.5, Q=third)
        np.testing.assert_allclose(-exact_bias(0.01, k, 0.5), bound * (k - 1) / k, rtol=0.02)


def piecewise_means(lr, last):
    """E x_k, k = 1 .. last, of F' = x (x > 0), x / 2 (x < 0) with N(0, 1) noise, start 0.

    The density on a grid in units of lr; its kink is on a node and one step's noise is 20 nodes
    wide, so the trapezoidal rule errs far less than the tolerances below.
    """
    width = 6 * np.sqrt(last)
    nodes = np.arange(-int(20 * width), int(20 * width) + 1) / 20
    moved = nodes - lr * np.where(nodes > 0, nodes, nodes / 2)
    kernel = np.exp(-((nodes[:, None] - moved) ** 2) / 2) / np.sqrt(2 * np.pi) / 20
    density = np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    means = []
    for _ in range(last):
        means.append(lr * (nodes * density).sum() / 20)
        density = kernel @ density
    return np.array(means)


def test_piecewise_quadratic_is_between_its_bounds(x64):
    lr = 1e-3
    means = piecewise_means(lr, 16)
    # Theorem A.4 is printed for k = 1, too, where the bias from the optimum is 0.
    assert abs(means[0]) < 1e-15 < 0.002 * lr**2
    for k in range(2, 17):
        options = {"lr": lr, "k": k, "L": 1.0, "sigma": 1.0}
        assert bias_lower_bound(**options) <= -means[k - 1] <= bias_bound(**options)
        assert -means[k - 1] <= growth_bias_bound(**options)
    # For small lr L k <= 1.6 % the bias is lr^2 L / 2 sum_j sqrt(j / (2 pi)): the bound's powers.
    for k in (4, 16):
        law = lr**2 / 2 * np.sqrt(np.arange(k) / (2 * np.pi)).sum()
        np.testing.assert_allclose(-means[k - 1], law, rtol=0.02)


def test_bias_by_hand(x64):
    lr, k, L, sigma, Q = 0.1, 7, 2.0, 0.3, 0.05
    options = {"lr": lr, "k": k, "L": L, "sigma": sigma}
    CLOSE(bias_bound(**options), min(4 * lr**2 * k**1.5 * L * sigma, lr * k**0.5 * sigma))
    CLOSE(bias_bound(**{**options, "lr": 1e-3}), 4e-6 * k**1.5 * L * sigma)
    CLOSE(bias_bound(**options, Q=Q), lr**3 * k**2 * Q * sigma**2 / 4)
    growth = ((1 + lr * L) ** k - 1) / (lr * L) * 2 * lr**2 * L * np.sqrt(k) * sigma
    CLOSE(growth_bias_bound(**options), growth)
    CLOSE(bias_lower_bound(**options), 0.002 * lr**0.5 * L**-0.5 * sigma)
    CLOSE(bias_lower_bound(**{**options, "lr": 1e-3}), 0.002e-6 * k**1.5 * L * sigma)
    found = third_order_bias_lower_bound(**options, Q=Q, K=9)
    CLOSE(found, 0.005 * lr**3 * sigma**2 * Q * min((k - 1) / (lr * L), k * (k - 1)))


@given(st.floats(-4, 0), st.integers(2, 500), st.floats(-2, 2), st.floats(-2, 2))
def test_lower_bounds_of_the_bias_are_below_the_upper_ones(rate, k, L, sigma):
    with jax.enable_x64(True):
        options = {"lr": 0.5 * 10**rate / 10**L, "k": k, "L": 10**L, "sigma": 10**sigma}
        Q = options["L"] ** 2 / (12 * (k + 1) * options["sigma"])
        assert bias_lower_bound(**options) <= bias_bound(**options)
        low = third_order_bias_lower_bound(**options, Q=Q, K=k + 1)
        assert low <= bias_bound(**options, Q=Q)


def test_conditions_of_the_bias(allow_nans):
    options = {"lr": 0.6, "k": 3, "L": 1.0, "sigma": 1.0}
    for bound in (bias_bound, growth_bias_bound):
        with pytest.warns(UserWarning, match="lr <= 1 / L does not hold"):
            assert np.isnan(bound(**{**options, "lr": 1.1}))
    for change in ({}, {"lr": 0.1, "k": 1}):
        with pytest.warns(UserWarning, match=r"lr <= 1 / \(2 L\) and k >= 2"):
            assert np.isnan(bias_lower_bound(**{**options, **change}))
    fine = {**options, "lr": 0.1, "Q": 0.01, "K": 5}
    assert np.isfinite(third_order_bias_lower_bound(**fine))
    for change in ({"lr": 0.6}, {"Q": 0.02}, {"K": 3}):
        with pytest.warns(UserWarning, match=r"Q <= L\^2 / \(12 K sigma\) and k < K"):
            assert np.isnan(third_order_bias_lower_bound(**{**fine, **change}))


def test_no_noise_has_no_bias_however_many_steps():
    """The growth alone is beyond all numbers here, and its product with 0 would be NaN."""
    for k in (1, 7, 10**7):
        assert growth_bias_bound(lr=0.1, k=k, L=1.0, sigma=0.0) == 0
