"""Optimisation errors against loops in NumPy, Table 1 by hand, and runs on quadratics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from symbols import FEDSWA, by_symbols

from fedjax_sim.theory.fedswa import convergence, table_1

CONSTANTS = {"beta": 2.0, "mu": 0.5, "sigma": 0.7, "m": 20, "s": 5, "K": 4, "alpha": 1.5}
NONCONVEX = {k: v for k, v in CONSTANTS.items() if k != "mu"} | {"F": 3.0}
LR = 1e-4
control_lag, strongly_convex_descent, nonconvex_descent, strongly_convex_rate = (
    by_symbols(function, FEDSWA)
    for function in (
        convergence.control_lag_bound,
        convergence.strongly_convex_descent,
        convergence.nonconvex_descent,
        convergence.strongly_convex_rate,
    )
)
nonconvex_rate = by_symbols(table_1.nonconvex_rate, FEDSWA)
CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-10)  # float64, a few hundred terms


def test_control_lags_by_hand(x64):
    rng = np.random.default_rng(0)
    drifts, gaps = rng.uniform(size=(2, 30))
    for share in (5 / 20, 0.2):  # Lemma G.10 with s / m, Lemma G.11 with gamma
        lag = expected = 1.3
        for drift, gap in zip(drifts, gaps, strict=True):
            lag = control_lag(lag=lag, drift=drift, gap=gap, beta=2.0, share=share)
            expected = (1 - share) * expected + share * (8 * gap + 8 * drift)
            CLOSE(lag, expected)


def test_strongly_convex_descent_is_the_recursion_unrolled(x64):
    """Any gaps that the recursion allows: the largest weighted mean and the largest end."""
    T, step = 40, 4 * 1.5 * LR
    bounds = strongly_convex_descent(potential=2.0, **CONSTANTS, T=T, lr=LR, gamma=0.2)
    noise = 12 * step**2 / (4 * 5) * (1 + 5 / 1.5**2) * 0.7**2
    q = 1 - 0.5 * step / 2
    potential = 2.0
    for _ in range(T):
        potential = q * potential + noise
    CLOSE(bounds.potential, potential)
    # All gaps equal to the bound end at potential 0 exactly.
    potential = 2.0
    for _ in range(T):
        potential = q * potential - step * float(bounds.gap) + noise
    np.testing.assert_allclose(potential, 0, atol=1e-12)


def test_nonconvex_descent_is_the_recursion_summed(x64):
    T, step = 40, 4 * 1.5 * LR
    bound = nonconvex_descent(**NONCONVEX, T=T, lr=LR, gamma=0.2)
    noise = 21 / 4 * 2.0 * step**2 * 0.7**2 / (4 * 5) * (1 + 5 / 1.5**2)
    # Gradients equal to the bound in every round use up F exactly.
    left = 3.0
    for _ in range(T):
        left += noise - step / 14 * float(bound)
    np.testing.assert_allclose(left, 0, atol=1e-12)


def test_conditions_of_lemma_g18_with_the_lag(x64):
    """Drift's coefficient 1 / 2 + 2 x + 97 / 2 x <= 5 / 3 needs x <= 1 / 44, not 1 / 24."""
    x = np.array([1 / 44, 1 / 24])
    np.testing.assert_array_equal(1 / 2 + 2 * x + 97 / 2 * x <= 5 / 3, [True, False])
    # Lemma G.13 with the term 9 step^2 / gamma D_t: 80 beta step <= 24 / 25, the paper has 44.
    limit = 3 / 250
    np.testing.assert_allclose(80 * limit, 24 / 25)
    assert limit < 1 / 81


@pytest.mark.parametrize(
    ("lr", "options", "match"),
    [
        (0.0011, {"gamma": 1.0}, r"3 / \(250 beta\)"),  # 0.0066 > 0.006
        (0.0009, {"gamma": 0.03}, r"2 gamma / \(27 mu\)"),  # 0.0054 > 0.0044
        (0.0009, {"mu": 4.0}, r"s / \(15 mu m\)"),  # 0.0054 > 0.0042
        (1e-5, {"alpha": 0.9}, "alpha >= 1"),
    ],
)
def test_conditions_of_the_strongly_convex_descent(allow_nans, lr, options, match):
    constants = {**CONSTANTS, **options}
    with pytest.warns(UserWarning, match=match):
        found = strongly_convex_descent(potential=1.0, **constants, T=10, lr=lr)
    assert np.isnan(found).all()


def test_corrected_conditions_are_the_stricter_ones(allow_nans):
    """The printed limits of the step are 1 / (81 beta) and (s / m)^(2/3) / (24 beta)."""
    descent = jax.jit(functools.partial(strongly_convex_descent, potential=1.0, **CONSTANTS, T=10))
    for lr, invalid in ((0.001, False), (0.00102, True)):
        assert 4 * 1.5 * lr <= 1 / (81 * 2.0)
        assert np.isnan(descent(lr=lr).potential) == invalid
    # (s / m)^(2/3) / (24 beta) = 0.00827, / (44 beta) = 0.00451; with gamma = 0.1 0.00245.
    descent = jax.jit(functools.partial(nonconvex_descent, **NONCONVEX, T=10))
    for step, gamma, invalid in ((0.004, 1.0, False), (0.004, 0.1, True), (0.005, 1.0, True)):
        assert step <= (5 / 20) ** (2 / 3) / (24 * 2.0)
        assert np.isnan(descent(lr=step / 6, gamma=gamma)) == invalid


