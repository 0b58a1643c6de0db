"""Laws of capped step counts against published numbers, scipy's series and simulated clocks."""

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats
from hypothesis import given

from fedjax_sim.theory.step_counts import (
    CappedSteps,
    empirical,
    from_probabilities,
    from_tail,
    geometric,
    poisson_renewal,
    renewal,
)

K = 20
# lambda, law -> P(E > 0), E[S], E[S^2], E[1(S > 0) / S]; computed independently, to its digits.
GEOMETRIC = {
    (1 / 2, 1): (1.0, 1.999998, 5.999918, 0.693147),
    (1 / 2, 0): (0.5, 0.999999, 2.999959, 0.346574),
    (1 / 16, 1): (1.0, 11.599059, 183.533215, 0.189882),
    (1 / 16, 0): (0.9375, 10.874118, 172.062389, 0.178014),
}
RENEWAL = {
    (1 / 2, False): (0.998428, 12.492906, 200.12721, 0.134833),
    (1 / 16, False): (0.740627, 2.186981, 10.640801, 0.408428),
    (1 / 2, True): (0.996855, 12.150003, 193.918190, 0.149314),
    (1 / 16, True): (0.723335, 2.124498, 10.313405, 0.401458),
}


def moments(mass):
    """By their definitions, from P(S = j), j = 0 .. K."""
    j = np.arange(len(mass))
    return CappedSteps(
        mass[1:].sum(), mass @ j, mass @ j**2, np.sum(mass[1:] / np.maximum(j[1:], 1))
    )


def series(law, cap, probability):
    """P(S = j) as the truncated series over the number of windows; law(R) is scipy's."""
    windows = np.arange(1, 2 + int(np.log(1e-17) / np.log1p(-probability)))
    weights = scipy.stats.geom.pmf(windows, probability)
    below = [weights @ law(windows).pmf(j) for j in range(cap)]
    return np.append(below, weights @ law(windows).sf(cap - 1))


@pytest.mark.parametrize(("success", "first"), GEOMETRIC)
def test_geometric_numbers(success, first):
    expected = GEOMETRIC[success, first]
    np.testing.assert_allclose(geometric(success, K, first), expected, rtol=0, atol=6e-7)


@pytest.mark.parametrize(("success", "strict"), RENEWAL)
def test_renewal_numbers(success, strict):
    law = renewal(success, K, 7, 0.2, strict)
    np.testing.assert_allclose(law, RENEWAL[success, strict], rtol=0, atol=6e-6)


rates = st.floats(0.01, 1.0)


@given(success=rates, cap=st.integers(1, 40), first=st.sampled_from([0, 1]))
def test_geometric_against_its_closed_forms(success, cap, first):
    """Sums over j as partial sums of geometric series; 1e-11: up to 40 terms, 1 - r cancels."""
    law = geometric(success, cap, first)
    r, active = 1 - success, 1 if first else 1 - success
    mean = active * (1 - r**cap) / success
    # the sum over j <= K of (2 j - 1) r^(j - 1)
    square = 2 * (1 - (cap + 1) * r**cap + cap * r ** (cap + 1)) / success**2
    assert law.p_active == active
    np.testing.assert_allclose(law.mean, mean, rtol=1e-11, atol=1e-300)
    reference = active * square - mean
    np.testing.assert_allclose(law.second_moment, reference, rtol=1e-9, atol=1e-12)
    below = np.sum(success * r ** np.arange(cap - 1) / np.arange(1, cap))
    np.testing.assert_allclose(law.inverse, active * (below + r ** (cap - 1) / cap), rtol=1e-11)


@pytest.mark.slow
@given(
    success=rates, cap=st.integers(1, 25), window=st.integers(1, 12),
    probability=st.floats(0.05, 0.95), strict=st.booleans(),
)  # fmt: skip
def test_renewal_against_its_series(success, cap, window, probability, strict):
    """1e-11: scipy's binomial probabilities have some twelve digits; the series ends at 1e-17."""
    mass = series(lambda r: scipy.stats.binom(window * r - strict, success), cap, probability)
    law = renewal(success, cap, window, probability, strict)
    np.testing.assert_allclose(law, moments(mass), rtol=1e-11, atol=1e-13)


@pytest.mark.slow
@given(
    mean=st.floats(0.05, 50.0), cap=st.integers(1, 25), window=st.floats(0.1, 20.0),
    probability=st.floats(0.05, 0.95),
)  # fmt: skip
def test_poisson_renewal_against_its_series(mean, cap, window, probability):
    mass = series(lambda r: scipy.stats.poisson(window * r / mean), cap, probability)
    law = poisson_renewal(mean, cap, window, probability)
    np.testing.assert_allclose(law, moments(mass), rtol=1e-11, atol=1e-13)


@given(success=rates, cap=st.integers(1, 20), probability=rates)
def test_renewal_with_windows_of_one_unit_is_geometric(success, cap, probability):
    """P(E >= j) = psi^j / (1 - p) for p < 1: a step ends before the contact, j times."""
    p = min(probability, 0.99)
    psi = success * (1 - p) / (1 - (1 - success) * (1 - p))
    tail = psi ** np.arange(1, cap + 1) / (1 - p)
    np.testing.assert_allclose(renewal(success, cap, 1, p), from_tail(tail), rtol=1e-11)


