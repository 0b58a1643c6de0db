"""Iterate bias against exact biases, rates by hand, the report's numbers, and the grid of rates."""

import functools
import itertools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from fedjax_sim.theory.fedavg import convex_bound
from fedjax_sim.theory.heterogeneity_report import limit_bound, saturated_gap
from fedjax_sim.theory.iterate_bias import (
    bias_bound,
    bias_lower_bound,
    growth_bias_bound,
    third_order_bias_lower_bound,
)
from fedjax_sim.theory.orders import (
    baseline_rate,
    fedavg_lower_bound,
    fedavg_upper_bound,
    table_rate,
)
from fedjax_sim.theory.step_sizes import best_lr

CONSTANTS = {"L": 2.0, "sigma": 0.7, "M": 6, "K": 5, "R": 40, "B": 3.0}
CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-10)  # float64, some ten operations


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
    assert abs(means[0]) < 1e-15
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
    assert bias_lower_bound(lr=0.1, k=1, L=1.0, sigma=1.0, form="printed") > 0
    fine = {**options, "lr": 0.1, "Q": 0.01, "K": 5}
    assert np.isfinite(third_order_bias_lower_bound(**fine))
    for change in ({"lr": 0.6}, {"Q": 0.02}, {"K": 3}):
        with pytest.warns(UserWarning, match=r"Q <= L\^2 / \(12 K sigma\) and k < K"):
            assert np.isnan(third_order_bias_lower_bound(**{**fine, **change}))


@pytest.mark.parametrize("sigma", [1e-4, 0.1, 0.7, 1e3])
@pytest.mark.parametrize("zeta", [0.0, 0.01, 5.0])
def test_lower_and_upper_orders_by_hand(x64, sigma, zeta):
    constants = {**CONSTANTS, "sigma": sigma}
    L, _, M, K, R, B = CONSTANTS.values()
    first, noise, alone = (
        L * B**2 / (K * R),
        sigma * B / np.sqrt(M * K * R),
        sigma * B / np.sqrt(K * R),
    )
    drift = L ** (1 / 3) * sigma ** (2 / 3) * B ** (4 / 3) / (K ** (1 / 3) * R ** (2 / 3))
    other = min(zeta**2 / L, L ** (1 / 3) * zeta ** (2 / 3) * B ** (4 / 3) / R ** (2 / 3))
    lower = first + min(L * B**2, noise + min(alone, drift) + other)
    CLOSE(fedavg_lower_bound(**constants, zeta_star=zeta), lower)
    upper = min(L * B**2, first + alone, first + noise + drift)
    CLOSE(fedavg_upper_bound(**constants), upper)
    # Both orders are the same for one objective: within a factor of 2 as sums of their minima.
    assert 0.5 <= fedavg_lower_bound(**constants) / upper <= 2
    rates = {
        "minibatch": L * B**2 / R + noise,
        "single_client": first + alone,
        "best_of_both": first + noise + min(L * B**2 / R, alone),
        "older_lower_bound": first + noise + drift / K ** (1 / 3),
    }
    for method, expected in rates.items():
        CLOSE(baseline_rate(method, **constants), expected)
    CLOSE(baseline_rate("older_lower_bound", **constants, form="printed"), first + noise + drift)


@pytest.mark.parametrize("form", ["corrected", "printed"])
def test_table_31_by_hand(x64, form):
    L, s, M, K, R, B = CONSTANTS.values()
    mu, Q, printed = 0.05, 0.4, form == "printed"
    noise = s**2 / (mu * M * K * R)
    slow = np.exp(-mu * K * R / L) * L * B**2 + noise
    fast = min(np.exp(-mu * K * R / L), np.exp(-np.sqrt(mu * K / L) * R)) * L * B**2 + noise
    third = mu**3 if printed else mu**5
    last = min(L * s**2 / (mu**2 * K * R**3), L**2 * s**2 / (mu**3 * K * R**4))
    rate = functools.partial(table_rate, **CONSTANTS, form=form)
    CLOSE(rate("fedavg", mu=mu), slow + L * s**2 / (mu**2 * K * R**2))
    CLOSE(rate("fedac", mu=mu), fast + last)
    CLOSE(rate("fedavg", mu=mu, Q=Q), slow + Q**2 * s**4 / (third * K**2 * R**4))
    CLOSE(rate("fedac", mu=mu, Q=Q), fast + Q**2 * s**4 / (mu**5 * K**2 * R**8))
    noise = s * B / np.sqrt(M * K * R)
    slow, fast = L * B**2 / (K * R) + noise, L * B**2 / (K * R**2) + noise
    cube = L ** (1 / 3) * s ** (2 / 3) * B ** (4 / 3) / K ** (1 / 3)
    hessian = Q ** (1 / 3) * s ** (2 / 3) * B ** (5 / 3) / K ** (1 / 3)
    CLOSE(rate("fedavg"), slow + cube / R ** (2 / 3))
    fourth = L**0.5 * s**0.5 * B**1.5 / (K**0.25 * R)
    CLOSE(rate("fedac"), fast + min(cube / R, fourth))
    CLOSE(rate("fedavg", Q=Q), slow + hessian / R ** (2 / 3))
    last = hessian / R ** (2 / 3 if printed else 4 / 3)
    CLOSE(rate("fedac", Q=Q), fast + cube / (M ** (1 / 3) * R) + last)


