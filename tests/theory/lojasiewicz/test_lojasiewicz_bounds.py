"""The Lojasiewicz bounds against NumPy, their conditions, and what they are proven to dominate."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from symbols import LOJASIEWICZ, by_symbols

from experiments.lojasiewicz import lemmas
from fedjax_sim.theory import lojasiewicz

CLOSE = functools.partial(np.testing.assert_allclose, rtol=1e-12)  # float64, some ten operations
GAP = 3.0
SIZES = {"L": 2.0, "sigma": 0.7, "M": 6, "zeta": 0.3}
CONSTANTS = {**SIZES, "mu": 0.4}
linear_bound, sublinear_bound, drift_bound, gradient_lower_bound, recursion_bound, round_bound = (
    by_symbols(function, LOJASIEWICZ, zeta_mean=0.0)
    for function in (
        lojasiewicz.linear_bound,
        lojasiewicz.sublinear_bound,
        lemmas.drift_bound,
        lemmas.gradient_lower_bound,
        lojasiewicz.recursion_bound,
        lemmas.round_bound,
    )
)
exponent = by_symbols(lojasiewicz.exponent, LOJASIEWICZ)


def numpy_round(lr, L, sigma, M, K, zeta):
    """A, c zeta^2 and n as the appendix prints them; Equation 35 for one step."""
    eta, H = lr, K
    if H == 1:
        return eta * (1 - L * eta), 0.0, L * eta**2 * sigma**2 / M
    c = 2 * eta**3 * H * (H - 1) ** 2 * L**2 + 16 * eta**4 * H**2 * (H - 1) ** 2 * L**3
    noise = (
        4 * eta**2 * H * L / M
        + 2 * eta**3 * H * (H - 1) * L**2
        + 16 * eta**4 * H**2 * (H - 1) * L**3
    )
    return eta * H / 2 - c, c * zeta**2, noise * sigma**2


def numpy_recursion(gap, alpha, mu, R, *, zeta, **rest):
    descent, spread, noise = numpy_round(zeta=zeta, **rest)
    found = [gap]
    for _ in range(R):
        s = found[-1]
        found.append(s - descent * (mu * s**alpha - zeta**2) + spread + noise)
    return found


@pytest.mark.parametrize("K", [1, 2, 7])
def test_round_and_drift(x64, K):
    """As displayed, before rounding and after; the drift of one step is 0."""
    lr = 0.9 / (18 * SIZES["L"] * K)
    descent, spread, noise = numpy_round(lr=lr, K=K, **SIZES)
    CLOSE(
        round_bound(gap=GAP, squared_gradient=1.7, lr=lr, K=K, **SIZES),
        GAP - descent * 1.7 + spread + noise,
    )
    L, sigma, M, zeta = SIZES.values()
    rounded = lr * K * zeta**2 + 4 * lr**2 * K * L * sigma**2 / M
    rounded += 3 * lr**3 * K * (K - 1) * L**2 * sigma**2 - lr * K / 4 * 1.7
    CLOSE(
        round_bound(gap=GAP, squared_gradient=1.7, lr=lr, K=K, rounded=True, **SIZES), GAP + rounded
    )
    drift = 4 * lr**2 * (K - 1) ** 2 * (1.7 + zeta**2) + 4 * lr**2 * (K - 1) * sigma**2
    found = drift_bound(squared_gradient=1.7, lr=lr, L=L, sigma=sigma, K=K, zeta=zeta)
    CLOSE(found, drift, atol=0)
    CLOSE(gradient_lower_bound(gap=GAP, alpha=1.5, mu=0.4, zeta=0.3), 0.4 * 3.0**1.5 - 0.09)


@pytest.mark.parametrize("K", [1, 5])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_recursion_against_a_loop(x64, K, alpha):
    lr = 1 / (18 * SIZES["L"] * K)
    found = recursion_bound(gap=GAP, alpha=alpha, lr=lr, K=K, R=60, **CONSTANTS)
    expected = numpy_recursion(GAP, alpha, 0.4, 60, lr=lr, K=K, **SIZES)
    assert found.shape == (61,)
    CLOSE(found, expected)  # the map contracts: errors do not grow


def test_linear_bound(x64):
    """Theorem F.2 with the 1 / mu that it lacks in print, and its proof's case of one step."""
    L, sigma, M, zeta, mu = CONSTANTS.values()
    for K, R in ((1, 0), (1, 30), (4, 30)):
        lr = 1 / (18 * L * K)
        expected = (1 - lr * K * mu / 4) ** R * GAP + 8 * zeta**2 / mu
        expected += (16 * lr * L * sigma**2 / M + 12 * lr**2 * (K - 1) * L**2 * sigma**2) / mu
        if K == 1:
            expected = (1 - lr * mu / 2) ** R * GAP + zeta**2 / mu
            expected += 2 * L * lr * sigma**2 / (mu * M)
        CLOSE(linear_bound(gap=GAP, lr=lr, K=K, R=R, **CONSTANTS), expected)


