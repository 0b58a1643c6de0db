"""Epsilon of clients in random rounds of passes, and of b-min-separation."""

import dataclasses
import math

import dp_accounting as dp
import jax
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr

import fedjax_sim as fs
from fedjax_sim import privacy
from fedjax_sim.wrappers.privacy import sampled
from fedjax_sim.wrappers.privacy.accounting import _fresh
from fedjax_sim.wrappers.privacy.allocation import loss_distribution, profiles
from fedjax_sim.wrappers.privacy.fixed_size import gaussian_profile

KEY = jax.random.key(0)


def spent(mechanism, delta):
    name = mechanism.accountants[0]
    return _fresh(name, mechanism, 1e-3).compose(mechanism.event).get_epsilon(delta)


def black_scholes(strike, sigma):
    """E[(k - X)_+] of the density ratio of one round."""
    if strike <= 0:
        return 0.0
    low = math.log(strike) * sigma
    return strike * ndtr(low + 0.5 / sigma) - ndtr(low - 0.5 / sigma)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_two_rounds_by_quadrature(sigma):
    """H = E over the first round of Black and Scholes in the second: adaptive quadrature."""
    epsilons = np.array([-2.0, -1.0, -0.3, 0.0, 0.3, 1.0, 2.0])

    def put(strike):
        def integrand(x):
            ratio = math.exp(x / sigma - 0.5 / sigma**2)
            return black_scholes(2 * strike - ratio, sigma) * math.exp(-x * x / 2)

        last = math.log(2 * strike) * sigma + 0.5 / sigma
        return quad(integrand, -12, last, epsabs=1e-12)[0] / math.sqrt(2 * math.pi) / 2

    present, absent = profiles(epsilons, 2, sigma)
    for i, epsilon in enumerate(epsilons):
        alpha = math.exp(epsilon)
        exact = 1 - alpha + put(alpha), alpha * put(1 / alpha)
        for bound, value in zip((present[i], absent[i]), exact, strict=True):
            assert value - 1e-10 <= bound <= value + 1e-6


def test_one_round_is_the_gaussian_mechanism():
    epsilon = loss_distribution(1, 1.0, 1e-3).get_epsilon_for_delta(1e-5)
    assert epsilon == pytest.approx(4.3772, abs=1e-3)  # Balle and Wang, 2018


# Intervals of PLD_accounting 2.0 (numba absent): gaussian_allocation_epsilon_range for the lower
# and its geometric method for the upper number. Poisson sampling: dp-accounting 0.6.0.
@pytest.mark.parametrize(
    ("rounds", "lower", "upper", "poisson"),
    [(10, 2.1661, 2.1903, 2.8545), (50, 0.9541, 0.9916, 1.1448), (100, 0.6085, 0.6240, 0.7181)],
)
def test_intervals_of_another_library(rounds, lower, upper, poisson):
    event = dp.PoissonSampledDpEvent(1 / rounds, dp.GaussianDpEvent(1.0))
    independent = PLDAccountant(value_discretization_interval=1e-3).compose(event, rounds)
    assert independent.get_epsilon(1e-5) == pytest.approx(poisson, abs=1e-3)
    epsilon = loss_distribution(rounds, 1.0, 1e-3).get_epsilon_for_delta(1e-5)
    assert lower <= epsilon <= upper < poisson


def test_little_noise():
    """Without amplification by more than the smallest losses, which was an error at z = 0.02."""
    epsilon = loss_distribution(10, 0.02, 0.1).get_epsilon_for_delta(1e-5)
    alone = loss_distribution(1, 0.02, 0.1).get_epsilon_for_delta(1e-5)
    exact = brentq(lambda e: gaussian_profile(np.array(e), 0.02) - 1e-5, 0.0, 2500.0)
    # exp(-loss) underflows above 745: the library returns a quantile of the loss, about 1 more.
    assert exact - math.log(10) < epsilon <= alone <= exact + 1.1


