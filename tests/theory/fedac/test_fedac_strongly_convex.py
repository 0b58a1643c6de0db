"""FedAc's bounds against NumPy, their limits, and what the prescribed rates are proven to do."""

import functools
import inspect

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from symbols import THESIS, by_symbols

from fedjax_sim.algorithms.fedac import coupling
from fedjax_sim.theory import fedac

CONSTANTS = {"L": 2.0, "mu": 0.05, "sigma": 0.7, "M": 6, "K": 5, "R": 40}
START = 3.0
CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-10)  # float64, some ten operations
FUNCTIONS = fedac.bound, fedac.prescribed_lr, fedac.tuned_bound
STRONG = {"regime": "strongly convex"}
fedac_i_bound, fedac_i_lr, tuned_fedac_i_bound = (
    by_symbols(function, THESIS, **STRONG, variant="I") for function in FUNCTIONS
)
fedac_ii_bound, fedac_ii_lr, tuned_fedac_ii_bound = (
    by_symbols(function, THESIS, **STRONG, variant="II") for function in FUNCTIONS
)
difference_growth = by_symbols(fedac.difference_growth, THESIS)
# For properties of many numbers: without checks, compiled once.
I_JIT, II_JIT = jax.jit(fedac_i_bound), jax.jit(fedac_ii_bound)


@st.composite
def constants_of(draw, quotient=False):
    found = {name: draw(st.integers(1, 1000)) for name in ("M", "K", "R")}
    names = ("L", "sigma", "potential", *(("Q",) if quotient else ()))
    for name in names:
        zero = name in ("sigma", "Q") and draw(st.integers(0, 5)) == 0
        found[name] = 0.0 if zero else 10 ** draw(st.floats(-2, 2))
    return found | {"mu": found["L"] * 10 ** draw(st.floats(-4, 0))}


def gammas(lr):
    """FedAc's own, and the ends of what the lemmas allow."""
    own = max(np.sqrt(lr / (CONSTANTS["mu"] * CONSTANTS["K"])), lr)
    return own, lr, np.sqrt(lr / CONSTANTS["mu"])


def test_gamma_is_the_algorithms(x64):
    """The bounds without gamma are for the gamma that the algorithm takes."""
    for lr in (1e-4, 0.1, 0.5):
        assert gammas(lr)[0] == coupling(lr, CONSTANTS["mu"], CONSTANTS["K"], "I").gamma
        CLOSE(gammas(lr)[2], coupling(lr, CONSTANTS["mu"], CONSTANTS["K"], "vanilla").gamma)


@pytest.mark.parametrize("lr", [0.01, 0.5])
def test_fedac_i_by_hand(x64, lr):
    L, mu, sigma, M, K, R = CONSTANTS.values()
    for gamma in gammas(lr):
        growth = (1 + 2 * gamma**2 * mu / lr) if gamma > lr else 1
        CLOSE(difference_growth(variant="I", lr=lr, gamma=gamma, mu=mu), growth)
        expected = np.exp(-gamma * mu * K * R) * START + lr**2 * L * sigma**2 / (2 * gamma * mu)
        expected += gamma * sigma**2 / (2 * M)
        expected += 7 * lr * gamma * L * K * sigma**2 * growth ** (2 * K)
        CLOSE(fedac_i_bound(potential=START, lr=lr, gamma=gamma, **CONSTANTS), expected)
    expected = np.exp(-max(lr * mu, np.sqrt(lr * mu / K)) * K * R) * START
    expected += lr ** (1 / 2) * sigma**2 / (2 * mu ** (1 / 2) * M * K ** (1 / 2))
    expected += lr * sigma**2 / (2 * M)
    expected += 390 * lr ** (3 / 2) * L * K ** (1 / 2) * sigma**2 / mu ** (1 / 2)
    expected += 7 * lr**2 * L * K * sigma**2
    CLOSE(fedac_i_bound(potential=START, lr=lr, **CONSTANTS), expected)


@pytest.mark.parametrize("R", [40, 4000])
def test_theorem_35_by_hand(x64, R):
    L, mu, sigma, M, K, _ = CONSTANTS.values()
    constants = {**CONSTANTS, "R": R}
    a = mu * M * K * R * START / sigma**2
    b = mu**2 * K * R**3 * START / (L * sigma**2)
    lr = np.log(np.e + min(a, b)) ** 2 / (mu * K * R**2)
    CLOSE(fedac_i_lr(potential=START, **constants), min(1 / L, lr))
    decay = min(np.exp(-mu * K * R / L), np.exp(-np.sqrt(mu * K / L) * R))
    expected = decay * START + 2 * sigma**2 / (mu * M * K * R) * np.log(np.e + a) ** 2
    expected += 400 * L * sigma**2 / (mu**2 * K * R**3) * np.log(np.e + b) ** 4
    CLOSE(tuned_fedac_i_bound(potential=START, **constants), expected)


