"""FedAvg's bounds against NumPy, their limits, and what the prescribed rates are proven to do."""

import functools
import itertools
import re

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from symbols import THESIS, by_symbols

from fedjax_sim.theory import fedavg
from fedjax_sim.theory.step_sizes import best_lr

SIZES = {"L": 2.0, "sigma": 0.7, "M": 6, "K": 5, "R": 40}
CONVEX = {**SIZES, "B": 3.0}
HESSIAN = {**CONVEX, "Q": 0.4}
NONCONVEX = {**SIZES, "G": 1.1, "Delta": 3.0}
CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-10)  # float64, some ten operations


def regime(name, **defaults):
    """Bound, rate and tuned bound of a regime, as functions of the thesis's symbols."""
    functions = fedavg.bound, fedavg.prescribed_lr, fedavg.tuned_bound
    return [by_symbols(function, THESIS, regime=name, **defaults) for function in functions]


convex_bound, convex_lr, tuned_convex_bound = CONVEX_REGIME = regime("convex", zeta=0.0)
third_order_bound, third_order_lr, tuned_third_order_bound = THIRD_ORDER = regime("third order")
strongly_convex_bound, strongly_convex_lr, tuned_strongly_convex_bound = STRONG = regime(
    "strongly convex"
)
nonconvex_bound, nonconvex_lr, tuned_nonconvex_bound = GENERAL = regime("nonconvex")
shadow_bound, drift_bound, fourth_moment_bound, gradient_gap_bound = (
    by_symbols(function, THESIS)
    for function in (
        fedavg.shadow_bound,
        fedavg.drift_bound,
        fedavg.fourth_moment_bound,
        fedavg.gradient_gap_bound,
    )
)

# bound, rate, tuned bound, and the constants they have besides L, sigma, M, K, R
FAMILIES = {
    "convex": (*CONVEX_REGIME, ["B", "zeta"]),
    "third_order": (*THIRD_ORDER, ["B", "Q"]),
    "strongly_convex": (*STRONG, ["B", "Q", "mu"]),
    "nonconvex": (*GENERAL, ["G", "Delta"]),
    "nonconvex_third_order": (*GENERAL, ["G", "Delta", "Q"]),
}


def power_of_ten(low, high):
    return st.floats(low, high).map(lambda e: 10.0**e)


@st.composite
def constants_of(draw, names):
    found = {name: draw(st.integers(1, 1000)) for name in ("M", "K", "R")}
    for name in ("L", "sigma", *names):
        zero = name in ("sigma", "zeta", "Q") and draw(st.integers(0, 5)) == 0
        found[name] = 0.0 if zero else draw(power_of_ten(-2, 2))
    if "mu" in found:
        found["mu"] = found["L"] * draw(power_of_ten(-4, 0))
    if "G" in found:  # sigma <= G
        found["G"] = max(found["G"], found["sigma"])
    return found


@pytest.mark.parametrize("zeta", [0.0, 0.3])
def test_convex_by_hand(x64, zeta):
    L, sigma, M, K, R, B = CONVEX.values()
    lr = 0.03
    drift = 4 * K * lr**2 * sigma**2 + 18 * K**2 * lr**2 * zeta**2
    CLOSE(drift_bound(lr=lr, L=L, sigma=sigma, K=K, zeta=zeta), drift)
    # The two lemmas put together are the theorem.
    expected = B**2 / (2 * lr * K * R) + lr * sigma**2 / M + L * drift
    CLOSE(convex_bound(lr=lr, **CONVEX, zeta=zeta), expected)
    CLOSE(shadow_bound(drift=drift, lr=lr, **CONVEX), expected)
    entries = [
        1 / (4 * L),
        M ** (1 / 2) * B / (K ** (1 / 2) * R ** (1 / 2) * sigma),
        B ** (2 / 3) / (K ** (2 / 3) * R ** (1 / 3) * L ** (1 / 3) * sigma ** (2 / 3)),
    ]
    if zeta:
        entries.append(B ** (2 / 3) / (K * R ** (1 / 3) * L ** (1 / 3) * zeta ** (2 / 3)))
    CLOSE(convex_lr(**CONVEX, zeta=zeta), min(entries))
    tuned = 2 * L * B**2 / (K * R) + 3 / 2 * sigma * B / np.sqrt(M * K * R)
    tuned += 9 / 2 * L ** (1 / 3) * sigma ** (2 / 3) * B ** (4 / 3) / K ** (1 / 3) / R ** (2 / 3)
    tuned += 37 / 2 * L ** (1 / 3) * zeta ** (2 / 3) * B ** (4 / 3) / R ** (2 / 3)
    CLOSE(tuned_convex_bound(**CONVEX, zeta=zeta), tuned)