def test_mechanisms_of_balls_in_bins():
    """Without redraw k passes are one with z / sqrt(k); with it they compose."""
    same, redrawn = (
        fs.timelines.balls_in_bins(KEY, 20, 3000, 10, 1, redraw=redraw) for redraw in (False, True)
    )
    law = privacy.independent()
    one, two = (law.mechanism(2.0, timeline, 3000) for timeline in (same, redrawn))
    assert one.event.count == 1
    assert one.event.event.noise_multiplier == pytest.approx(2 / math.sqrt(2))
    assert (two.event.count, two.event.event.noise_multiplier) == (2, 2.0)
    assert one.adjacency == "add_or_remove_one"
    assert one.extra_delta == pytest.approx(20 * 0.9**2999, rel=1e-9)
    single = fs.timelines.balls_in_bins(KEY, 10, 3000, 10, 1)
    epsilons = [spent(law.mechanism(2.0, t, 3000), 1e-5) for t in (single, redrawn, same)]
    visits = dataclasses.replace(same, sampling=None)
    assert epsilons == sorted(epsilons)
    assert epsilons[-1] < spent(law.mechanism(2.0, visits, 3000), 1e-5)


def test_noise_for_a_target_and_epsilon_per_round():
    timeline = fs.timelines.balls_in_bins(KEY, 20, 3000, 10, 1, redraw=True)
    ones = np.ones(3000, np.int32)
    setup = fs.Setup(fs.Task(lambda *_: None, ones, ones), timeline, np.zeros(2))
    private = privacy.privatize(fs.fedavg(0.1), 1.0, 1.5, expected_uploads=300)
    values = privacy.epsilon_per_round(private, setup, 1e-5, [0, 10, 15, 20])
    # A part of a pass counts as a whole one.
    assert 0 == values[0] < values[1] < values[2] == values[3]
    assert values[3] == pytest.approx(privacy.epsilon(private, setup, 1e-5).epsilon)


@pytest.mark.slow
def test_sampled_losses_are_above_exact_ones():
    """Bins of b-min-separation with p = 1, and Poisson sampling at separation 1."""
    bins = fs.timelines.balls_in_bins(KEY, 12, 3000, 6, 1)
    exact = spent(privacy.independent().mechanism(1.5, bins, 3000), 1e-2)
    event = sampled.losses_event()(12, 6, 1.0, 1.5, (1.0,))
    found = sampled.MonteCarlo().compose(event)
    assert exact <= found.get_epsilon(1e-2) <= exact + 0.2
    poisson = dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(1.5))
    exact = PLDAccountant(value_discretization_interval=1e-3).compose(poisson, 12).get_epsilon(1e-2)
    found = sampled.MonteCarlo().compose(sampled.losses_event()(12, 1, 0.2, 1.5, (1.0,)))
    assert exact <= found.get_epsilon(1e-2) <= exact + 0.2


@pytest.mark.parametrize("fails", [None, 0.3])
def test_b_min_separation_that_is_another_rule_is_counted_as_that(fails):
    """At b = 1 Poisson sampling, at p = 1 balls in bins, also if uploads are lost: no samples."""
    pairs = [
        (
            fs.timelines.b_min_sep(KEY, 12, 3000, 0.2, 1, separation=1),
            fs.timelines.bernoulli(KEY, 12, 3000, 0.2, 1),
        ),
        (
            fs.timelines.b_min_sep(KEY, 12, 3000, 1.0, 1, separation=6),
            fs.timelines.balls_in_bins(KEY, 12, 3000, 6, 1),
        ),
    ]
    for timeline, plain in pairs:
        if fails is not None:
            timeline, plain = (fs.timelines.lose_uploads(KEY, t, fails) for t in (timeline, plain))
        assert timeline.sampling == plain.sampling
        one, other = (privacy.independent().mechanism(1.5, t, 3000) for t in (timeline, plain))
        assert one == other
        assert one.accountants[0] == "pld"


def patterns(num_rounds, separation, probability, lost):
    """Probability of every set of rounds in which one client reports, by enumeration."""
    share = probability / (1 + (separation - 1) * probability)
    states = {(wait, ()): share for wait in range(1, separation)}
    states[0, ()] = 1 - share * (separation - 1)
    for _ in range(num_rounds):
        new = {}
        for (wait, past), mass in states.items():
            ways = [(wait - 1, 0.0, 1.0)]
            if wait == 0:
                ways = [(0, 0.0, 1 - probability), (separation - 1, 1.0, probability * (1 - lost))]
                ways.append((separation - 1, 0.0, probability * lost))
            for after, report, chance in ways:
                key = after, (*past, report)
                new[key] = new.get(key, 0.0) + mass * chance
        states = new
    sets = {}
    for (_, visits), mass in states.items():
        sets[visits] = sets.get(visits, 0.0) + mass
    sets = {visits: mass for visits, mass in sets.items() if mass}
    return np.array(list(sets)), np.array(list(sets.values()))


