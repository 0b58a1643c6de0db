"""Rates that are known up to constants against NumPy."""

import functools

import numpy as np
import pytest
from symbols import THESIS, by_symbols

from fedjax_sim.theory import fedac, fedavg, orders

CONSTANTS = {"L": 2.0, "sigma": 0.7, "M": 6, "K": 5, "R": 40, "B": 3.0}
CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-10)  # float64, some ten operations
fedavg_lower_bound = by_symbols(orders.fedavg_lower_bound, THESIS, zeta_star=0.0)
fedavg_upper_bound, baseline_rate, table_rate = (
    by_symbols(function, THESIS)
    for function in (orders.fedavg_upper_bound, orders.baseline_rate, orders.table_rate)
)


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
    # Table 2.1 prints K^(1/3) for K^(2/3): a lower bound above the upper one, without other noise.
    assert baseline_rate("older_lower_bound", **constants) < first + noise + drift


def test_table_31_by_hand(x64):
    """Printed with mu^3 for mu^5 (Theorem B.18), R^(2/3) for R^(4/3) (Theorem B.23)."""
    L, s, M, K, R, B = CONSTANTS.values()
    mu, Q = 0.05, 0.4
    noise = s**2 / (mu * M * K * R)
    slow = np.exp(-mu * K * R / L) * L * B**2 + noise
    fast = min(np.exp(-mu * K * R / L), np.exp(-np.sqrt(mu * K / L) * R)) * L * B**2 + noise
    last = min(L * s**2 / (mu**2 * K * R**3), L**2 * s**2 / (mu**3 * K * R**4))
    rate = functools.partial(table_rate, **CONSTANTS)
    CLOSE(rate("fedavg", mu=mu), slow + L * s**2 / (mu**2 * K * R**2))
    CLOSE(rate("fedac", mu=mu), fast + last)
    CLOSE(rate("fedavg", mu=mu, Q=Q), slow + Q**2 * s**4 / (mu**5 * K**2 * R**4))
    CLOSE(rate("fedac", mu=mu, Q=Q), fast + Q**2 * s**4 / (mu**5 * K**2 * R**8))
    noise = s * B / np.sqrt(M * K * R)
    slow, fast = L * B**2 / (K * R) + noise, L * B**2 / (K * R**2) + noise
    cube = L ** (1 / 3) * s ** (2 / 3) * B ** (4 / 3) / K ** (1 / 3)
    hessian = Q ** (1 / 3) * s ** (2 / 3) * B ** (5 / 3) / K ** (1 / 3)
    CLOSE(rate("fedavg"), slow + cube / R ** (2 / 3))
    fourth = L**0.5 * s**0.5 * B**1.5 / (K**0.25 * R)
    CLOSE(rate("fedac"), fast + min(cube / R, fourth))
    CLOSE(rate("fedavg", Q=Q), slow + hessian / R ** (2 / 3))
    last = hessian / R ** (4 / 3)
    CLOSE(rate("fedac", Q=Q), fast + cube / (M ** (1 / 3) * R) + last)


@pytest.mark.parametrize("method", ["fedavg", "fedac"])
@pytest.mark.parametrize("hessian", [{}, {"Q": 0.5}])
def test_a_strong_convexity_of_zero_selects_the_convex_rate(method, hessian):
    convex = table_rate(method=method, **CONSTANTS, **hessian)
    assert table_rate(method=method, **CONSTANTS, **hessian, mu=0.0) == convex
    with pytest.raises(ValueError, match="mu is -1; expected a positive number"):
        table_rate(method=method, **CONSTANTS, **hessian, mu=-1)


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
    with pytest.raises(ValueError, match="Q is -1"):
        table_rate("fedac", **CONSTANTS, Q=-1)


def test_misprinted_powers_of_table_31(x64):
    """The ratio of the theorem's bound to the table's rate is bounded with mu^5 and R^(4/3) only.

    mu^5: as mu falls at fixed mu K R.  R^(4/3): as R grows, where Q's term is the largest.
    """
    bound = by_symbols(fedavg.tuned_bound, THESIS, regime="strongly convex")
    common = {"L": 1.0, "sigma": 1.0, "M": 10**12, "K": 1, "B": 1.0, "Q": 1e6}
    ratios = []
    for mu in (1e-1, 1e-3):
        constants = {**common, "mu": mu, "R": 1e3 / mu}
        ratios.append(float(bound(**constants) / table_rate("fedavg", **constants)))
    logs = [np.log(np.e + mu**6 * (1e3 / mu) ** 5 / 1e12) ** 4 for mu in (1e-1, 1e-3)]
    np.testing.assert_allclose(ratios[0] / logs[0], ratios[1] / logs[1], rtol=0.01)
    bound = by_symbols(fedac.tuned_bound, THESIS, regime="convex", variant="II")
    ratios = []
    for R in (1e6, 1e9):
        constants = {**common, "Q": 1e18, "R": R}
        log = np.log(np.exp(8) + (R**4 / 1e18) ** (1 / 3)) ** 8
        ratios.append(float(bound(**constants) / table_rate("fedac", **constants)) / log)
    np.testing.assert_allclose(ratios[0], ratios[1], rtol=0.01)
