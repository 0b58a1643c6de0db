"""FedDualAvg's bounds against NumPy, what the prescribed rates are proven to do, and one run."""

import functools

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given
from symbols import FEDDUALAVG, by_symbols

from experiments.fco import lemmas
from fedjax_sim.theory import feddualavg

pytestmark = pytest.mark.usefixtures("x64")

CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-12)  # float64, some ten operations
SIZES = {"L": 2.0, "sigma": 0.7, "M": 6, "K": 5, "R": 40, "B": 3.0}
FUNCTIONS = {
    "bound": feddualavg.bound,
    "prescribed_lr": feddualavg.prescribed_lr,
    "tuned_bound": feddualavg.tuned_bound,
    "discrepancy_bound": lemmas.discrepancy_bound,
}
bound, prescribed_lr, tuned_bound, discrepancy_bound = (
    by_symbols(function, FEDDUALAVG) for function in FUNCTIONS.values()
)
dual_shadow_bound = by_symbols(lemmas.dual_shadow_bound, FEDDUALAVG)
# Each regime's constant beside L, sigma and B_h.
REGIMES = {"small client rate": [], "bounded gradients": ["G"], "quadratic": ["zeta"]}


def test_formulas():
    lr, L, s, M, K, R, B = 0.05, 2.0, 0.7, 6, 5, 40, 3.0
    shared = B**2 / (lr * K * R) + lr * s**2 / M
    CLOSE(dual_shadow_bound(discrepancy=0.3, lr=lr, **SIZES), shared + L * 0.3)
    regime = "bounded gradients"
    rest = 4 * lr**2 * (K - 1) ** 2 * 1.1**2
    CLOSE(discrepancy_bound(regime=regime, lr=lr, G=1.1, K=K), rest)
    CLOSE(bound(regime=regime, lr=lr, G=1.1, **SIZES), shared + L * rest)
    regime = "quadratic"
    rest = 7 * lr**2 * K * s**2 + 14 * lr**2 * K**2 * 0.4**2
    CLOSE(discrepancy_bound(regime=regime, lr=lr, L=L, sigma=s, zeta=0.4, K=K), rest)
    CLOSE(bound(regime=regime, lr=lr, zeta=0.4, **SIZES), shared + L * rest)
    regime = "small client rate"
    CLOSE(bound(regime=regime, lr=0.02, **SIZES), 9 / (0.02 * 200) + 3 * 0.02 * s**2 / M)


constants = st.floats(1e-2, 1e2)
sizes = st.integers(1, 1000)


@functools.partial(jax.jit, static_argnums=0)
def tuned_values(regime, constants):
    """The bound at the prescribed rate, and the tuned bound."""
    at = {"regime": regime, **constants}
    return bound(lr=prescribed_lr(**at), **at), tuned_bound(**at)


@pytest.mark.parametrize("regime", REGIMES)
@given(
    L=constants, sigma=st.just(0.0) | constants, other=st.just(0.0) | constants, B=constants,
    M=sizes, K=sizes, R=sizes,
)  # fmt: skip
def test_tuned_bound_is_above_the_bound_at_the_prescribed_rate(regime, L, sigma, other, B, M, K, R):
    """And at most a small multiple of it: no term is missing.  3 + 1 terms become 4, 14 + 1, 15."""
    constants = {"L": L, "sigma": sigma, "M": M, "K": K, "R": R, "B": B}
    value, tuned = tuned_values(regime, constants | dict.fromkeys(REGIMES[regime], other))
    assert np.isfinite(value)
    assert value <= tuned * (1 + 1e-9)
    assert tuned <= 40 * value


@pytest.mark.parametrize("regime", REGIMES)
def test_nan_beyond_the_largest_rate(regime):
    given_ = {"regime": regime, **SIZES, **dict.fromkeys(REGIMES[regime], 0.4)}
    largest = 1 / (4 * 2.0) / (5 if regime == "small client rate" else 1)
    assert np.isfinite(bound(lr=largest, **given_))
    refused = pytest.warns(UserWarning, match=r"the condition lr <= 1 / \(4 (K )?L\) does not")
    with refused, jax.debug_nans(False):
        assert np.isnan(bound(lr=1.01 * largest, **given_))


