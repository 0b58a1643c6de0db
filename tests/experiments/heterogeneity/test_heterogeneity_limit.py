"""The report's limits of FedAvg's error: its numbers, and where FedAvg ends."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from symbols import THESIS, by_symbols

from experiments.heterogeneity import limits
from experiments.heterogeneity.limits import saturated_gap
from fedjax_sim.theory import fedavg

CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-10)  # float64, some ten operations
convex_bound = by_symbols(fedavg.bound, THESIS, regime="convex")
limit_bound = by_symbols(limits.limit_bound, THESIS)


@pytest.mark.parametrize(
    ("K", "expected"),
    [(1, 0.022586), (10, 2.2586), (50, 56.46), (300, 2032.7), (1000, 22585.8)],
)
def test_numbers_of_the_report(x64, K, expected):
    """eta = 0.2, L = 0.18965, zeta = 0.4067; five digits and fewer are given."""
    constants = {"lr": 0.2, "L": 0.18965, "zeta": 0.4067, "K": K}
    np.testing.assert_allclose(limit_bound(**constants), expected, rtol=2e-4)
    CLOSE(convex_bound(**constants, sigma=0.0, M=2, R=1e15, B=2.0), limit_bound(**constants))
    # Section 4.1 prints a sum of two factors, above 18 K^2 for any rate.
    assert limit_bound(**constants) < 18 * K**2 + 0.04 * 0.18965 * 0.4067**2


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