def test_printed_noise_of_theorem_f2_is_not_where_the_recursion_settles(x64):
    """Printed without 1 / mu, the noise floor is below the fixed point of the proof's recursion."""
    L, sigma, M, K, mu, lr = 2.0, 0.7, 6, 4, 0.4, 1 / (18 * 2.0 * 4)
    gap = 0.0
    for _ in range(20000):  # Equation 39 with ||grad F||^2 = mu gap, zeta = 0
        gap = float(round_bound(gap=gap, squared_gradient=mu * gap, lr=lr, L=L, sigma=sigma, M=M,
                                K=K, rounded=True))  # fmt: skip
        if gap > 16 * lr * L * sigma**2 / M + 12 * lr**2 * (K - 1) * L**2 * sigma**2:
            break
    else:
        pytest.fail("the recursion stays below the printed floor")
    run = {"lr": lr, "L": L, "sigma": sigma, "M": M, "K": K, "R": 1e9, "mu": mu}
    assert gap < linear_bound(gap=0.0, **run)


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_sublinear_bound(x64, alpha):
    """Lemma F.3 and Theorem F.4, with the first term of their proofs and the drift's noise."""
    L, sigma, M, zeta, mu = CONSTANTS.values()
    p, R, a = 1 / (alpha - 1), 30, alpha - 1
    for K in (1, 4):
        lr = 1 / (18 * L * K)
        if K == 1:
            first = GAP / (lr * mu * R * a * GAP**a / 2 + 1) ** p
            # Lemma F.3 prints half of kappa: a larger bound.
            assert first < GAP / (lr * mu * R * a * GAP**a / 4 + 1) ** p
            parts = zeta**2 / mu, 2 * L * lr * sigma**2 / (M * mu)
        else:
            first = GAP / (lr * K * mu / 4 * R * a * GAP**a + 1) ** p
            noise = 16 * L * lr / M + 12 * lr**2 * (K - 1) * L**2
            parts = 8 * zeta**2 / mu, noise * sigma**2 / mu
        expected = first + 2 * sum(part ** (1 / alpha) for part in parts)
        CLOSE(sublinear_bound(gap=GAP, alpha=alpha, lr=lr, K=K, R=R, **CONSTANTS), expected)


def test_exponent_one_is_the_limit(x64):
    """Without noise: (1 + x)^(-1 / (alpha - 1)) tends to exp(-kappa R), 1e-4 away from 1."""
    common = {"mu": 0.4, "lr": 0.01, "L": 2.0, "sigma": 0.0, "M": 6, "K": 2, "R": 400}
    near = sublinear_bound(gap=GAP, alpha=1 + 1e-6, **common)
    np.testing.assert_allclose(near, GAP * np.exp(-0.01 * 2 * 0.4 / 4 * 400), rtol=1e-4)


# Constants that some function has: mu s^(alpha - 1) <= 2 L at the gap, so the map grows there.
@st.composite
def settings_of(draw):
    exponents = st.floats(-2, 2)
    L, gap, share = (10 ** draw(exponents) for _ in range(3))
    alpha = draw(st.sampled_from([1.0, 1.2, 1.5, 2.0]))
    mu = 2 * L * min(share, 1.0) / gap ** (alpha - 1)
    K = draw(st.integers(1, 20))
    return {
        "gap": gap,
        "alpha": alpha,
        "mu": mu,
        "lr": draw(st.floats(0.01, 1)) / (18 * L * K),
        "L": L,
        "sigma": draw(st.sampled_from([0.0, 0.1, 1.0])) * np.sqrt(L * gap),
        "zeta": draw(st.sampled_from([0.0, 0.1])) * np.sqrt(mu * gap**alpha),
        "M": draw(st.integers(1, 50)),
        "K": K,
    }


@functools.partial(jax.jit, static_argnames="alpha")
def both_bounds(constants, alpha):
    """The recursion after 0 .. 20 rounds, and the closed form; compiled once an exponent."""
    rest = {**constants, "R": jnp.arange(21.0)}
    closed = linear_bound(**rest) if alpha == 1 else sublinear_bound(alpha=alpha, **rest)
    return recursion_bound(alpha=alpha, **{**constants, "R": 20}), closed


def both_at(found):
    with jax.enable_x64(True), jax.debug_nans(False):
        constants = {k: jnp.asarray(v, float) for k, v in found.items() if k != "alpha"}
        return jax.tree.map(np.asarray, both_bounds(constants, found["alpha"]))