def test_both_entries_of_fedacs_minima(x64):
    few = {**CONSTANTS, "R": 2}
    for constants, mu in ((few, 0.05), (CONSTANTS, 0.05)):
        L, s, _, K, R, _ = constants.values()
        entries = L * s**2 / (mu**2 * K * R**3), L**2 * s**2 / (mu**3 * K * R**4)
        assert (entries[0] < entries[1]) == (R == 2)
        start = table_rate("fedac", **constants, mu=mu, Q=0.0)
        CLOSE(table_rate("fedac", **constants, mu=mu) - start, min(entries))


def test_conditions_and_names_of_orders(allow_nans):
    with pytest.warns(UserWarning, match="K >= 2 does not hold"):
        assert np.isnan(fedavg_lower_bound(**{**CONSTANTS, "K": 1}))
    with pytest.warns(UserWarning, match="mu <= L does not hold"):
        assert np.isnan(table_rate("fedac", **CONSTANTS, mu=2.1))
    with pytest.raises(ValueError, match="method is 'scaffold'; expected one of"):
        table_rate("scaffold", **CONSTANTS)
    with pytest.raises(ValueError, match="method is 'sgd'; expected one of"):
        baseline_rate("sgd", **CONSTANTS)
    with pytest.raises(ValueError, match=r"zeta_star is -1\.0"):
        fedavg_lower_bound(**CONSTANTS, zeta_star=-1.0)
    with pytest.raises(ValueError, match="form is 'x'"):
        table_rate("fedac", **CONSTANTS, form="x")


@pytest.mark.parametrize(
    ("K", "expected"),
    [(1, 0.022586), (10, 2.2586), (50, 56.46), (300, 2032.7), (1000, 22585.8)],
)
def test_numbers_of_the_report(x64, K, expected):
    """eta = 0.2, L = 0.18965, zeta = 0.4067; five digits and fewer are given."""
    constants = {"lr": 0.2, "L": 0.18965, "zeta": 0.4067, "K": K}
    np.testing.assert_allclose(limit_bound(**constants), expected, rtol=2e-4)
    CLOSE(convex_bound(**constants, sigma=0.0, M=2, R=1e15, B=2.0), limit_bound(**constants))
    printed = 18 * K**2 + 0.04 * 0.18965 * 0.4067**2
    CLOSE(limit_bound(**constants, form="printed"), printed)


def test_saturated_gap_is_where_fedavg_ends():
    """Scalar quadratics a_m (x - b_m)^2 / 2 with many local steps, in NumPy."""
    a, b = np.array([0.2, 1.0, 0.5]), np.array([1.0, -2.0, 4.0])
    optimum = (a * b).sum() / a.sum()

    def F(x):
        return (a * (x - b) ** 2).mean() / 2

    x = 10.0
    for _ in range(3):
        x = (b + (1 - 0.5 * a) ** 2000 * (x - b)).mean()
    gap = saturated_gap(F, jnp.asarray(b, jnp.float32), jnp.float32(optimum))
    np.testing.assert_allclose(gap, F(x) - F(optimum), rtol=1e-5)  # float32
    with pytest.raises(ValueError, match=r"optima has shape \(3,\); expected \[M, \*shape\]"):
        saturated_gap(F, jnp.zeros(3), jnp.zeros(2))


def test_report_conditions(allow_nans):
    with pytest.warns(UserWarning, match=r"lr <= 1 / \(4 L\)"):
        assert np.isnan(limit_bound(lr=0.3, L=1.0, zeta=1.0, K=1))
    with pytest.raises(ValueError, match=r"zeta is -1\.0"):
        limit_bound(lr=0.1, L=1.0, zeta=-1.0, K=1)


def test_best_lr_against_calculus(x64):
    """a / x + b x^p is smallest at (a / (p b))^(1 / (p + 1))."""
    step = 10 ** (6 / 300)
    for a, b, p in ((1.0, 1.0, 1), (0.02, 3.0, 2), (1e-4, 7.0, 5)):
        where = (a / (p * b)) ** (1 / (p + 1))
        least = a / where + b * where**p
        found = best_lr(lambda x, a=a, b=b, p=p: a / x + b * x**p, 10.0)
        assert where / step <= found.lr <= where * step
        assert least <= found.value <= least * step**p
    # NaNs are passed over; the largest rate is on the grid.
    found = best_lr(lambda x: jnp.where(x < 0.1, 1 / x, 1e9), 1.0)
    assert 0.1 / step <= found.lr < 0.1
    assert best_lr(lambda x: 1 / x, 2.0).lr == 2.0


def test_best_lr_passes_over_nans(allow_nans):
    found = best_lr(lambda lr: convex_bound(lr=lr, **CONSTANTS), 10.0)
    assert found.lr <= 1 / 8
    assert np.isfinite(found.value)


def test_best_lr_errors():
    with pytest.raises(ValueError, match="num is 1; expected at least 2 points"):
        best_lr(lambda x: x, 1.0, num=1)
    with pytest.raises(ValueError, match=r"limit is 0\.0; expected a positive number"):
        best_lr(lambda x: x, 0.0)
    with pytest.raises(ValueError, match=r"decades is -1\.0"):
        best_lr(lambda x: x, 1.0, decades=-1.0)