def test_strongly_convex_rate_by_hand(x64):
    T = 100
    noise = 0.7**2 / (0.5 * T * 4 * 5) * (1 + 5 / 1.5**2)
    front = 20 * 0.5 / 5 * 1.1**2
    rate = functools.partial(strongly_convex_rate, **CONSTANTS, D=1.1, T=T)
    CLOSE(rate(), noise + front * np.exp(-0.25 * T))  # s / m = mu / beta = 1 / 4
    printed = noise + front * np.exp(-0.5 * T)  # Theorem 5.2 has the sum of the two
    assert printed < rate()


def test_table_1_by_hand(x64):
    beta, sigma, m, s, K, alpha = 2.0, 0.7, 20, 5, 4, 1.5
    T, F, g, L = 49, 3.0, 0.6, 1.2
    rate = functools.partial(
        nonconvex_rate, beta=beta, sigma=sigma, m=m, s=s, K=K, alpha=alpha, T=T, F=F,
        sigma_g=g, lipschitz=L,
    )  # fmt: skip
    root = np.sqrt(T * K * s)
    CLOSE(
        rate("fedsam"),
        beta * F / root + 2 * g**2 / np.sqrt(T * s) + L**2 * sigma**2 / (343 * K) + L**2 / 49**2,
    )
    CLOSE(
        rate("mofedsam"),
        beta * L * F / root
        + beta * 2 * g**2 / np.sqrt(T * s)
        + L**2 * sigma**2 / (343 * K)
        + 2 * L**2 / (343 * np.sqrt(s)),
    )
    CLOSE(
        rate("fedswa"),
        beta * (sigma + 2 * g) * np.sqrt(F) / root
        + np.cbrt(F**2 * beta * g**2 / T**2)
        + beta * F / T,
    )
    rest = beta * F / T * np.cbrt((m / s) ** 2)
    # Theorem 5.2 prints m for s, Table 1 and Lemma G.18 have s.
    for method, variance in (("fedmoswa", 1 + s / alpha**2), ("scaffold", 1 + s)):
        CLOSE(rate(method), sigma * np.sqrt(F * variance) / root + rest)


def test_limits():
    rates = {"beta": 1.0, "sigma": 1.0, "F": 1.0, "s": 10, "K": 5, "m": 100, "lipschitz": 0.0}
    # FedMoSWA's rate does not see heterogeneity, FedSWA's grows with it.
    for method, grows in (("fedmoswa", False), ("fedswa", True), ("fedsam", True)):
        low, high = (nonconvex_rate(method, **rates, T=100, sigma_g=g) for g in (0.0, 10.0))
        assert (high > low) == grows
    # Without noise the error falls as 1 / T, with noise alone as 1 / sqrt(T).
    quiet = {**rates, "sigma": 0.0}
    ratio = nonconvex_rate("fedmoswa", **quiet, T=100) / nonconvex_rate("fedmoswa", **quiet, T=400)
    np.testing.assert_allclose(ratio, 4, rtol=1e-5)
    noisy = {**rates, "beta": 1e-9}
    ratio = nonconvex_rate("fedmoswa", **noisy, T=100) / nonconvex_rate("fedmoswa", **noisy, T=400)
    np.testing.assert_allclose(ratio, 2, rtol=1e-5)
    larger = nonconvex_rate("fedmoswa", **rates, T=100, alpha=1000.0)
    smaller = nonconvex_rate("scaffold", **rates, T=100)
    assert larger < smaller


def test_vmap_over_rounds(allow_nans):
    rounds = jnp.array([2.0, 5.0, 50.0])
    found = jax.vmap(lambda T: strongly_convex_rate(**CONSTANTS, D=1.0, T=T))(rounds)
    assert np.isnan(found).tolist() == [True, False, False]  # T >= 4
    with pytest.warns(UserWarning, match=r"T >= max\(beta / mu, m / s\) does not hold"):
        strongly_convex_rate(**CONSTANTS, D=1.0, T=2)


def test_errors():
    with pytest.raises(ValueError, match="method is 'fedavg'; expected one of"):
        nonconvex_rate("fedavg", beta=1.0, sigma=1.0, F=1.0, s=1, K=1, T=1, m=1)
    with pytest.raises(ValueError, match=r"constants\.sigma_g is None"):
        nonconvex_rate("fedswa", beta=1.0, sigma=1.0, F=1.0, s=1, K=1, T=1, m=1)
    with pytest.raises(ValueError, match=r"Delta is -1.0; expected a non-negative number"):
        nonconvex_descent(**{**NONCONVEX, "F": -1.0}, T=10, lr=LR)
    with pytest.raises(ValueError, match="clients is 0; expected a positive number"):
        strongly_convex_rate(**{**CONSTANTS, "m": 0}, D=1.0, T=10)
    with pytest.raises(ValueError, match="drift is -1"):
        control_lag(lag=1.0, drift=-1, gap=0.0, beta=1.0, share=0.5)
