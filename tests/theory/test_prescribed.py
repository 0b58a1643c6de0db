"""Prescribed rates: the arguments they are given, against direct calls."""

import math

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_sim.diagnostics.constants import Constants
from fedjax_sim.theory import (
    fedac,
    fedac_convex,
    fedac_ii,
    fedac_ii_convex,
    fedavg,
    fedavg_nonconvex,
    fedavg_strongly_convex,
    fedavg_third_order,
)
from fedjax_sim.theory.prescribed import arguments, optimal_lr

CONSTANTS = Constants(
    L=2.0, mu=0.1, sigma=0.5, sigma4=0.6, Q=0.3, G=4.0, zeta=0.7, zeta_star=0.4, B=1.5, Delta=1.1
)
SIZES = {"M": 10, "K": 8, "R": 50}
COMMON = {"L": 2.0, **SIZES}
POTENTIAL = 1.1 + 0.1 / 2 * 1.5**2


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (fedavg.convex_lr, {"sigma": 0.5, "zeta": 0.7, "B": 1.5}),
        # A theorem with Q asks that one sigma serve both moments.
        (fedavg_third_order.third_order_lr, {"Q": 0.3, "sigma": 0.6, "B": 1.5}),
        (fedavg_strongly_convex.strongly_convex_lr, {"mu": 0.1, "Q": 0.3, "sigma": 0.6, "B": 1.5}),
        (fedavg_nonconvex.nonconvex_lr, {"Q": 0.3, "sigma": 0.6, "G": 4.0, "Delta": 1.1}),
        (fedac.fedac_i_lr, {"potential": POTENTIAL, "mu": 0.1, "sigma": 0.5}),
        (fedac_ii.fedac_ii_lr, {"potential": POTENTIAL, "mu": 0.1, "sigma": 0.6, "Q": 0.3}),
    ],
)
def test_every_rule_gets_the_constants_it_names(rule, expected):
    assert optimal_lr(rule, CONSTANTS, **SIZES) == rule(**expected, **COMMON)


@pytest.mark.parametrize(
    ("rule", "augmentation", "more"),
    [
        (fedac_convex.fedac_i_lr, fedac_convex.fedac_i_augmentation, {"sigma": 0.5}),
        (fedac_ii_convex.fedac_ii_lr, fedac_ii_convex.fedac_ii_augmentation, {"Q": 0.3}),
    ],
)
def test_convex_fedac_has_its_augmentation_computed(rule, augmentation, more):
    arguments = {"sigma": 0.6, "B": 1.5, **COMMON, **more}
    found = optimal_lr(rule, CONSTANTS, **SIZES, augmentation=augmentation)
    assert found == rule(augmentation=augmentation(**arguments), **arguments)
    assert optimal_lr(rule, CONSTANTS, **SIZES, augmentation=0.2) == rule(
        augmentation=0.2, **arguments
    )


def test_given_arguments_replace_constants():
    found = optimal_lr(fedavg.convex_lr, CONSTANTS, **SIZES, zeta=0.0, L=3.0)
    expected = fedavg.convex_lr(L=3.0, sigma=0.5, zeta=0.0, B=1.5, **SIZES)
    assert found == expected
    # Without Q, FedAc-II's rate is another, and sigma bounds the variance only.
    found = optimal_lr(fedac_ii.fedac_ii_lr, CONSTANTS, **SIZES, Q=None)
    assert found == fedac_ii.fedac_ii_lr(POTENTIAL, mu=0.1, sigma=0.5, **COMMON)


@settings(max_examples=30)
@given(st.floats(0.0, 3.0), st.floats(0.0, 3.0), st.integers(1, 100), st.integers(1, 1000))
def test_bounds_without_a_rule_are_minimised(sigma, zeta, K, R):
    constants = CONSTANTS._replace(sigma=sigma, zeta=zeta)
    sizes = {"M": 10, "K": K, "R": R}
    found = float(optimal_lr(fedavg.convex_bound, constants, **sizes))

    def bound(lr):
        noise = lr * sigma**2 / 10
        drift = 4 * K * lr**2 * sigma**2 + 18 * K**2 * lr**2 * zeta**2
        return 1.5**2 / (2 * lr * K * R) + noise + 2.0 * drift

    limit = 1 / (4 * 2.0)
    best = scipy.optimize.minimize_scalar(
        lambda u: bound(math.exp(u)), bounds=(math.log(1e-7), math.log(limit)), method="bounded"
    )
    # Neighbours on the grid are a factor of 10^(1 / 50) apart; the bound grows with lr^2 at most.
    assert bound(found) <= best.fun * 10 ** (2 / 50) * (1 + 1e-5)
    assert found <= limit * (1 + 1e-5)


def test_the_limit_of_the_grid():
    quiet = CONSTANTS._replace(sigma=0.0, zeta=0.0)
    found = optimal_lr(fedavg.convex_bound, quiet, **SIZES, limit=0.125)
    np.testing.assert_allclose(found, 0.125, rtol=1e-6)  # the largest allowed is best
    with pytest.raises(ValueError, match=r"limit is 1e\+20; expected rates below it"):
        optimal_lr(fedavg.convex_bound, quiet, **SIZES, limit=1e20)


def test_missing_constants_are_named():
    with pytest.raises(ValueError, match="convex_lr needs L, sigma, B, zeta; expected them among"):
        optimal_lr(fedavg.convex_lr, Constants(), **SIZES)
    with pytest.raises(ValueError, match="convex_lr needs R; expected it among"):
        optimal_lr(fedavg.convex_lr, CONSTANTS, M=1, K=1)
    # Beside Q, an unknown fourth moment is an unknown sigma.
    with pytest.raises(ValueError, match="third_order_lr needs sigma"):
        optimal_lr(fedavg_third_order.third_order_lr, CONSTANTS._replace(sigma4=math.nan), **SIZES)
    with pytest.raises(ValueError, match="fedac_i_lr needs potential, mu"):
        optimal_lr(fedac.fedac_i_lr, CONSTANTS._replace(mu=math.nan), **SIZES)
    # Q may be unknown where a rule has a form without it.
    found = arguments(fedavg_nonconvex.nonconvex_lr, CONSTANTS._replace(Q=math.nan), SIZES)
    assert "Q" not in found
    with pytest.raises(ValueError, match=r"convex_lr has no arguments \['rounds'\]"):
        optimal_lr(fedavg.convex_lr, CONSTANTS, **SIZES, rounds=3)