def test_every_entry_of_the_convex_rate_can_be_the_smallest(x64):
    base = {"L": 1.0, "sigma": 0.0, "M": 1, "K": 2, "R": 50, "B": 1.0}
    assert convex_lr(**base) == 0.25
    # The noise of the mean of one client, the drift's of many, and heterogeneity.
    noise = {**base, "sigma": 100.0, "L": 1e-3}
    CLOSE(convex_lr(**noise), 1 / (10 * 100))
    many = {**base, "sigma": 100.0, "M": 10**6}
    CLOSE(convex_lr(**many), (2**2 * 50 * 100**2) ** (-1 / 3))
    CLOSE(convex_lr(**base, zeta=10.0), (2**3 * 50 * 10**2) ** (-1 / 3))


def test_third_order_by_hand(x64):
    L, sigma, M, K, R, B, Q = HESSIAN.values()
    lr = 0.05
    fourth = 192 * lr**4 * K**2 * sigma**4
    CLOSE(fourth_moment_bound(lr=lr, L=L, sigma=sigma, K=K), fourth)
    CLOSE(gradient_gap_bound(fourth_moment=fourth, Q=Q), 48 * lr**4 * Q**2 * K**2 * sigma**4)
    expected = 3 * B**2 / (lr * K * R) + lr * sigma**2 / M + 96 * lr**5 * Q**2 * K**3 * R * sigma**4
    CLOSE(third_order_bound(lr=lr, **HESSIAN), expected)
    entries = [
        1 / (4 * L),
        np.sqrt(M / (K * R)) * B / sigma,
        B ** (1 / 3) / (K ** (2 / 3) * R ** (1 / 3) * Q ** (1 / 3) * sigma ** (2 / 3)),
    ]
    CLOSE(third_order_lr(**HESSIAN), min(entries))
    large = {**HESSIAN, "Q": 400.0}  # the last entry
    CLOSE(third_order_lr(**large), entries[2] / 10)
    assert entries[2] / 10 < entries[0]
    tuned = 12 * L * B**2 / (K * R) + 4 * sigma * B / np.sqrt(M * K * R)
    tuned += 99 * Q ** (1 / 3) * sigma ** (2 / 3) * B ** (5 / 3) / (K ** (1 / 3) * R ** (2 / 3))
    CLOSE(tuned_third_order_bound(**HESSIAN), tuned)


def test_printed_rate_of_theorem_219(x64, allow_nans):
    """Theorem 2.19 prints 1 / (2 L); its proof uses rates up to 1 / (4 L)."""
    quiet = {**HESSIAN, "sigma": 0.0}
    assert third_order_lr(**quiet) == 1 / 8
    with pytest.warns(UserWarning, match=r"lr <= 1 / \(4 L\) does not hold"):
        assert np.isnan(third_order_bound(lr=1 / 4, **quiet))


