"""PrivUnit: constants, pure epsilon, and the law of the vector that is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special

from fedjax_sim.wrappers.privacy import priv_unit, priv_unit_constants
from fedjax_sim.wrappers.privacy.priv_unit import _height

CASES = [(2, 1.0), (3, 4.0), (10, 0.1), (100, 10.0), (1000, 10.0), (10**6, 10.0), (1000, 100.0)]


@pytest.mark.parametrize(
    ("dimension", "gamma", "kappa"), [(100, 0.2994, 3.3357), (1000, 0.0965, 10.3465)]
)
def test_reference_constants_at_epsilon_10(dimension, gamma, kappa):
    constants = priv_unit_constants(dimension, 10.0)
    assert constants.gamma == pytest.approx(gamma, abs=5e-5)
    assert constants.kappa == pytest.approx(kappa, abs=5e-5)


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize(("dimension", "epsilon"), [*CASES, (2, 0.1), (2, 5.0), (2, 12.0)])
def test_the_ratio_of_the_densities_is_at_most_e_to_epsilon(dimension, epsilon, tight):
    gamma, p, cap, kappa = priv_unit_constants(dimension, epsilon, tight=tight)
    alpha = (dimension - 1) / 2
    assert cap == pytest.approx(scipy.special.betainc(alpha, alpha, (1 - gamma) / 2), rel=1e-9)
    loss = np.log(p / cap) - np.log((1 - p) / (1 - cap))
    assert 0 < loss <= epsilon * (1 + 1e-9)
    if tight:
        assert loss == pytest.approx(epsilon, rel=1e-6)
        assert kappa <= priv_unit_constants(dimension, epsilon).kappa


@pytest.mark.parametrize(("dimension", "epsilon"), [(2, 1.0), (3, 4.0), (100, 10.0)])
def test_kappa_is_the_inverse_of_the_mean_height(dimension, epsilon):
    gamma, p, cap, kappa = priv_unit_constants(dimension, epsilon)
    alpha = (dimension - 1) / 2

    def moment(low, high):  # of <V, v> for uniform V, with <V, v> = sin(angle)
        def integrand(angle):
            return np.sin(angle) * np.cos(angle) ** (dimension - 2)

        value, _ = scipy.integrate.quad(integrand, np.arcsin(low), np.arcsin(high))
        return value / (2.0 ** (dimension - 2) * scipy.special.beta(alpha, alpha))

    mean = p * moment(gamma, 1) / cap + (1 - p) * moment(-1, gamma) / (1 - cap)
    assert 1 / mean == pytest.approx(kappa, rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [3, 10**6])
def test_heights_invert_the_distribution_function(dimension):
    constants = priv_unit_constants(dimension, 10.0)
    alpha, cap = (dimension - 1) / 2, constants.cap_mass
    draws = np.geomspace(1e-4, 15, 60).astype(np.float32)
    inside, outside = (
        np.asarray(_height(jnp.asarray(draws), jnp.array(which), constants, dimension), float)
        for which in (True, False)
    )
    tail = scipy.special.betainc(alpha, alpha, (1 - inside) / 2)  # P(<V, v> >= height)
    below = scipy.special.betainc(alpha, alpha, (1 + outside) / 2)
    below_one = inside < 0.99  # heights near 1 are rounded to single precision
    np.testing.assert_allclose(np.log(tail[below_one] / cap), -draws[below_one], atol=3e-4)
    np.testing.assert_allclose(below, (1 - cap) * np.exp(-draws), atol=2e-5)
    assert inside.min() >= constants.gamma * (1 - 1e-5)
    assert outside.max() <= constants.gamma * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [2, 6])
def test_mean_and_squared_error(dimension):
    """Over 100,000 draws; bounds are five standard errors."""
    randomizer, clip, draws = priv_unit(2.0, 2.0), 2.0, 100_000
    kappa = priv_unit_constants(dimension, 2.0).kappa
    short = np.zeros(dimension, np.float32)
    short[:2] = 1.2, -0.5
    uploads = np.stack([short, 2 * short / 1.3, 10 * short, 0 * short, np.nan * short])
    keys = jax.random.split(jax.random.key(0), draws)
    through = jax.vmap(jax.vmap(randomizer.through, (0, None)), (None, 0))
    sent = np.asarray(jax.jit(through)(keys, uploads), float)
    np.testing.assert_allclose(np.linalg.norm(sent, axis=-1), clip * kappa, rtol=1e-5)
    boundary = uploads[1]
    means = np.stack([short, boundary, boundary, 0 * short, 0 * short])
    error = clip * kappa / np.sqrt(draws)
    np.testing.assert_allclose(sent.mean(1), means, atol=5 * error)
    # C^2 (kappa^2 - 1) on the sphere of radius C.
    squared = ((sent[1] - boundary) ** 2).sum(-1)
    limit = 5 * squared.std() / np.sqrt(draws)
    assert squared.mean() == pytest.approx(clip**2 * (kappa**2 - 1), abs=limit)


@pytest.mark.parametrize(
    "entry",
    [1e-37, 1e30, *(pytest.param(x, marks=pytest.mark.slow) for x in (1e-30, 1e-22, 1.0, 1e20))],
)
def test_uploads_whose_squares_leave_single_precision(entry):
    """The length tells nothing about the upload, and the direction is right."""
    upload = jnp.zeros(100, jnp.float32).at[:3].set(jnp.array([1.0, -0.5, 0.25]) * entry)
    sent = priv_unit(1.0, 10.0).through(jax.random.key(3), upload)
    expected = priv_unit_constants(100, 10.0).kappa
    assert np.linalg.norm(np.asarray(sent, float)) == pytest.approx(expected, rel=1e-6)
    # At a large epsilon what is sent is almost surely in the cap around the upload or its opposite.
    sent = np.asarray(priv_unit(1.0, 100.0).through(jax.random.key(3), upload), float)
    direction = np.asarray(upload, float) / entry
    cosine = sent @ direction / np.linalg.norm(sent) / np.linalg.norm(direction)
    assert abs(cosine) >= priv_unit_constants(100, 100.0).gamma * (1 - 1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: priv_unit(0.0, 1.0), "clip is 0.0; expected a positive number"),
        (lambda: priv_unit(1.0, 0.0), "epsilon is 0.0; expected a positive number"),
        (lambda: priv_unit_constants(1, 1.0), "dimension is 1; expected at least 2 entries"),
        (lambda: jax.eval_shape(lambda e: priv_unit(1.0, e), 1.0), "expected a concrete number"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_epsilon_without_a_cap_is_refused():
    with pytest.raises(ValueError, match="epsilon is 1e-06; expected a larger one for 10 entries"):
        priv_unit_constants(10, 1e-6)


def test_epsilon_may_be_a_concrete_scalar_of_jax():
    sent = [
        priv_unit(1.0, epsilon).through(jax.random.key(0), jnp.ones(10))
        for epsilon in (2.0, jnp.array(2.0), np.float32(2.0))
    ]
    np.testing.assert_array_equal(sent[0], sent[1])
    np.testing.assert_array_equal(sent[0], sent[2])