@pytest.mark.parametrize("lr", [0.01, 0.5])
@pytest.mark.parametrize("Q", [None, 0.4])
def test_fedac_ii_by_hand(x64, lr, Q):
    L, mu, sigma, M, K, R = CONSTANTS.values()
    for gamma in gammas(lr):
        growth = (1 + gamma**2 * mu / lr) if gamma > lr else 1
        CLOSE(difference_growth(variant="II", lr=lr, gamma=gamma, mu=mu), growth)
        expected = np.exp(-gamma * mu * K * R / 3) * START
        expected += 3 * lr**2 * L * sigma**2 / (2 * gamma * mu * M) + gamma * sigma**2 / (2 * M)
        if Q is None:
            expected += 3 / mu * 4 * lr**2 * L**2 * K * sigma**2 * growth ** (2 * K)
        else:
            expected += 3 / mu * 44 * lr**4 * Q**2 * K**2 * sigma**4 * growth ** (4 * K)
        CLOSE(fedac_ii_bound(potential=START, lr=lr, gamma=gamma, **CONSTANTS, Q=Q), expected)
    expected = np.exp(-max(lr * mu, np.sqrt(lr * mu / K)) * K * R / 3) * START
    expected += lr ** (1 / 2) * sigma**2 / (mu ** (1 / 2) * M * K ** (1 / 2))
    if Q is None:
        expected += 100 * lr**2 * L**2 * K * sigma**2 / mu
    else:
        expected += 2 * lr ** (3 / 2) * L * K ** (1 / 2) * sigma**2 / (mu ** (1 / 2) * M)
        expected += np.e**9 * lr**4 * Q**2 * K**2 * sigma**4 / mu
    CLOSE(fedac_ii_bound(potential=START, lr=lr, **CONSTANTS, Q=Q), expected)


@pytest.mark.parametrize("R", [40, 4000])
@pytest.mark.parametrize("Q", [None, 0.4, 1e4])
def test_theorems_b12_and_b1_by_hand(x64, R, Q):
    L, mu, sigma, M, K, _ = CONSTANTS.values()
    constants = {**CONSTANTS, "R": R, "Q": Q}
    a = mu * M * K * R * START / sigma**2
    decay = min(np.exp(-mu * K * R / (3 * L)), np.exp(-np.sqrt(mu * K / L) * R / 3))
    expected = decay * START + 4 * sigma**2 / (mu * M * K * R) * np.log(np.e + a)
    if Q is None:
        b = mu**3 * K * R**4 * START / (L**2 * sigma**2)
        inner, printed = min(a, b), a + b
        expected += 8101 * L**2 * sigma**2 / (mu**3 * K * R**4) * np.log(np.e + b) ** 4
    else:
        c = mu**2 * M * K * R**3 * START / (L * sigma**2)
        d = mu**5 * K**2 * R**8 * START / (Q**2 * sigma**4)
        inner, printed = min(a, c, d), min(a + c, d)
        expected += 55 * L * sigma**2 / (mu**2 * M * K * R**3) * np.log(np.e + c) ** 3
        last = np.e**18 * Q**2 * sigma**4 / (mu**5 * K**2 * R**8) * np.log(np.e + d) ** 8
        expected += last
    CLOSE(tuned_fedac_ii_bound(potential=START, **constants), expected)
    front = 9 / (mu * K * R**2)
    CLOSE(fedac_ii_lr(potential=START, **constants), min(1 / L, front * np.log(np.e + inner) ** 2))
    # Theorems B.1 and B.12 print a sum for the minimum of the first two arguments: larger rates.
    assert fedac_ii_lr(potential=START, **constants) <= front * np.log(np.e + printed) ** 2


@pytest.mark.parametrize("case", ["I", "II", "II, Q"])
def test_prescribed_rates_do_what_is_proven(case):
    """bound(rate) <= tuned bound for any constants."""
    bound, rate, tuned = {
        "I": (fedac_i_bound, fedac_i_lr, tuned_fedac_i_bound),
        "II": (fedac_ii_bound, fedac_ii_lr, tuned_fedac_ii_bound),
        "II, Q": (fedac_ii_bound, fedac_ii_lr, tuned_fedac_ii_bound),
    }[case]
    bound, rate, tuned = map(jax.jit, (bound, rate, tuned))

    @given(constants_of(quotient=case == "II, Q"))
    def check(constants):
        with jax.enable_x64(True):
            value = bound(lr=rate(**constants), **constants)
            assert value <= (1 + 1e-9) * tuned(**constants)  # equality without noise, rounding

    check()