@pytest.mark.slow
@settings(max_examples=100)
@given(settings_of())
def test_closed_forms_dominate_the_recursion(found):
    """They solve a recursion that is larger in every round.  1e-9 is for rounding."""
    below, above = both_at(found)
    # The recursion may leave where it holds, and C be too large for a closed form, by noise alone.
    if found["alpha"] == 1 or found["sigma"] == 0:
        assert np.isfinite(below).all()
        assert np.isfinite(above).all()
    defined = ~(np.isnan(below) | np.isnan(above))
    assert (below <= above * (1 + 1e-9))[defined].all()


@settings(max_examples=100)
@given(settings_of(), st.sampled_from(["sigma", "zeta", "gap", "M"]))
def test_monotone_in_the_constants(found, name):
    """More noise, spread or distance is not better; more clients are not worse."""
    more = {**found, name: found[name] * (2 if name != "M" else 0.5)}
    for low, high in zip(both_at(found), both_at(more), strict=True):
        defined = ~(np.isnan(low) | np.isnan(high))
        assert (low <= high * (1 + 1e-9))[defined].all()


def test_rounding_only_loosens(x64):
    """Equation 39 is above the display before it, for rates up to the limit and any gradient that
    the model can have, ||grad F||^2 <= 2 L (F - F*)."""
    for K in (2, 3, 30):
        for share in (0.01, 0.5, 1.0):
            for squared in (0.0, 1.0, 2 * SIZES["L"] * GAP):
                lr = share / (18 * SIZES["L"] * K)
                exact = round_bound(gap=GAP, squared_gradient=squared, lr=lr, K=K, **SIZES)
                assert exact <= round_bound(
                    gap=GAP, squared_gradient=squared, lr=lr, K=K, rounded=True, **SIZES
                )


def test_reference_values(x64):
    """The tilted quadratic and the power 4, computed independently, to the digits given."""
    tilted = {"mu": 1.6, "lr": 1 / 216, "L": 1.2, "sigma": 0.5, "M": 8, "K": 10, "zeta": 0.8}
    found = [float(linear_bound(gap=4.583232, R=R, **tilted)) for R in (0, 10, 50, 200)]
    np.testing.assert_allclose(found, [7.785, 7.004, 5.002, 3.311], atol=5e-4)
    rounds = np.array([10, 50, 200])
    found = recursion_bound(gap=4.583232, alpha=1.0, R=200, **tilted)[rounds]
    np.testing.assert_allclose(found, [3.29, 1.06, 0.41], atol=5e-3)
    drift = drift_bound(squared_gradient=3.0**2, lr=1 / 216, L=1.2, sigma=0.5, K=10, zeta=0.8)
    np.testing.assert_allclose(drift, 0.0671, atol=5e-4)
    power = {"alpha": 1.5, "mu": 8.0, "lr": 1 / 13.5, "L": 6.75, "sigma": 0.0, "M": 1, "K": 1}
    R = np.array([1, 10, 100, 1000])
    # Lemma F.3 as printed has half of kappa, 8 / (4 * 13.5).
    found = 1.265625 / (8 / (4 * 13.5) * R * 0.5 * 1.265625**0.5 + 1) ** 2
    np.testing.assert_allclose(found, [1.0784, 0.3765, 0.01453, 1.78e-4], rtol=3e-3)
    found = sublinear_bound(gap=1.265625, R=R, **power)
    np.testing.assert_allclose(found, [0.9298, 0.1780, 4.06e-3, 4.50e-5], rtol=3e-3)


@pytest.mark.parametrize("K", [1, 4])
def test_where_conditions_fail(x64, allow_nans, K):
    """At the limit a number, above it NaN with a warning that names the condition."""
    rest = {**CONSTANTS, "K": K}
    L = 2.0
    loose = 1 / (2 * L) if K == 1 else 1 / (18 * L * K)
    recursion = 1 / L if K == 1 else 1 / (18 * L * K)
    drift = functools.partial(drift_bound, squared_gradient=1.0, L=L, sigma=0.7, K=K)
    one = functools.partial(round_bound, gap=GAP, squared_gradient=1.0, K=K, **SIZES)
    linear = functools.partial(linear_bound, gap=GAP, R=3, **rest)
    sublinear = functools.partial(sublinear_bound, gap=GAP, alpha=1.5, R=3, **rest)
    iterated = functools.partial(recursion_bound, gap=GAP, alpha=1.5, R=3, **rest)
    cases = [
        (drift, 1 / (2 * L * K), r"lr <= 1 / \(2 L K\) does not"),
        (one, recursion, r"lr <= 1 / \(18 L K\), or 1 / L if K = 1 does not"),
        (functools.partial(one, rounded=True), 1 / (18 * L * K), r"lr <= 1 / \(18 L K\) does not"),
        (linear, loose, r"or 1 / \(2 L\) if K = 1, and mu <= 2 L"),
        (sublinear, loose, r"and kappa C\^\(alpha - 1\) <= 1"),
        (iterated, recursion, r"A mu alpha s\^\(alpha - 1\) <= 1"),
    ]
    for bound, limit, text in cases:
        assert np.isfinite(bound(lr=limit)).all()
        with pytest.warns(UserWarning, match=text):
            assert np.isnan(bound(lr=1.001 * limit)).all()
    with pytest.warns(UserWarning, match="mu <= 2 L"):
        assert np.isnan(linear_bound(gap=GAP, **{**rest, "mu": 4.1}, lr=1e-3, R=3))


