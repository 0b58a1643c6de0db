"""Prescribed rates against direct calls, and the grid of rates against calculus."""

import math
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim.theory import ProblemConstants, fedac, fedavg
from fedjax_sim.theory.step_sizes import best_lr, optimal_lr

CONSTANTS = ProblemConstants(
    L=2.0, mu=0.1, sigma=0.5, sigma4=0.6, Q=0.3, G=4.0, zeta=0.7, zeta_star=0.4, B=1.5, Delta=1.1
)
SIZES = {"clients": 10, "local_steps": 8, "rounds": 50}
CONVEX_BOUND, CONVEX_LR = (
    partial(function, regime="convex") for function in (fedavg.bound, fedavg.prescribed_lr)
)
POTENTIAL = 1.1 + 0.1 / 2 * 1.5**2


@pytest.mark.parametrize(
    ("rule", "sigma"),
    [
        (CONVEX_LR, 0.5),
        # A theorem with Q requires that one sigma bounds both moments.
        (partial(fedavg.prescribed_lr, regime="third order"), 0.6),
        (partial(fedavg.prescribed_lr, regime="strongly convex"), 0.6),
        (partial(fedavg.prescribed_lr, regime="nonconvex"), 0.5),  # not Theorem 2.23, which uses G
        (partial(fedac.prescribed_lr, regime="strongly convex", variant="I"), 0.5),
        (partial(fedac.prescribed_lr, regime="strongly convex", variant="II"), 0.6),
        (partial(fedac.prescribed_lr, regime="convex", variant="I"), 0.5),
        (partial(fedac.prescribed_lr, regime="convex", variant="II"), 0.6),
    ],
)
def test_rules_use_the_moments_that_their_theorems_require(rule, sigma):
    exact = CONSTANTS._replace(sigma=sigma, sigma4=sigma)
    assert optimal_lr(rule, CONSTANTS, **SIZES) == rule(exact, **SIZES)


@pytest.mark.parametrize("variant", ["I", "II"])
def test_convex_fedac_has_its_augmentation_computed(variant):
    rule, at = partial(fedac.prescribed_lr, regime="convex"), {**SIZES, "variant": variant}
    prescribed = fedac.prescribed_augmentation(CONSTANTS, **at)
    found = optimal_lr(rule, CONSTANTS, **at)
    assert found == rule(CONSTANTS, **at, augmentation=prescribed)
    other = optimal_lr(rule, CONSTANTS, **at, augmentation=0.2)
    assert other == rule(CONSTANTS, **at, augmentation=0.2) != found


def test_unknown_third_derivatives():
    """Without Q, FedAc-II's rate is another, and sigma bounds the variance only."""
    smooth = CONSTANTS._replace(Q=None, sigma4=None)
    rule = partial(fedac.prescribed_lr, regime="strongly convex", variant="II")
    assert rule(smooth, **SIZES) == rule(smooth._replace(Q=math.nan), **SIZES)
    assert rule(smooth, **SIZES) == rule(smooth, **SIZES, potential=POTENTIAL)
    assert rule(smooth, **SIZES) != rule(CONSTANTS, **SIZES)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.integers(1, 100), st.integers(1, 1000))
def test_bounds_without_a_rule_are_minimised(sigma, zeta, K, R):
    constants = CONSTANTS._replace(sigma=sigma, zeta=zeta)
    sizes = {"clients": 10, "local_steps": K, "rounds": R}
    found = float(optimal_lr(CONVEX_BOUND, constants, **sizes))

    def bound(lr):
        noise = lr * sigma**2 / 10
        drift = 4 * K * lr**2 * sigma**2 + 18 * K**2 * lr**2 * zeta**2
        return 1.5**2 / (2 * lr * K * R) + noise + 2.0 * drift

    limit = 1 / (4 * 2.0)
    best = scipy.optimize.minimize_scalar(
        lambda u: bound(math.exp(u)), bounds=(math.log(1e-7), math.log(limit)), method="bounded"
    )
    # Neighbours on the second grid are a factor of 10^(1 / 7500) apart; lr^2 is the largest power.
    assert bound(found) <= best.fun * 10 ** (2 / 7500) * (1 + 1e-5)
    assert found <= limit * (1 + 1e-5)


