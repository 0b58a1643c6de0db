"""FedAc on merely convex objectives: bounds against NumPy, and the theorems from the lemmas."""

import functools

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given
from symbols import THESIS, by_symbols

from fedjax_sim.theory import fedac

CONSTANTS = {"L": 2.0, "sigma": 0.7, "M": 6, "K": 5, "R": 400, "B": 3.0}
CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-10)  # float64, some ten operations


FUNCTIONS = fedac.bound, fedac.prescribed_lr, fedac.tuned_bound
(
    (fedac_i_bound, fedac_i_lr, tuned_fedac_i_bound),
    (
        fedac_ii_bound,
        fedac_ii_lr,
        tuned_fedac_ii_bound,
    ),
) = (
    [by_symbols(function, THESIS, regime="convex", variant=variant) for function in FUNCTIONS]
    for variant in ("I", "II")
)
fedac_i_augmentation, fedac_ii_augmentation = (
    by_symbols(fedac.prescribed_augmentation, THESIS, variant=variant) for variant in ("I", "II")
)
# For properties of many numbers: without checks, compiled once.
I_JIT, II_JIT = jax.jit(fedac_i_bound), jax.jit(fedac_ii_bound)
STRONGLY_I_JIT = jax.jit(by_symbols(fedac.bound, THESIS, regime="strongly convex", variant="I"))
STRONGLY_II_JIT = jax.jit(by_symbols(fedac.bound, THESIS, regime="strongly convex", variant="II"))