def test_strongly_convex_by_hand(x64):
    L, sigma, M, K, R, B, Q = HESSIAN.values()
    mu, lr = 0.3, 0.05
    constants = {**HESSIAN, "mu": mu}
    expected = np.exp(-lr * mu * K * R / 2) * B**2 / lr + lr * sigma**2 / M
    expected += 192 * lr**4 * Q**2 * K**2 * sigma**4 / mu
    CLOSE(strongly_convex_bound(lr=lr, **constants), expected)
    a = mu**2 * M * K**2 * R**2 * B**2 / sigma**2
    b = mu**6 * K**3 * R**5 * B**2 / (Q**2 * sigma**4)
    log = np.log(np.e + min(a, b))
    CLOSE(strongly_convex_lr(**constants), min(1 / (4 * L), 2 / (mu * K * R) * log))
    long = {**constants, "R": 40000}  # where the second entry is the smallest
    b = mu**2 * M * K**2 * 40000**2 * B**2 / sigma**2
    CLOSE(strongly_convex_lr(**long), 2 / (mu * K * 40000) * np.log(np.e + b))
    b = mu**6 * K**3 * R**5 * B**2 / (Q**2 * sigma**4)
    tuned = 4 * L * B**2 * np.exp(-mu * K * R / (8 * L))
    tuned += 3 * sigma**2 / (mu * M * K * R) * np.log(np.e + a)
    tuned += 3073 * Q**2 * sigma**4 / (mu**5 * K**2 * R**4) * np.log(np.e + b) ** 4
    CLOSE(tuned_strongly_convex_bound(**constants), tuned)


@pytest.mark.parametrize("Q", [None, 0.4])
def test_nonconvex_by_hand(x64, Q):
    L, sigma, M, K, R, G, delta = NONCONVEX.values()
    lr = 0.05
    drift = 8 * lr**2 * L**2 * G**2 * K**2
    entry = delta ** (1 / 3) / (K * R ** (1 / 3) * L ** (2 / 3) * G ** (2 / 3))
    last = L ** (2 / 3) * G ** (2 / 3) * delta ** (2 / 3) / R ** (2 / 3)
    if Q is not None:
        drift = 8 * lr**4 * Q**2 * G**4 * K**4
        entry = delta ** (1 / 5) / (K * R ** (1 / 5) * Q ** (2 / 5) * G ** (4 / 5))
        last = Q ** (2 / 5) * G ** (4 / 5) * delta ** (4 / 5) / R ** (4 / 5)
    start, noise = 2 * delta / (lr * K * R), L * lr * sigma**2 / M
    c = 1 if Q is None else 2
    CLOSE(nonconvex_bound(lr=lr, **NONCONVEX, Q=Q), start + drift + c * noise)
    second = np.sqrt(delta * M) / (sigma * np.sqrt(L * K * R))
    CLOSE(nonconvex_lr(**NONCONVEX, Q=Q), min(1 / L, second, entry))
    assert entry < min(1 / L, second)
    middle = (2 + c) * sigma * np.sqrt(L * delta / (M * K * R))
    tuned = 2 * L * delta / (K * R) + middle + 10 * last
    CLOSE(tuned_nonconvex_bound(**NONCONVEX, Q=Q), tuned)


def test_noise_of_theorem_222_is_attained():
    """F = L x^2 / 2 at the largest rate 1 / L, with exact moments of the clients' mean model.

    The measured mean of the squared gradients has the noise of the printed bound at every step but
    the first, so that half of it would be too small and twice as much is not needed.
    """
    L, sigma, M, K, R = SIZES.values()
    lr, square = 1 / L, 3.0**2
    delta = L * square / 2
    gradients = []
    for _ in range(K * R):  # quadratics: the mean model's recursion does not depend on K
        gradients.append(L**2 * square)
        square = (1 - lr * L) ** 2 * square + lr**2 * sigma**2 / M
    measured, start = np.mean(gradients), 2 * delta / (lr * K * R)
    noise = nonconvex_bound(lr=lr, **SIZES, G=0.0, Delta=delta) - start
    np.testing.assert_allclose(noise, L * lr * sigma**2 / M, rtol=1e-5)  # single precision
    assert measured <= start + noise
    assert measured > start + 0.99 * noise


def test_a_noisy_step_descends_as_theorem_222_needs():
    """E F(x - lr g) <= F(x) - lr / 2 F'(x)^2 + L lr^2 sigma^2 / (2 M), F = 1 - cos, L = 1.

    The expectation is over all signs of M clients' noise.  Twice the inequality over lr, summed,
    is the printed bound; the proof's own step has L for L / 2 in the last term.
    """
    M, x = 3, np.linspace(-np.pi, np.pi, 201)
    signs = np.array(list(itertools.product((-1, 1), repeat=M))).mean(axis=1)
    shares = []
    for lr, sigma in itertools.product((0.01, 0.3, 1.0), (0.1, 1.0)):
        moved = x[:, None] - lr * (np.sin(x)[:, None] + sigma * signs)
        excess = (1 - np.cos(moved)).mean(axis=1) - (1 - np.cos(x)) + lr / 2 * np.sin(x) ** 2
        shares.append(np.max(excess) / (lr**2 * sigma**2 / (2 * M)))
    assert max(shares) <= 1 + 1e-9
    assert max(shares) > 0.99  # the term cannot be smaller