def test_certain_contact_and_certain_steps():
    assert renewal(1.0, 5, 7, 1.0) == CappedSteps(1.0, 5.0, 25.0, 0.2)
    np.testing.assert_allclose(  # one window: a binomial law
        renewal(0.3, 4, 4, 1.0),
        from_probabilities(scipy.stats.binom(4, 0.3).pmf(np.arange(5)), 4),
        rtol=1e-13,
    )


def test_rare_steps_keep_their_digits():
    """P(E >= 1) to first order, whose next term is 1e-13 of it here; 1 - P(E = 0) has no digit."""
    law = renewal(1e-15, 3, 7, 0.2)
    np.testing.assert_allclose(law.mean, 7e-15 / 0.2, rtol=1e-12)


def test_probabilities_sum_to_1_to_rounding():
    law = from_probabilities([0, 0.5, 0.5 + 5e-10], cap=2)
    np.testing.assert_allclose(law.mean, 1.5, rtol=1e-9)


@pytest.mark.parametrize("strict", [False, True])
def test_renewal_against_a_simulated_clock(strict):
    """Durations drawn one by one; four standard errors of the means over 40,000 contacts."""
    rng = np.random.default_rng(0)
    samples, success, window, p, cap = 40_000, 1 / 5, 3, 0.3, 6
    elapsed = window * rng.geometric(p, samples)
    ends = np.cumsum(rng.geometric(success, (samples, cap)), axis=1)  # of the first K steps
    done = np.sum(ends < elapsed[:, None] if strict else ends <= elapsed[:, None], axis=1)
    exact, measured = renewal(success, cap, window, p, strict), empirical(done, cap)
    errors = 4 * np.sqrt([0.25, cap**2 / 4, cap**4 / 4, 0.25]) / np.sqrt(samples)
    assert np.all(np.abs(np.subtract(exact, measured)) < errors)
    np.testing.assert_allclose(measured.mean, done.mean(), rtol=1e-12)


@given(
    mass=st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda x: sum(x) > 0.1),
    cap=st.integers(1, 15),
)
def test_general_formulas_against_definitions(mass, cap):
    mass = np.array(mass) / np.sum(mass)
    capped = np.bincount(np.minimum(np.arange(len(mass)), cap), mass, cap + 1)
    law = from_probabilities(mass, cap)
    np.testing.assert_allclose(law, moments(capped), rtol=1e-12, atol=1e-14)


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=20), cap=st.integers(1, 25))
def test_empirical_against_means(counts, cap):
    done = np.minimum(counts, cap)
    expected = ((done > 0).mean(), done.mean(), (done**2).mean(),
                np.mean(np.where(done > 0, 1 / np.maximum(done, 1), 0)))  # fmt: skip
    np.testing.assert_allclose(empirical(counts, cap), expected, rtol=1e-12)


def test_one_law_for_every_client():
    success = np.array([[0.5, 0.1], [1 / 16, 1.0]])
    several = [
        (lambda x: geometric(x, 7), success),
        (lambda x: renewal(x, 7, 3, 0.25, True), success),
        (lambda x: poisson_renewal(x, 7, 2.5, 0.25), 10 * success),
        (lambda x: empirical(x, 7), (10 * success[..., None] * np.arange(5)).astype(int)),
    ]
    for law, values in several:
        together = law(values)
        for index in np.ndindex(2, 2):
            alone = law(values[index])
            for one, all_ in zip(alone, together, strict=True):
                assert one.shape == ()
                assert all_.dtype == np.float64
                np.testing.assert_allclose(one, all_[index], rtol=1e-15)
    assert renewal(0.5, 7, 3, [0.1, 0.2, 1.0]).mean.shape == (3,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: from_tail(0.5), r"tail has shape \(\); expected \[..., K\]"),
        (lambda: from_tail(np.ones((2, 0))), r"tail has shape \(2, 0\)"),
        (lambda: from_tail([0.2, 0.4]), "expected P\\(E >= j\\), from"),
        (lambda: from_tail([1.2, 0.4]), "expected P\\(E >= j\\), from"),
        (lambda: from_tail([np.nan]), "expected P\\(E >= j\\), from"),
        (lambda: from_probabilities([0.5, 0.4], 2), "probabilities is .*sum 1"),
        (lambda: from_probabilities([1.5, -0.5], 2), "expected non-negative"),
        (lambda: from_probabilities([1.0], 0), "cap is 0; expected a whole number"),
        (lambda: empirical([], 2), r"counts has shape \(0,\); expected \[..., samples\]"),
        (lambda: empirical([0.5], 2), "counts has dtype float64"),
        (lambda: empirical([-1], 2), "smallest entry -1; expected integers from 0"),
        (lambda: geometric(0.0, 3), r"success is 0\.0; expected probabilities above 0"),
        (lambda: geometric(0.5, 2.5), r"cap is 2\.5"),
        (lambda: geometric(0.5, 3, 2), "first is 2; expected 0 or 1"),
        (lambda: renewal([0.5, 1.1], 3, 7, 0.2), "success is .*1.1"),
        (lambda: renewal(0.5, 3, 0, 0.2), "window is 0; expected a whole number"),
        (lambda: renewal(0.5, 3, 1.5, 0.2), r"window is 1\.5; expected a whole number"),
        (lambda: renewal(0.5, 3, 7, 0.0), r"probability is 0\.0"),
        (lambda: poisson_renewal(0.0, 3, 7.0, 0.2), r"mean is 0\.0; expected positive"),
        (lambda: poisson_renewal(1.0, 3, -1.0, 0.2), r"window is -1\.0; expected positive"),
        (lambda: poisson_renewal(1.0, 3, 1.0, 2.0), r"probability is 2\.0"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