@pytest.mark.slow
@given(constants_of(quotient=True), st.floats(-4, 0))
def test_own_gamma_in_the_general_bounds(constants, exponent):
    """Lemmas 3.11, B.15 and B.3 are simplifications of the general ones: never below them."""
    Q = constants.pop("Q")
    with jax.enable_x64(True):
        lr = 10**exponent / constants["L"]
        gamma = max(np.sqrt(lr / (constants["mu"] * constants["K"])), lr)
        slack = 1 + 1e-9  # rounding: both have equal terms
        for bound, more in ((I_JIT, {}), (II_JIT, {}), (II_JIT, {"Q": Q})):
            general = bound(lr=lr, gamma=gamma, **constants, **more)
            assert general <= slack * bound(lr=lr, **constants, **more)


@given(
    constants_of(quotient=True),
    st.sampled_from(["L", "sigma", "potential", "Q", "M", "R"]),
    st.floats(1, 100),
)
def test_monotone(constants, name, factor):
    sign = -1 if name in ("M", "R") else 1
    changed = {**constants, name: constants[name] * factor}
    with jax.enable_x64(True):
        lr = 0.5 / changed["L"]
        for bound, dropped in (
            (I_JIT, ("Q",)),
            (II_JIT, ("Q",)),
            (II_JIT, ()),
        ):
            before, after = (
                bound(lr=lr, **{k: v for k, v in c.items() if k not in dropped})
                for c in (constants, changed)
            )
            assert sign * after >= sign * before * (1 - sign * 1e-12)


def test_limits(x64):
    quiet = {**CONSTANTS, "sigma": 0.0}
    L, mu, _, _, K, R = quiet.values()
    # Without noise the theorems are AGD's with gamma mu for its speed, at the largest rate.
    assert (
        fedac_i_lr(potential=START, **quiet)
        == fedac_ii_lr(potential=START, **quiet, Q=0.3)
        == 1 / L
    )
    CLOSE(tuned_fedac_i_bound(potential=START, **quiet), START * np.exp(-np.sqrt(mu * K / L) * R))
    CLOSE(
        fedac_i_bound(potential=START, lr=1 / L, **quiet),
        tuned_fedac_i_bound(potential=START, **quiet),
    )
    CLOSE(
        tuned_fedac_ii_bound(potential=START, **quiet, Q=0.3),
        fedac_ii_bound(potential=START, lr=1 / L, **quiet),
    )
    # K = 1: own gamma is the largest one, full acceleration.
    single = {**CONSTANTS, "K": 1}
    value = fedac_i_bound(potential=START, lr=0.5, **{**single, "sigma": 0.0})
    largest = fedac_i_bound(
        potential=START, lr=0.5, gamma=np.sqrt(0.5 / mu), **{**single, "sigma": 0.0}
    )
    CLOSE(value, largest)
    # Many clients: FedAc-II with Q = 0 has no noise left, FedAc-I its overhead.
    crowd = {**CONSTANTS, "M": 1e14}
    start = START * np.exp(-np.sqrt(0.01 * mu / K) * K * R / 3)
    CLOSE(fedac_ii_bound(potential=START, lr=0.01, **crowd, Q=0.0), start)
    assert fedac_i_bound(potential=START, lr=0.01, **crowd) > start


def test_gamma_trades_acceleration_for_stability(x64):
    """Without noise the largest gamma is best, with much of it the smallest."""
    low, high = (0.01, np.sqrt(0.01 / CONSTANTS["mu"]))
    for sigma, best in ((0.0, high), (10.0, low)):
        values = {
            gamma: fedac_i_bound(
                potential=START, lr=0.01, gamma=gamma, **{**CONSTANTS, "sigma": sigma}
            )
            for gamma in (low, high)
        }
        assert min(values, key=lambda gamma: float(values[gamma])) == best


@pytest.mark.slow
def test_large_runs_in_single_precision(allow_nans):
    """mu^5 K^2 R^8 is beyond float32; its logarithm is not."""
    huge = {**CONSTANTS, "K": 1000, "R": 10**6, "Q": 0.4}
    functions = (fedac_ii_lr, tuned_fedac_ii_bound)
    with jax.enable_x64(True):
        expected = [function(potential=START, **huge) for function in functions]
    found = [function(potential=START, **huge) for function in functions]
    np.testing.assert_allclose(found, expected, rtol=1e-4)  # e^x loses |x| units in the last place
    rounds = jnp.array([10.0, 1e3, 1e6])
    rest = {k: v for k, v in huge.items() if k != "R"}
    many = jax.vmap(lambda R: tuned_fedac_ii_bound(potential=START, R=R, **rest))(rounds)
    assert (np.diff(many) < 0).all()


