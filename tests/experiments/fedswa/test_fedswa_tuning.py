"""Lemmas G.5 and G.6 against sequences that satisfy their recursions."""

import numpy as np
import pytest

from experiments.fedswa.lemmas import tuning


def weighted_mean(initial, contraction, step, added, rounds, rng):
    """The weighted mean of errors e_r that a random sequence d_r allows, and of the largest."""
    distance, errors, weights = initial, [], []
    for r in range(1, rounds + 2):
        allowed = (1 - contraction * step) * distance + added
        after = allowed * rng.uniform() if rng else 0.0
        errors.append((allowed - after) / step)
        weights.append((1 - contraction * step) ** (rounds + 1 - r))  # w_r / w_(R+1)
        distance = after
    return np.average(errors, weights=weights)


def test_linear_rate_bounds_random_sequences(x64):
    rng = np.random.default_rng(0)
    for _ in range(60):
        mu, d, c = 10 ** rng.uniform(-3, 1, size=3) * [1, 1, rng.integers(0, 2)]
        rounds = int(rng.integers(1, 200))
        max_step = rng.uniform(1 / (2 * rounds), 1) / mu
        sizes = {"initial": d, "contraction": mu, "max_step": max_step, "rounds": rounds}
        tuned = tuning.linear_rate(**sizes, noise=c)
        step = float(tuned.step)
        assert 0 < step <= max_step
        for source in (rng, None):
            mean = weighted_mean(d, mu, step, c * step**2, rounds, source)
            assert mean <= tuned.bound * (1 + 1e-9)
        order = mu * d * np.exp(-mu * max_step * rounds) + c / (mu * rounds)
        log = np.log(max(2.0, mu**2 * rounds * d / c)) if c else 1.0
        assert tuned.bound <= 5 * order * log


def test_printed_step_of_lemma_g5_may_be_zero(x64):
    """log max(1, mu^2 R d_0 / c) = 0 where noise dominates: the first term is infinite."""
    sizes = {"initial": 1e-3, "contraction": 0.1, "max_step": 5.0, "rounds": 50, "noise": 1.0}
    ratio = 0.1**2 * 50 * 1e-3 / 1.0
    assert np.log(max(1.0, ratio)) == 0
    tuned = tuning.linear_rate(**sizes)
    np.testing.assert_allclose(tuned.step, np.log(2) / 5)
    # A step below 1 / (2 mu R), which the printed rule allows up to a ratio of e^(1/2), breaks
    # (1 - mu step)^R <= 2 / 3, the basis of the factor 3.
    ratio = 1.2
    step = np.log(ratio) / (0.1 * 50)
    assert (1 - 0.1 * step) ** 50 > 2 / 3
    weights = (1 - 0.1 * step) ** -np.arange(51.0)
    assert 1 / (step * weights.sum()) > 3 * 0.1 * np.exp(-0.1 * step * 50)


def test_sublinear_rate_bounds_random_sequences(x64):
    rng = np.random.default_rng(0)
    for _ in range(60):
        d, c1, c2, max_step = 10 ** rng.uniform(-3, 1, size=4)
        c1, c2 = np.array([c1, c2]) * rng.integers(0, 2, size=2)
        rounds = int(rng.integers(0, 100))
        tuned = tuning.sublinear_rate(
            initial=d, max_step=max_step, rounds=rounds, noise=c1, squared_noise=c2
        )
        step = float(tuned.step)
        assert 0 < step <= max_step
        for source in (rng, None):
            mean = weighted_mean(d, 0.0, step, c1 * step**2 + c2 * step**3, rounds, source)
            assert mean <= tuned.bound * (1 + 1e-9)


def test_conditions(allow_nans):
    sizes = {"initial": 1.0, "contraction": 0.1, "noise": 0.1}
    for max_step, rounds in ((11.0, 100), (0.01, 100)):
        with pytest.warns(UserWarning, match=r"1 / \(2 mu rounds\) <= max_step <= 1 / mu"):
            tuned = tuning.linear_rate(**sizes, max_step=max_step, rounds=rounds)
        assert np.isnan(tuned.step)
        assert np.isnan(tuned.bound)
    with pytest.raises(ValueError, match="max_step is 0; expected a positive number"):
        tuning.sublinear_rate(initial=1.0, max_step=0, rounds=1)