@pytest.mark.slow
def test_the_limit_of_the_grid():
    quiet = CONSTANTS._replace(sigma=0.0, zeta=0.0)
    found = optimal_lr(CONVEX_BOUND, quiet, **SIZES, limit=0.125)
    np.testing.assert_allclose(found, 0.125, rtol=1e-6)  # the largest allowed is best
    with pytest.raises(ValueError, match=r"limit is 1e\+20; expected rates below it"):
        optimal_lr(CONVEX_BOUND, quiet, **SIZES, limit=1e20)


def test_missing_constants_are_named():
    with pytest.raises(ValueError, match=r"constants\.L is None; expected a number"):
        optimal_lr(CONVEX_LR, ProblemConstants(), **SIZES)
    with pytest.raises(TypeError, match="rounds"):
        optimal_lr(CONVEX_LR, CONSTANTS, clients=1, local_steps=1)
    # Beside Q, an unknown fourth moment is an unknown sigma.
    rule = partial(fedavg.prescribed_lr, regime="third order")
    for unknown in (None, math.nan):
        with pytest.raises(ValueError, match=rf"constants\.sigma4 is {unknown}"):
            optimal_lr(rule, CONSTANTS._replace(sigma4=unknown), **SIZES)
    with pytest.raises(ValueError, match=r"constants\.mu is None"):
        optimal_lr(
            partial(fedac.prescribed_lr, regime="strongly convex", variant="I"),
            CONSTANTS._replace(mu=None),
            **SIZES,
        )
    with pytest.raises(TypeError, match="steps"):
        optimal_lr(CONVEX_LR, CONSTANTS, **SIZES, steps=3)


def test_known_constants():
    constants = ProblemConstants(L=1.0, sigma=math.nan, zeta=0.0)
    assert constants.known == {"L": 1.0, "zeta": 0.0}


def test_best_lr_against_calculus(x64):
    """a / x + b x^p is smallest at (a / (p b))^(1 / (p + 1))."""
    step = 10 ** (12 / 300**2)
    for a, b, p in ((1.0, 1.0, 1), (0.02, 3.0, 2), (1e-4, 7.0, 5)):
        where = (a / (p * b)) ** (1 / (p + 1))
        least = a / where + b * where**p
        found = best_lr(lambda x, a=a, b=b, p=p: a / x + b * x**p, 10.0)
        assert where / step <= found.lr <= where * step
        assert least <= found.value <= least * step**p
    # NaNs are passed over; the largest rate is on the grid.
    found = best_lr(lambda x: jnp.where(x < 0.1, 1 / x, 1e9), 1.0)
    assert 0.1 / step * (1 - 1e-12) <= found.lr < 0.1
    assert best_lr(lambda x: 1 / x, 2.0).lr == 2.0


def test_best_lr_passes_over_nans(allow_nans):
    found = best_lr(lambda lr: CONVEX_BOUND(CONSTANTS, lr=lr, **SIZES), 10.0)
    assert found.lr <= 1 / (4 * 2.0)
    assert np.isfinite(found.value)


def test_best_lr_errors():
    with pytest.raises(ValueError, match="num is 1; expected at least 2 points"):
        best_lr(lambda x: x, 1.0, num=1)
    with pytest.raises(ValueError, match=r"limit is 0\.0; expected a positive number"):
        best_lr(lambda x: x, 0.0)
    with pytest.raises(ValueError, match=r"decades is -1\.0"):
        best_lr(lambda x: x, 1.0, decades=-1.0)


@pytest.mark.parametrize("num", [301, 300])
def test_bounds_with_an_exponential(num, x64):
    """exp(-c x) + b x is smallest at log(c / b) / c; one grid is off by 3e-4."""
    for c, b in ((1e4, 1e-2), (1e4, 1e-6)):
        where = math.log(c / b) / c
        found = best_lr(lambda x, c=c, b=b: jnp.exp(-c * x) + b * x, 1.0, num=num)
        assert found.value <= (math.exp(-c * where) + b * where) * (1 + 2e-5)