def test_growth_beyond_single_precision():
    """(1 + 2)^2000 is infinite there, but not without noise, or with a constant Hessian."""
    long = {**CONSTANTS, "K": 1000, "R": 1, "lr": 0.01, "gamma": np.sqrt(0.01 / 0.05)}
    quiet = {**long, "sigma": 0.0}
    decay = np.sqrt(0.01 * 0.05) * 1000
    assert np.isinf(fedac_i_bound(potential=START, **long))
    assert np.isinf(fedac_ii_bound(potential=START, **long))
    assert np.isfinite(fedac_ii_bound(potential=START, **long, Q=0.0))
    for bound, speed in ((fedac_i_bound, 1), (fedac_ii_bound, 3)):
        expected = START * np.exp(-decay / speed)
        np.testing.assert_allclose(bound(potential=START, **quiet), expected, rtol=1e-5)  # float32


@pytest.mark.slow
@pytest.mark.parametrize("bound", [fedac_i_bound, fedac_ii_bound])
def test_conditions(allow_nans, bound):
    with pytest.warns(UserWarning, match="lr <= 1 / L and mu <= L does not hold"):
        assert np.isnan(bound(potential=START, lr=0.51, **CONSTANTS))
    with pytest.warns(UserWarning, match="mu <= L"):
        assert np.isnan(bound(potential=START, lr=0.1, **{**CONSTANTS, "mu": 2.1}))
    for gamma in (0.09, 1.42):  # lr and sqrt(lr / mu) = 1.414
        with pytest.warns(UserWarning, match=r"lr <= gamma <= sqrt\(lr / mu\)"):
            assert np.isnan(bound(potential=START, lr=0.1, gamma=gamma, **CONSTANTS))
        with pytest.warns(UserWarning, match=r"lr <= gamma <= sqrt\(lr / mu\)"):
            assert np.isnan(difference_growth(variant="I", lr=0.1, gamma=gamma, mu=0.05))
    tuned = tuned_fedac_i_bound if bound is fedac_i_bound else tuned_fedac_ii_bound
    with pytest.warns(UserWarning, match="mu <= L"):
        assert np.isnan(tuned(potential=START, **{**CONSTANTS, "mu": 2.1}))
    found = jax.vmap(lambda lr: bound(potential=START, lr=lr, **CONSTANTS))(jnp.array([0.5, 0.51]))
    assert np.isnan(found).tolist() == [False, True]


@pytest.mark.parametrize(
    ("function", "change", "match"),
    [
        (fedac_i_bound, {"lr": 0.1, "mu": 0.0}, "mu is 0.0; expected a positive number"),
        (fedac_i_bound, {"lr": 0.1, "gamma": -1.0}, "gamma is -1.0"),
        (fedac_i_lr, {"potential": 0.0}, "potential is 0.0"),
        (fedac_ii_bound, {"lr": 0.1, "Q": -1.0}, "Q is -1.0; expected a non-negative number"),
        (fedac_ii_lr, {"K": 0}, "local_steps is 0; expected a positive number"),
        (fedac_ii_lr, {"Q": -1.0}, "Q is -1.0"),
        (tuned_fedac_ii_bound, {"sigma": -0.1}, "sigma is -0.1"),
        (fedac_i_lr, {"regime": "smooth"}, "regime is 'smooth'; expected one of"),
        (fedac_i_lr, {"augmentation": 0.1}, "augmentation is 0.1; expected None for strongly"),
        (fedac_i_lr, {"regime": "convex"}, "potential is 3.0; expected None for convex"),
        (fedac_i_bound, {"lr": 0.1, "regime": "convex", "potential": None}, "augmentation is None"),
    ],
)
def test_bad_constants_are_named(function, change, match):
    with pytest.raises(ValueError, match=match):
        function(**{"potential": START, **CONSTANTS, **change})


def test_default_potential(x64):
    """Delta + mu / 2 B^2, FedAc-I's at the start and more than FedAc-II's."""
    distance = {"Delta": 1.1, "B": 1.5}
    for rate in (fedac_i_lr, fedac_ii_lr):
        expected = rate(potential=1.1 + 0.05 / 2 * 1.5**2, **CONSTANTS)
        assert rate(**CONSTANTS, **distance) == expected
    with pytest.raises(ValueError, match=r"constants\.Delta is None"):
        fedac_i_lr(**CONSTANTS)


@pytest.mark.parametrize("regime", ["strongly convex", "convex"])
@pytest.mark.parametrize("name", fedac.__all__)
def test_unknown_variant(name, regime):
    function = getattr(fedac, name)
    numbers = {"lr": 0.1, "gamma": 0.1, "M": 1, "K": 1, "R": 1, "regime": regime}
    taken = inspect.signature(function).parameters
    numbers = {k: v for k, v in numbers.items() if THESIS.get(k, k) in taken}
    with pytest.raises(ValueError, match="variant is 'III'"):
        by_symbols(function, THESIS)(variant="III", **numbers)