@functools.partial(jax.jit, static_argnums=0)
def tuned_values(family, constants):
    """The bound at the prescribed rate, the tuned bound, the bound at the best rate of a grid."""
    bound, rate, tuned, _ = FAMILIES[family]
    largest = 1 / (constants["L"] * (1 if "Delta" in constants else 4))
    best = best_lr(lambda lr: bound(lr=lr, **constants), largest, decades=12.0, num=601)
    return bound(lr=rate(**constants), **constants), tuned(**constants), best.value


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_prescribed_rates_do_what_is_proven(family, allow_nans):
    """bound(rate) <= tuned bound for any constants, and the grid finds a rate as good."""

    @given(constants_of(FAMILIES[family][-1]))
    def check(constants):
        with jax.enable_x64(True):
            value, tuned, best = tuned_values(family, constants)
            assert value <= (1 + 1e-9) * tuned  # equality without noise, rounding
            # Neighbours of the second grid are 1.6e-4 apart, and terms grow as lr^5 at most.
            assert best <= 1.001 * value

    check()


@functools.partial(jax.jit, static_argnums=0)
def values_at(family, constants, lr):
    bound, _, tuned, _ = FAMILIES[family]
    return bound(lr=lr, **constants), tuned(**constants)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_monotone(family, allow_nans):
    """More noise, curvature or distance never lowers a bound; more clients never raise it."""
    _, rate, _, names = FAMILIES[family]
    rate = jax.jit(rate)
    grow = [n for n in ("L", "sigma", *names) if n not in ("mu",)]

    @given(constants_of(names), st.sampled_from([*grow, "M"]), power_of_ten(0, 2))
    def check(constants, name, factor):
        with jax.enable_x64(True):
            changed = {**constants, name: constants[name] * factor}
            sign = -1 if name == "M" else 1
            # A rate that both allow.
            lr = np.minimum(rate(**constants), 1 / (4 * changed["L"]))
            pairs = zip(*(values_at(family, c, lr) for c in (constants, changed)), strict=True)
            for kind, (before, after) in zip(("bound", "tuned"), pairs, strict=True):
                # x log(e + a / x)^p need not grow with x
                if kind == "bound" or family != "strongly_convex":
                    assert sign * after >= sign * before * (1 - sign * 1e-12)

    check()


def test_limits(x64):
    quiet = {**CONVEX, "sigma": 0.0}
    # Gradient descent of K R steps: nothing else is left.
    CLOSE(convex_bound(lr=0.1, **quiet), 9 / (2 * 0.1 * 200))
    # Infinitely many clients: the noise that is left is the drift's.
    crowd = {**CONVEX, "M": 1e12}
    value = convex_bound(lr=0.1, **crowd) - convex_bound(lr=0.1, **quiet)
    np.testing.assert_allclose(value, 2 * 4 * 5 * 0.1**2 * 0.49, rtol=1e-9)
    # Many rounds: what is left is the heterogeneity, 18 K^2 lr^2 L zeta^2.
    late = {**quiet, "R": 1e14}
    CLOSE(convex_bound(lr=0.1, **late, zeta=0.3), 18 * 25 * 0.01 * 2 * 0.09)
    # One local step has no drift, but the bound has the term.
    single = {**CONVEX, "K": 1}
    CLOSE(convex_bound(lr=0.1, **single), 9 / (2 * 0.1 * 40) + 0.1 * 0.49 / 6 + 8 * 0.01 * 0.49)
    # Quadratics: no cost of local steps at all in Theorem 2.19.
    flat = {**HESSIAN, "Q": 0.0}
    per_round, merged = {**flat, "K": 1, "R": 200}, {**flat, "K": 200, "R": 1}
    CLOSE(third_order_bound(lr=0.1, **per_round), third_order_bound(lr=0.1, **merged))