def test_where_maps_fall(x64, allow_nans):
    """NaN from the first round on that starts where the map falls: A mu alpha s = 0.25 * 2 s."""
    common = {"alpha": 2.0, "mu": 1.0, "lr": 0.5, "L": 1.0, "sigma": 0.0, "M": 1, "K": 1, "R": 3}
    with pytest.warns(UserWarning, match="A mu alpha"):
        found = recursion_bound(gap=jnp.array([1.9, 2.1]), **common)
    assert np.isfinite(found[:, 0]).all()
    assert np.isnan(found[:, 1]).tolist() == [False, True, True, True]
    # Spread that lifts the gap: 0.1 + 0.25 (zeta^2 - s^2) passes 2 in the first round.
    with pytest.warns(UserWarning, match="A mu alpha"):
        found = recursion_bound(gap=0.1, zeta=4.0, **common)
    assert np.isnan(found).tolist() == [False, False, True, True]
    # C = 4 at kappa = 1/4 is the last level that a step does not pass twice.
    for zeta, defined in ((4.0, True), (4.01, False)):
        call = functools.partial(sublinear_bound, gap=1.0, **common, zeta=zeta)
        if defined:
            assert np.isfinite(call())
        else:
            with pytest.warns(UserWarning, match="kappa C"):
                assert np.isnan(call())


@pytest.mark.slow
def test_vmap_and_jit(x64):
    """Over any constants, K included, without warnings inside jit."""
    K = jnp.array([1, 3, 9])
    common = {**CONSTANTS, "lr": 0.001}
    for bound in (
        functools.partial(linear_bound, gap=GAP, R=5),
        functools.partial(sublinear_bound, gap=GAP, alpha=1.5, R=5),
        functools.partial(recursion_bound, gap=GAP, alpha=1.5, R=5),
    ):
        many = jax.jit(jax.vmap(lambda K, bound=bound: bound(K=K, **common)))(K)
        CLOSE(many, [bound(K=k, **common) for k in (1, 3, 9)])
    derivative = jax.grad(
        lambda sigma: linear_bound(gap=GAP, K=3, R=5, **{**common, "sigma": sigma})
    )
    assert derivative(0.7) > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exponent(alpha=0.9), r"lojasiewicz_alpha is 0.9; expected a number in \[1, 2\]"),
        (
            lambda: exponent(alpha=1.0, above_one=True),
            r"lojasiewicz_alpha is 1.0; expected a number in \(1, 2\]",
        ),
        (lambda: exponent(alpha=np.array([1.5, 2.1])), "alpha is"),
        (
            lambda: recursion_bound(gap=1.0, alpha=1, lr=0.1, K=1, R=0, **CONSTANTS),
            "rounds is 0; expected",
        ),
        (
            lambda: sublinear_bound(gap=1.0, alpha=1.0, lr=0.1, K=1, R=1, **CONSTANTS),
            r"lojasiewicz_alpha is 1.0; expected a number in \(1, 2\]",
        ),
        (
            lambda: linear_bound(gap=-1.0, lr=0.1, K=1, R=1, **CONSTANTS),
            "gap is -1.0; expected a non-negative number",
        ),
        (
            lambda: drift_bound(squared_gradient=1.0, lr=0.1, L=1.0, sigma=1.0, K=0),
            "local_steps is 0; expected a positive number",
        ),
        (
            lambda: linear_bound(gap=1.0, lr=0.1, K=1, R=1, **SIZES),
            r"constants\.lojasiewicz_mu is None",
        ),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_many_rounds_at_a_small_rate_in_single_precision():
    """1 - kappa would be rounded: 1 instead of 0.47 for the rate 1e-8 and 1e8 rounds."""
    sizes = {"L": 1.0, "sigma": 0.0, "M": 1, "zeta": 0.0, "mu": 1.5}
    for lr, K, R in ((1e-6, 1, 10**6), (1e-8, 1, 10**8), (1e-7, 3, 10**7)):
        kappa = lr * 1.5 / 2 if K == 1 else lr * K * 1.5 / 4
        exact = np.exp(R * np.log1p(-kappa))
        bound = linear_bound(gap=GAP, lr=lr, K=K, R=R, **sizes)
        np.testing.assert_allclose(bound, GAP * exact, rtol=1e-5)