@st.composite
def constants_of(draw, least, quotient):
    """K R at least ``least``, as the theorems ask."""
    found = {"M": draw(st.integers(1, 1000)), "K": draw(st.integers(1, 1000))}
    found["R"] = draw(st.integers(-(-least // found["K"]), 10**4))
    for name in ("L", "sigma", "B", *(("Q",) if quotient else ())):
        zero = name in ("sigma", "Q") and draw(st.integers(0, 5)) == 0
        found[name] = 0.0 if zero else 10 ** draw(st.floats(-2, 2))
    return found


@pytest.mark.parametrize("sigma", [0.7, 30.0, 0.01])
@pytest.mark.parametrize("lam", [0.01, 1.0])
def test_fedac_i_by_hand(x64, sigma, lam):
    constants = {**CONSTANTS, "sigma": sigma}
    L, _, M, K, R, B = CONSTANTS.values()
    entries = [
        sigma / (M ** (1 / 2) * K ** (1 / 2) * R ** (1 / 2) * B),
        L ** (1 / 3) * sigma ** (2 / 3) / (K ** (1 / 3) * R * B ** (2 / 3)),
        2 * L / (K * R**2) * np.log(np.e**2 + K * R**2) ** 2,
    ]
    CLOSE(fedac_i_augmentation(**constants), max(entries))
    a, b = lam * L * M * K * R * B**2 / sigma**2, lam**2 * K * R**3 * B**2 / sigma**2
    rates = [
        1 / (L + lam),
        1 / (lam * K * R**2) * np.log(np.e + min(a, b)) ** 2,
        L ** (1 / 3) * B ** (2 / 3) / (lam ** (2 / 3) * K ** (2 / 3) * R * sigma ** (2 / 3)),
        L ** (1 / 4) * B ** (1 / 2) / (lam ** (3 / 4) * K ** (3 / 4) * R * sigma ** (1 / 2)),
    ]
    CLOSE(fedac_i_lr(augmentation=lam, **constants), min(rates))
    lr = 0.1
    expected = lam * B**2 / 2 + L * B**2 / 2 * np.exp(-np.sqrt(lr * lam * K * R**2))
    expected += lr ** (1 / 2) * sigma**2 / (2 * lam ** (1 / 2) * M * K ** (1 / 2))
    expected += lr * sigma**2 / (2 * M)
    expected += 390 * lr ** (3 / 2) * L * K ** (1 / 2) * sigma**2 / lam ** (1 / 2)
    expected += 7 * lr**2 * L * K * sigma**2
    expected += 390 * lr ** (3 / 2) * lam ** (1 / 2) * K ** (1 / 2) * sigma**2
    expected += 7 * lr**2 * lam * K * sigma**2
    CLOSE(fedac_i_bound(lr=lr, augmentation=lam, **constants), expected)
    root = np.sqrt(M * K * R)
    expected = 2 * L * B**2 / (K * R**2) * np.log(np.e**2 + K * R**2) ** 2
    expected += 2 * sigma * B / root * np.log(np.e**2 + L * root * B / sigma) ** 2
    log = np.log(np.e**4 + L ** (2 / 3) * K ** (1 / 3) * R * B ** (2 / 3) / sigma ** (2 / 3))
    scale = L ** (1 / 3) * sigma ** (2 / 3) * B ** (4 / 3) / (K ** (1 / 3) * R)
    CLOSE(tuned_fedac_i_bound(**constants), expected + 1005 * scale * log**4)


@pytest.mark.parametrize("sigma", [0.7, 30.0, 0.01])
@pytest.mark.parametrize("lam", [0.01, 1.0])
@pytest.mark.parametrize("Q", [None, 0.4, 1e4])
def test_fedac_ii_by_hand(x64, sigma, lam, Q):
    constants = {**CONSTANTS, "sigma": sigma, "Q": Q}
    L, _, M, K, R, B = CONSTANTS.values()
    root, lr = np.sqrt(M * K * R), 0.1
    entries = [sigma / (root * B), 18 * L / (K * R**2) * np.log(np.e**2 + K * R**2) ** 2]
    ratios = [lam * L * M * K * R * B**2 / sigma**2]
    expected = lam * B**2 / 2 + L * B**2 / 2 * np.exp(-np.sqrt(lr * lam * K * R**2 / 9))
    expected += lr ** (1 / 2) * sigma**2 / (lam ** (1 / 2) * M * K ** (1 / 2))
    tuned = 10 * L * B**2 / (K * R**2) * np.log(np.e**2 + K * R**2) ** 2
    tuned += 5 * sigma * B / root * np.log(np.e + L * root * B / sigma)
    rate = L ** (1 / 3) * B ** (2 / 3) / (lam ** (2 / 3) * K ** (2 / 3) * sigma ** (2 / 3))
    if Q is None:
        entries.append(L ** (1 / 2) * sigma ** (1 / 2) / (K ** (1 / 4) * R * B ** (1 / 2)))
        ratios.append(lam**3 * K * R**4 * B**2 / (L * sigma**2))
        rate /= R ** (2 / 3)
        expected += 200 * lr**2 * L**2 * K * sigma**2 / lam + 200 * lr**2 * lam * K * sigma**2
        log = np.log(np.e**4 + L ** (1 / 2) * K ** (1 / 4) * R * B ** (1 / 2) / sigma ** (1 / 2))
        scale = L ** (1 / 2) * sigma ** (1 / 2) * B ** (3 / 2) / (K ** (1 / 4) * R)
        tuned += 16411 * scale * log**4
    else:
        third = (L * sigma**2 / (M * K * B**2)) ** (1 / 3) / R
        entries += [third, (Q * sigma**2 / (K * R**4 * B)) ** (1 / 3)]
        ratios += [
            lam**2 * M * K * R**3 * B**2 / sigma**2,
            lam**5 * L * K**2 * R**8 * B**2 / (Q**2 * sigma**4),
        ]
        rate *= M ** (1 / 3) / R
        expected += 2 * lr ** (3 / 2) * L * K ** (1 / 2) * sigma**2 / (lam ** (1 / 2) * M)
        expected += 2 * lr ** (3 / 2) * lam ** (1 / 2) * K ** (1 / 2) * sigma**2 / M
        expected += np.e**9 * lr**4 * Q**2 * K**2 * sigma**4 / lam
        log = np.log(np.e**3 + (L**2 * M * K * B**2 / sigma**2) ** (1 / 3) * R)
        tuned += 139 * (L * sigma**2 * B**4 / (M * K)) ** (1 / 3) / R * log**3
        log = np.log(np.e**8 + (L**3 * K * R**4 * B / (Q * sigma**2)) ** (1 / 3))
        tuned += np.e**19 * (Q * sigma**2 * B**5 / (K * R**4)) ** (1 / 3) * log**8
    CLOSE(fedac_ii_augmentation(**constants), max(entries))
    main = 9 / (lam * K * R**2) * np.log(np.e + min(ratios)) ** 2
    CLOSE(fedac_ii_lr(augmentation=lam, **constants), min(1 / (L + lam), main, rate))
    CLOSE(fedac_ii_bound(lr=lr, augmentation=lam, **constants), expected)
    CLOSE(tuned_fedac_ii_bound(**constants), tuned)


@pytest.mark.parametrize("case", ["I", "II", "II, Q"])
def test_every_entry_of_the_rates(x64, case):
    """Each entry of the minimum is the smallest for some of 20000 random constants."""
    rng = np.random.default_rng(0)
    L, sigma, B, Q, lam = 10 ** rng.uniform(-3, 3, size=(5, 20000))
    M, K, R = np.floor(10 ** rng.uniform(0, 3.5, size=(3, 20000)))
    constants = {"L": L, "sigma": sigma, "M": M, "K": K, "R": R, "B": B}
    ratios = [lam * L * M * K * R * B**2 / sigma**2]
    cube = (L * B**2 / (lam**2 * K**2 * sigma**2)) ** (1 / 3)
    if case == "I":
        ratios.append(lam**2 * K * R**3 * B**2 / sigma**2)
        others = [cube / R, (L * B**2 / (lam**3 * K**3 * sigma**2)) ** (1 / 4) / R]
        found = fedac_i_lr(augmentation=lam, **constants)
    elif case == "II":
        ratios.append(lam**3 * K * R**4 * B**2 / (L * sigma**2))
        others = [cube / R ** (2 / 3)]
        found = fedac_ii_lr(augmentation=lam, **constants)
    else:
        ratios.append(lam**2 * M * K * R**3 * B**2 / sigma**2)
        ratios.append(lam**5 * L * K**2 * R**8 * B**2 / (Q**2 * sigma**4))
        others = [cube * M ** (1 / 3) / R]
        found = fedac_ii_lr(augmentation=lam, **constants, Q=Q)
    front = (1 if case == "I" else 9) / (lam * K * R**2)
    mains = [front * np.log(np.e + ratio) ** 2 for ratio in ratios]
    entries = np.stack([1 / (L + lam), *mains, *others])
    CLOSE(found, entries.min(axis=0))
    assert set(entries.argmin(axis=0)) == set(range(len(entries)))


@pytest.mark.parametrize("case", ["I", "II", "II, Q"])
def test_theorems_follow_from_the_lemmas(case):
    """The bound at the prescribed augmentation and rate is at most what the theorem says."""
    augmentation, rate, bound, tuned = {
        "I": (fedac_i_augmentation, fedac_i_lr, fedac_i_bound, tuned_fedac_i_bound),
        "II": (fedac_ii_augmentation, fedac_ii_lr, fedac_ii_bound, tuned_fedac_ii_bound),
    }[case[:2].rstrip(",")]
    augmentation, rate, bound, tuned = map(jax.jit, (augmentation, rate, bound, tuned))

    @given(constants_of(24 if case == "I" else 1000, "Q" in case))
    def check(constants):
        with jax.enable_x64(True):
            lam = augmentation(**constants)
            lr = rate(augmentation=lam, **constants)
            value = bound(lr=lr, augmentation=lam, **constants)
            assert value <= (1 + 1e-9) * tuned(**constants)

    check()


@given(constants_of(1, True), st.floats(-3, 0), st.floats(-3, 0))
def test_lemmas_are_the_strongly_convex_ones_of_the_augmented_objective(constants, low, share):
    """Potential at most L B^2 / 2 at the start, error at most the potential + lambda B^2 / 2."""
    Q = constants.pop("Q")
    with jax.enable_x64(True):
        L, B = constants["L"], constants["B"]
        lam = L * 10**low
        lr = 10**share / (L + lam)
        inner = {k: v for k, v in constants.items() if k != "B"} | {"L": L + lam, "mu": lam}
        start, extra = L * B**2 / 2, lam * B**2 / 2
        for convex, strongly, more in (
            (I_JIT, STRONGLY_I_JIT, {}),
            (II_JIT, STRONGLY_II_JIT, {}),
            (II_JIT, STRONGLY_II_JIT, {"Q": Q}),
        ):
            value = convex(lr=lr, augmentation=lam, **constants, **more)
            # Its exponent is one of the two in the maximum, (L + lambda)^2 <= 2 (L^2 + lambda^2).
            assert strongly(potential=start, lr=lr, **inner, **more) + extra <= value * (1 + 1e-9)


def test_limits(x64):
    quiet = {**CONSTANTS, "sigma": 0.0}
    L, _, _, K, R, B = quiet.values()
    accelerated = L * B**2 / (K * R**2) * np.log(np.e**2 + K * R**2) ** 2
    CLOSE(tuned_fedac_i_bound(**quiet), 2 * accelerated)
    CLOSE(tuned_fedac_ii_bound(**quiet), 10 * accelerated)
    CLOSE(fedac_i_augmentation(**quiet), 2 * accelerated / B**2)
    assert (
        fedac_i_lr(augmentation=0.5, **quiet)
        == fedac_ii_lr(augmentation=0.5, **quiet, Q=0.3)
        == 1 / (L + 0.5)
    )
    # Many clients and quadratics: FedAc-II has no noise left.
    crowd = {**CONSTANTS, "M": 1e60, "Q": 0.0}
    np.testing.assert_allclose(tuned_fedac_ii_bound(**crowd), 10 * accelerated, rtol=1e-9)


def test_conditions(allow_nans):
    short = {**CONSTANTS, "K": 1, "R": 23}
    with pytest.warns(UserWarning, match="K R >= 24 does not hold"):
        assert np.isnan(tuned_fedac_i_bound(**short))
    assert np.isfinite(tuned_fedac_i_bound(**{**short, "R": 24}))
    with pytest.warns(UserWarning, match="K R >= 1000 does not hold"):
        assert np.isnan(tuned_fedac_ii_bound(**{**short, "R": 999}))
    assert np.isfinite(tuned_fedac_ii_bound(**{**short, "R": 1000}))
    for bound in (fedac_i_bound, fedac_ii_bound):
        with pytest.warns(UserWarning, match=r"lr <= 1 / \(L \+ augmentation\)"):
            assert np.isnan(bound(lr=0.5, augmentation=0.1, **CONSTANTS))


@pytest.mark.parametrize(
    ("function", "change", "match"),
    [
        (fedac_i_augmentation, {"B": 0.0}, "B is 0.0; expected a positive number"),
        (fedac_i_lr, {"augmentation": -0.1}, "augmentation is -0.1"),
        (fedac_ii_lr, {"augmentation": 0.1, "Q": -1.0}, "Q is -1.0; expected a non-negative"),
        (tuned_fedac_ii_bound, {"sigma": -0.1}, "sigma is -0.1"),
    ],
)
def test_bad_constants_are_named(function, change, match):
    with pytest.raises(ValueError, match=match):
        function(**{**CONSTANTS, **change})