def test_vmap_over_rates_and_large_runs_in_single_precision(allow_nans):
    lrs = jnp.array([0.01, 0.125, 0.126])
    found = jax.vmap(lambda lr: convex_bound(lr=lr, **CONVEX, zeta=0.1))(lrs)
    assert np.isnan(found).tolist() == [False, False, True]
    single = [convex_bound(lr=float(lr), **CONVEX, zeta=0.1) for lr in lrs[:2]]
    np.testing.assert_allclose(found[:2], single, rtol=1e-6)
    # mu^6 K^3 R^5 and the like are beyond float32; their logarithms are not.
    huge = {**HESSIAN, "mu": 0.3, "K": 1000, "R": 10**8, "sigma": 1e-3}
    with jax.enable_x64(True):
        expected = strongly_convex_lr(**huge), tuned_strongly_convex_bound(**huge)
    found = strongly_convex_lr(**huge), tuned_strongly_convex_bound(**huge)
    np.testing.assert_allclose(found, expected, rtol=1e-4)  # e^x loses |x| units in the last place


@pytest.mark.parametrize(
    ("bound", "constants", "text"),
    [
        (convex_bound, CONVEX, "lr <= 1 / (4 L)"),
        (functools.partial(shadow_bound, drift=0.0), CONVEX, "lr <= 1 / (4 L)"),
        (drift_bound, {"L": 2.0, "sigma": 1.0, "zeta": 0.0, "K": 1}, "lr <= 1 / (4 L)"),
        (fourth_moment_bound, {"L": 2.0, "sigma": 1.0, "K": 1}, "lr <= 1 / (4 L)"),
        (third_order_bound, HESSIAN, "lr <= 1 / (4 L)"),
        (strongly_convex_bound, {**HESSIAN, "mu": 0.3}, "lr <= 1 / (4 L) and mu <= L"),
        (nonconvex_bound, NONCONVEX, "lr <= 1 / L"),
    ],
)
def test_largest_rates(allow_nans, bound, constants, text):
    largest = 0.5 if bound is nonconvex_bound else 0.125
    assert np.isfinite(bound(lr=largest, **constants))
    with pytest.warns(UserWarning, match=re.escape(f"{text} does not hold")):
        assert np.isnan(bound(lr=1.01 * largest, **constants))


def test_strong_convexity_above_smoothness(allow_nans):
    for bound in (functools.partial(strongly_convex_bound, lr=0.01), tuned_strongly_convex_bound):
        with pytest.warns(UserWarning, match="mu <= L"):
            assert np.isnan(bound(**HESSIAN, mu=2.1))


@pytest.mark.parametrize(
    ("function", "constants", "change", "match"),
    [
        (convex_bound, {"lr": 0.1, **CONVEX}, {"B": 0.0}, "B is 0.0; expected a positive number"),
        (convex_lr, CONVEX, {"sigma": -1.0}, "sigma is -1.0; expected a non-negative number"),
        (tuned_convex_bound, CONVEX, {"zeta": -0.1}, "zeta is -0.1"),
        (third_order_lr, HESSIAN, {"Q": None}, "constants.Q is None; expected a number"),
        (strongly_convex_lr, {**HESSIAN, "mu": 0.1}, {"mu": 0}, "mu is 0"),
        (nonconvex_bound, {"lr": 0.1, **NONCONVEX}, {"Q": -1.0}, "Q is -1.0"),
        (gradient_gap_bound, {"fourth_moment": 1.0}, {"Q": -2}, "Q is -2"),
        (convex_bound, {"lr": 0.1, **CONVEX}, {"M": 0}, "clients is 0; expected a positive"),
        (convex_bound, {"lr": 0.1, **CONVEX}, {"regime": "smooth"}, "regime is 'smooth'; expected"),
    ],
)
def test_bad_constants_are_named(function, constants, change, match):
    with pytest.raises(ValueError, match=match):
        function(**{**constants, **change})