def epsilon_of_mixture(visits, chances, c, z, delta):
    """Epsilon of N(C x, z^2 I) with random x against N(0, z^2 I), of 200,000 runs each."""
    random, size = np.random.default_rng(7), 200_000
    c = np.array(c) / np.linalg.norm(c)
    means = np.stack([np.convolve(x, c)[: len(x)] for x in visits])
    epsilons = []
    for present in (True, False):
        seen = z * random.normal(size=(size, means.shape[1]))
        if present:
            seen += means[random.choice(len(means), size, p=chances / chances.sum())]
        ratios = (seen @ means.T - (means**2).sum(1) / 2) / z**2
        losses = logsumexp(ratios + np.log(chances), axis=1) * (1 if present else -1)
        epsilons.append(
            brentq(lambda e, x=losses: np.maximum(-np.expm1(e - x), 0).mean() - delta, 0.0, 20.0)
        )
    return max(epsilons)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0.0, 0.3])
@pytest.mark.parametrize(
    ("num_rounds", "separation", "probability", "c"),
    [
        (1, 3, 0.3, (1.0,)),
        (7, 3, 0.3, (1.0,)),
        (7, 3, 1.0, (1.0,)),
        (5, 9, 0.5, (1.0,)),
        (7, 3, 0.3, (1.0, 0.6, 0.4)),
        (7, 3, 1.0, (1.0, 0.6, 0.4)),
        (5, 9, 0.5, (1.0, 0.6, 0.4)),
    ],
)
def test_lost_uploads_with_late_returns_are_covered(num_rounds, separation, probability, lost, c):
    """All patterns of reports, enumerated: losses make epsilon smaller, and are not counted.

    Sampled epsilons are up to 0.2 above; that of a part of a pass counts as a whole one.
    """
    timeline = fs.timelines.b_min_sep(KEY, num_rounds, 3000, probability, 1, separation=separation)
    timeline = fs.timelines.lose_uploads(KEY, timeline, lost) if lost else timeline
    law = privacy.independent() if len(c) == 1 else privacy.amplified_banded(c, num_rounds)
    own = spent(law.mechanism(1.5, timeline, 3000), 1e-2)
    visits = patterns(num_rounds, separation, probability, 0.0)
    # 200,000 samples have a standard error of about 0.01 in epsilon.
    exact = epsilon_of_mixture(*visits, c, 1.5, 1e-2)
    assert exact - 0.03 < own < exact + 0.4
    fewer = epsilon_of_mixture(*patterns(num_rounds, separation, probability, lost), c, 1.5, 1e-2)
    assert fewer < own + 0.03


def test_the_error_of_sampled_losses():
    """Of Gaussian losses with known epsilon, the bound errs in none of 200 runs of 2,000 losses."""
    # mu = 0.5: Balle and Wang, 2018, Theorem 8.
    exact = brentq(lambda e: ndtr(0.25 - 2 * e) - math.exp(e) * ndtr(-0.25 - 2 * e) - 0.05, 0, 3)
    random = np.random.default_rng(0)
    found = [sampled.epsilon_of_losses([random.normal(0.125, 0.5, 2000)], 0.05) for _ in range(200)]
    assert exact < min(found)
    assert np.mean(found) < exact + 0.35
    with pytest.raises(ValueError, match=r"delta is 1e-06; expected at least 0.00688"):
        sampled.epsilon_of_losses([np.zeros(2000)], 1e-6)


def test_banded_noise_with_clients_that_return_late():
    c = [0.8, 0.5, 0.33]
    law = privacy.amplified_banded(c, 12)
    bins = fs.timelines.balls_in_bins(KEY, 12, 3000, 6, 1)
    apart = fs.timelines.b_min_sep(KEY, 12, 3000, 0.2, 1, separation=3)
    for timeline in (bins, apart):
        mechanism = law.mechanism(2.0, timeline, 3000)
        assert sum(x * x for x in mechanism.event.coefficients) == pytest.approx(1)
        visits = 2 if timeline is bins else 4
        alone = dp.GaussianDpEvent(2.0 / math.sqrt(visits))  # no amplification
        most = PLDAccountant(value_discretization_interval=1e-3).compose(alone).get_epsilon(1e-2)
        assert spent(mechanism, 1e-2) < most
    again = fs.timelines.balls_in_bins(KEY, 12, 3000, 6, 1, redraw=True)
    for timeline in (again, fs.timelines.b_min_sep(KEY, 12, 3000, 0.2, 1, separation=2)):
        with pytest.raises(ValueError, match="orthogonal columns of the matrix"):
            law.mechanism(2.0, timeline, 3000)