def test_refuses_negative_constants():
    with pytest.raises(ValueError, match=r"zeta is -1\.0; expected a non-negative number"):
        bound(regime="quadratic", lr=0.1, zeta=-1.0, **SIZES)
    with pytest.raises(ValueError, match="B_h is 0; expected a positive number"):
        bound(regime="small client rate", lr=0.01, **(SIZES | {"B": 0}))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_unknown_regime(name):
    function = by_symbols(FUNCTIONS[name], FEDDUALAVG)
    sizes = {"lr": 0.1} if name == "bound" else {}
    sizes |= {"lr": 0.1, "K": 1} if name == "discrepancy_bound" else {"M": 1, "K": 1, "R": 1}
    with pytest.raises(ValueError, match="regime is 'convex'; expected one of"):
        function(regime="convex", **sizes)


def test_theorem_43_for_fedmid_osp_needs_dual_displacements():
    """One client step of rate lr with h the entropy: x e^(-lr g).  Only dual ones are gradients."""
    rng = np.random.default_rng(0)
    x, gradients = rng.uniform(0.1, 2.0, size=4), rng.normal(size=(6, 4))
    mean = gradients.mean(0)
    for lr in (1e-2, 1e-5):
        ends = x * np.exp(-lr * gradients)
        dual = (np.log(x) - np.log(ends)).mean(0) / lr
        np.testing.assert_allclose(dual, mean, rtol=1e-6)  # differences of logarithms
        primal = (x - ends).mean(0) / lr
        # The Hessian of h* at the dual of x is diag(x); the next order is lr.
        np.testing.assert_allclose(primal, x * mean, atol=10 * lr)
        assert np.abs(primal - mean).max() > 0.1
        euclidean = (x - (x - lr * gradients)).mean(0) / lr
        np.testing.assert_allclose(euclidean, mean, rtol=1e-6)


def test_dual_averaging_on_a_lasso_stays_below():
    """M clients with linear terms that differ, Euclidean h: exact gradients, so no noise.

    The clients' Hessians are equal, so zeta is known; F is quadratic and L = ||A|| in its norm.
    """
    rng = np.random.default_rng(0)
    M, K, R, lr, weight = 4, 8, 30, 0.05, 0.1
    diagonal = np.array([1.0, 0.8, 0.5, 0.3, 0.2])
    linear = rng.normal(size=(M, 5))
    mean = linear.mean(0)

    def prox(y, time):
        return np.sign(y) * np.maximum(np.abs(y) - time * weight, 0)

    def phi(x):
        return x @ (diagonal * x) / 2 + mean @ x + weight * np.abs(x).sum()

    best = prox(-mean, 1) / diagonal
    dual, outputs, spread = np.zeros(5), [], []
    for r in range(R):
        y = np.tile(dual, (M, 1))
        for k in range(K):
            spread.append(((y - y.mean(0)) ** 2 / diagonal).sum(1).mean() * diagonal.max())
            y = y - lr * (diagonal * prox(y, lr * (r * K + k)) + linear)
            outputs.append(prox(y.mean(0), lr * (r * K + k + 1)))
        dual = y.mean(0)
    gap = phi(np.mean(outputs, axis=0)) - phi(best)
    zeta = np.sqrt((((linear - mean) ** 2 / diagonal).sum(1) * diagonal.max()).max())
    run = {"lr": lr, "L": diagonal.max(), "sigma": 0.0, "M": M, "K": K, "R": R}
    B = np.sqrt(best @ best / 2)
    measured = float(dual_shadow_bound(discrepancy=np.mean(spread), B=B, **run))
    assert 0 < gap <= measured <= float(bound(regime="quadratic", zeta=zeta, B=B, **run))
    limit = discrepancy_bound(regime="quadratic", lr=lr, L=1.0, sigma=0.0, zeta=zeta, K=K)
    assert max(spread) <= float(limit)
