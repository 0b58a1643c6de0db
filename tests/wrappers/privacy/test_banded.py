"""Banded matrix factorisations: noise, sensitivity, timelines that they accept."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs
from fedjax_sim import privacy
from fedjax_sim.timelines import Sampling
from fedjax_sim.wrappers.privacy.banded import sensitivity
from fedjax_sim.wrappers.privacy.noise import normal

REFERENCE = [0.794875, 0.438433, 0.329274, 0.259862]  # n = 16, four bands


def lower_triangular(c, n):
    """C of coefficients, or the prefix sums for c = 1."""
    c = np.concatenate([c, np.zeros(n - len(c))])
    return np.array([[c[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def square_root(n):
    """Coefficients of the square root of the prefix sums, binom(2 k, k) / 4^k."""
    return np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, n))])


@pytest.mark.parametrize(
    ("law", "factor"),
    [
        pytest.param(privacy.banded, 2.0, id="banded"),  # 4 visits
        pytest.param(privacy.amplified_banded, 1.0, id="amplified", marks=pytest.mark.slow),
    ],
)
def test_noise_solves_the_triangular_system(law, factor):
    """Exact, by linearity: y = C^-1 xi, so the covariance is s^2 C^-1 C^-T."""
    like, rounds = {"a": jnp.zeros(5), "b": jnp.zeros((2, 2))}, jnp.arange(16)
    law = law(REFERENCE, 16)

    @jax.jit
    def draws():
        keys = jax.random.split(jax.random.key(2), 16)

        def step(state, round):
            drawn, state = law.draw(round[0], state, 1.5, round[1], like)
            return state, drawn

        drawn = jax.lax.scan(step, law.init(like), (keys, rounds))[1]
        return drawn, jax.vmap(lambda key: normal(key, 1.5, like))(keys)

    drawn, independent = (
        np.concatenate([x["a"], x["b"].reshape(16, 4)], axis=1).astype(float) for x in draws()
    )
    solved = np.linalg.solve(lower_triangular(REFERENCE, 16), factor * independent)
    np.testing.assert_allclose(drawn, solved, atol=2e-5)


@pytest.mark.slow
def test_one_visit_of_the_identity_is_independent_noise():
    noise, like = privacy.banded([1.0], 16, visits=1), jnp.zeros(3)
    key, t = jax.random.key(0), jnp.array(0)
    drawn, _ = noise.draw(key, (), 1.5, t, like)
    plain, _ = privacy.independent().draw(key, (), 1.5, t, like)
    np.testing.assert_array_equal(drawn, plain)


def test_closed_form_of_full_triangles():
    c = square_root(8)
    np.testing.assert_allclose(c[:4], [1, 0.5, 0.375, 0.3125])
    inverse = np.linalg.inv(lower_triangular(c, 8))[:, 0]
    np.testing.assert_allclose(inverse[:4], [1, -0.5, -0.125, -0.0625])
    assert sensitivity(c, 8, separation=8, visits=1) ** 2 == pytest.approx(1.718379, abs=1e-6)


@pytest.mark.parametrize(
    ("c", "separation", "visits"),
    [(square_root(8), 3, 8), (square_root(3), 3, 3), (square_root(3), 2, 2), ([1.0, 1.0], 1, 8)],
)
def test_sensitivity_is_the_largest_over_all_patterns_of_visits(c, separation, visits):
    matrix, worst = lower_triangular(c, 8), 0.0
    for pattern in itertools.product([0, 1], repeat=8):
        gaps = np.diff(np.flatnonzero(pattern))
        if sum(pattern) <= visits and (gaps >= separation).all():
            worst = max(worst, np.linalg.norm(matrix @ np.array(pattern)))
    found = sensitivity(c, 8, separation=separation, visits=visits)
    assert found == pytest.approx(worst, rel=1e-9)


@pytest.mark.slow
def test_optimal_coefficients():
    c = privacy.banded_coefficients(16, 4)
    np.testing.assert_allclose(c, REFERENCE, atol=1e-6)
    b = lower_triangular(np.ones(16), 16) @ np.linalg.inv(lower_triangular(c, 16))
    assert (b**2).sum(1).mean() == pytest.approx(3.754023, abs=1e-6)
    assert sensitivity(c, 16, separation=4, visits=4) ** 2 == pytest.approx(4, abs=1e-6)


def test_without_amplification_the_event_is_one_gaussian():
    timeline = fs.timelines.cyclic(16, num_clients=8, cohort_size=2, num_steps=1)
    mechanism = privacy.banded(REFERENCE, 16).mechanism(2.0, timeline, 8)
    assert (mechanism.event.noise_multiplier, mechanism.adjacency) == (2.0, "zero_out")


def in_turns(groups, probability=0.2):
    """A timeline with the sampling rule of grouped_bernoulli."""
    rule = Sampling("poisson", 400 * probability / groups, 100, 0, probability, groups=groups)
    return dataclasses.replace(fs.timelines.cyclic(15, 400, 100, 1), sampling=rule)


def test_amplified_noise_counts_one_draw_per_turn_of_a_group():
    mechanism = privacy.amplified_banded(REFERENCE, 16).mechanism(2.0, in_turns(4), 400)
    event = mechanism.event
    assert (event.count, event.event.sampling_probability) == (4, 0.2)
    assert event.event.event.noise_multiplier == 2.0
    assert mechanism.extra_delta == pytest.approx(15 * 0.8**99)  # in a round of any group


def test_an_empty_round_of_another_group_costs_orthogonality():
    """Visits in rounds 0 and 4 are three rows apart if round 2 is empty, and the bands overlap."""
    matrix = lower_triangular(REFERENCE, 16)
    assert np.linalg.norm(matrix[:, 0] + matrix[:, 4]) ** 2 == pytest.approx(2, abs=1e-5)
    assert np.linalg.norm(matrix[:, 0] + matrix[:, 3]) ** 2 > 2.4


@pytest.mark.parametrize(
    ("noise", "timeline", "message"),
    [
        ({}, fs.timelines.cyclic(16, 6, 2, 1), "returns after 3 rounds; expected at least sep"),
        ({"visits": 3}, fs.timelines.cyclic(16, 8, 2, 1), "client with 4 visits; expected at most"),
        ({}, fs.timelines.cyclic(17, 8, 2, 1), "17 rounds with a report; expected at most"),
    ],
)
def test_timelines_beyond_the_sensitivity_are_refused(noise, timeline, message):
    with pytest.raises(ValueError, match=message):
        privacy.banded(REFERENCE, 16, **noise).check(timeline, 8)


@pytest.mark.parametrize("timeline", [in_turns(3), in_turns(1), fs.timelines.full(16, 9, 1)])
def test_amplification_requires_groups(timeline):
    with pytest.raises(ValueError, match=r"expected timelines.grouped_bernoulli\(..., num_groups="):
        privacy.amplified_banded(REFERENCE, 16).check(timeline, 400)


@pytest.mark.parametrize("c", [[], [0.0], [1.0, -0.1], [0.5, 1.0], [1.0] * 5, [[1.0]]])
def test_bad_coefficients(c):
    with pytest.raises(ValueError, match=r"coefficients is .*; expected 1 .. num_rounds = 4"):
        privacy.banded(c, 4)


def test_bad_counts():
    with pytest.raises(ValueError, match="bands is 5; expected at most num_rounds = 4"):
        privacy.banded_coefficients(4, 5)
    with pytest.raises(ValueError, match="separation is 0; expected at least 1"):
        privacy.banded([1.0], 4, separation=0)
    with pytest.raises(ValueError, match="visits is 0; expected at least 1"):
        privacy.banded([1.0], 4, visits=0)
