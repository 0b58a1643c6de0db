"""Cohorts of fixed size: the bound, above what neighbours really show and below Renyi divergences.

With one replaced client the upload moves from -1 to 1, so the sensitivity is 2 clips and the
mechanism of noise z has sigma = z / 2 per unit of it.
"""

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses
from scipy.signal import fftconvolve
from scipy.special import ndtr

from fedjax_sim.wrappers.privacy.accounting import _fresh, calibrate
from fedjax_sim.wrappers.privacy.events import Mechanism
from fedjax_sim.wrappers.privacy.fixed_size import loss_distribution, profile


def mechanism_of(clients, size, rounds, z):
    """The mechanism of `uniform` cohorts."""
    event = dp.SampledWithoutReplacementDpEvent(clients, size, dp.GaussianDpEvent(z / 2))
    return Mechanism(dp.SelfComposedDpEvent(event, rounds), "replace_one", "without replacement")


def epsilon_of(mechanism, delta, accountant="pld"):
    return _fresh(accountant, mechanism, 1e-3).compose(mechanism.event).get_epsilon(delta)


def poisson_reduction(clients, size, z, interval=1e-3):
    """One round in which all others upload the opposite extreme: Poisson sampling at z / 2."""
    return losses.from_gaussian_mechanism(
        z / 2, value_discretization_interval=interval, sampling_prob=size / clients
    )


# Renyi: RdpAccountant of dp-accounting 0.6.0, computed with it outside of this package.  Upper:
# rounded up from the composition at intervals of 1e-4 with the slower, general pessimistic
# constructor of that library.  Lower: its PLD of Poisson sampling at z / 2.
@pytest.mark.parametrize(
    ("clients", "size", "rounds", "z", "delta", "renyi", "upper", "lower"),
    [
        (1000, 100, 100, 1.0, 1e-5, 83.937, 34.18, 31.37),
        (100, 10, 100, 3.0, 1e-4, 7.2302, 3.33, 2.983),
        (100, 10, 100, 2.0, 1e-5, 14.054, 7.81, 7.04),
        (10_000, 100, 1000, 4.0, 1e-6, 1.6292, 0.829, 0.7229),
    ],
)
def test_published_settings(clients, size, rounds, z, delta, renyi, upper, lower):
    mechanism = mechanism_of(clients, size, rounds, z)
    value = epsilon_of(mechanism, delta)
    assert lower < value <= upper
    assert value > 0.995 * upper
    assert epsilon_of(mechanism, delta, "rdp") == pytest.approx(renyi, abs=1e-3)
    reduced = poisson_reduction(clients, size, z).self_compose(rounds).get_epsilon_for_delta(delta)
    assert lower - 0.02 < reduced < value


@pytest.mark.slow
def test_noise_for_a_target():
    """1.974 of independent bisections; Renyi divergences ask for 3.037."""
    mechanism = lambda z: mechanism_of(1000, 100, 100, z)  # noqa: E731
    z = calibrate(mechanism, 8.0, 1e-5)
    assert z == pytest.approx(1.974, abs=1e-3)
    assert epsilon_of(mechanism(z), 1e-5) <= 8.0
    assert calibrate(mechanism, 8.0, 1e-5, accountant="rdp") == pytest.approx(3.0374, abs=1e-3)


# ---- one round against brute force

ALPHAS = np.exp(np.linspace(-3.0, 3.0, 25))


def densities(uploads, size, sigma, points):
    """Density of the noisy sum over all cohorts of a population, by enumeration, ``[points]``."""
    sums = [sum(cohort) for cohort in itertools.combinations(uploads, size)]
    values, counts = np.unique(np.round(sums, 12), return_counts=True)
    normal = np.exp(-((points - values[:, None]) ** 2) / (2 * sigma**2))
    return counts / counts.sum() @ normal / (sigma * math.sqrt(2 * math.pi))


@pytest.mark.parametrize(
    ("clients", "size"),
    [
        *((2, 1), (3, 1), (3, 2), (5, 2), (6, 3), (8, 7), (12, 1)),
        *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in [(10, 4), (12, 5)]),
    ],
)
@pytest.mark.parametrize("z", [0.5, 1.0, 3.0])
def test_no_neighbour_exceeds_the_profile_and_the_worst_one_attains_it(clients, size, z):
    """Exact divergences: all cohorts, and a trapezoidal sum.

    Its step of at most 3e-3 has an error below 1e-6 at the kinks, where densities are equal.
    The neighbours: other clients at one extreme, at the other, at 0, half at each, and at random.
    """
    random = np.random.default_rng(clients * 100 + size)
    points = np.linspace(-size - 14 * z, size + 14 * z, 20_001)
    others = [np.full(clients - 1, v) for v in (-1.0, 0.0, 1.0)]
    others += [np.sign(np.arange(clients - 1) % 2 - 0.5), random.uniform(-1, 1, clients - 1)]
    bound = profile(np.log(ALPHAS), size / clients, z / 2)
    largest = np.zeros(len(ALPHAS))
    for rest in others:
        for x, y in ((1.0, -1.0), (-1.0, 1.0), (1.0, 0.3)):
            p, q = (densities((v, *rest), size, z, points) for v in (x, y))
            exact = [np.trapezoid(np.maximum(p - a * q, 0), points) for a in ALPHAS]
            largest = np.maximum(largest, exact)
    assert (largest <= bound + 1e-6).all()
    np.testing.assert_allclose(largest, bound, atol=1e-6)


@pytest.mark.parametrize("share", [1e-6, 0.01, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 20.0])
def test_the_profile_is_that_of_a_pair(share, sigma):
    """Convex in alpha, between max(0, 1 - alpha) and 1, as a dominating pair needs."""
    alphas = np.concatenate([np.linspace(1e-3, 2.999, 4001), np.geomspace(3, 1e9, 400)])
    values = profile(np.log(alphas), share, sigma)
    assert (values >= np.maximum(0, 1 - alphas) - 1e-15).all()
    slopes = np.diff(values) / np.diff(alphas)
    # A rounding error of 1e-16 per value, over the smallest distance of two alphas.
    assert (np.diff(slopes) >= -1e-12).all()
    assert (slopes <= 1e-12).all()
    assert (slopes >= -1 - 1e-12).all()


@pytest.mark.parametrize("share", [0.01, 0.3, 1.0])
def test_the_loss_distribution_is_not_below_the_profile(share):
    for sigma in (0.3, 2.0):
        pld = loss_distribution(share, sigma, 1e-2)
        for epsilon in np.linspace(0.0, 3.0, 13):
            exact = float(profile(np.array(epsilon), share, sigma))
            assert exact - 1e-12 <= pld.get_delta_for_epsilon(epsilon) <= exact + 1e-4


def test_everybody_is_the_gaussian_mechanism():
    """At S = M: Balle and Wang, 2018, for sigma = z / 2."""
    epsilons, sigma = np.linspace(-2, 4, 20), 0.7
    exact = ndtr(0.5 / sigma - epsilons * sigma)
    exact -= np.exp(epsilons) * ndtr(-0.5 / sigma - epsilons * sigma)
    np.testing.assert_allclose(profile(epsilons, 1.0, sigma), exact, atol=1e-14)


# ---- never above Renyi divergences


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.001, 0.05, 0.5, 0.95])
@pytest.mark.parametrize("z", [0.6, 2.0, 10.0])
@pytest.mark.parametrize("rounds", [1, 30, 1000])
def test_never_above_renyi_divergences(share, z, rounds):
    clients = 10_000
    mechanism = mechanism_of(clients, int(share * clients), rounds, z)
    for delta in (1e-3, 1e-8):
        assert epsilon_of(mechanism, delta) <= epsilon_of(mechanism, delta, "rdp") + 1e-3


# ---- lower bounds of several rounds


def test_canaries_stay_below():
    """A Monte Carlo lower bound on 20 rounds: the test that sums the losses of the worst client.

    The others upload -1 and the canary 1 or -1.  A bound of the divergence from 200,000 runs of
    each, by Clopper and Pearson's limits at 1e-3, must not exceed the accounted delta.
    """
    from scipy.stats import beta

    clients, size, rounds, z, runs = 50, 10, 20, 2.0, 200_000
    random, q, sigma = np.random.default_rng(0), size / clients, z / 2

    def loss(y):
        return np.log1p(q * np.expm1((y - 0.5) / sigma**2)).sum(-1)

    absent = random.normal(0, sigma, (runs, rounds))
    present = random.normal(0, sigma, (runs, rounds)) + (random.random((runs, rounds)) < q)
    pld = loss_distribution(q, sigma, 1e-3).self_compose(rounds)
    for epsilon in (1.0, 2.0):
        hits = (loss(present) > epsilon).sum(), (loss(absent) > epsilon).sum()
        low = beta.ppf(1e-3, hits[0], runs - hits[0] + 1)
        high = beta.ppf(1 - 1e-3, hits[1] + 1, runs - hits[1])
        lower, upper = low - math.exp(epsilon) * high, pld.get_delta_for_epsilon(epsilon)
        assert 0.5 * upper < lower < upper


def adaptive(plus, minus, rounds, delta, interval, largest):
    """Epsilon that clients reach who choose the direction of every round by what they have seen.

    Value iteration on V(x) of a divergence at alpha = e^x: V_0(x) = max(0, 1 - e^x), and
    V_n(x) = max over the two pairs of E[V_{n - 1}(x - loss)].
    """
    n = round(largest / interval)
    x = np.arange(-n, n + 1) * interval
    value = np.maximum(0, -np.expm1(x))
    pmfs = [pmf.to_dense_pmf() for pmf in (plus, minus)]
    for _ in range(rounds):
        best = np.zeros(2 * n + 1)
        for pmf in pmfs:
            first, probs = pmf._lower_loss, pmf._probs
            left, right = max(first + len(probs) - 1, 0), max(-first, 0)
            below = -np.expm1(np.arange(-n - left, -n) * interval)
            padded = np.concatenate([below, value, np.zeros(right)])
            after = fftconvolve(padded, probs)[left - first :][: 2 * n + 1] + pmf._infinity_mass
            best = np.maximum(best, after)
        value = np.clip(best, 0, 1)
    return x[np.flatnonzero(value > delta)[-1]]


@pytest.mark.slow
def test_clients_who_adapt_reach_more_than_the_reduction_to_poisson_sampling():
    """So the reduction, 31.371, is no upper bound.

    Whoever knows both populations lets the others upload one extreme or the other, by the models
    so far.  Optimistic losses at intervals of 2e-3 lose at most 0.2 in 100 rounds.
    """
    pld = losses.from_gaussian_mechanism(
        0.5,
        value_discretization_interval=2e-3,
        sampling_prob=0.1,
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    both = adaptive(pld._pmf_remove, pld._pmf_add, 100, 1e-5, 2e-3, 80.0)
    one = adaptive(pld._pmf_remove, pld._pmf_remove, 100, 1e-5, 2e-3, 80.0)
    exact = poisson_reduction(1000, 100, 1.0).self_compose(100).get_epsilon_for_delta(1e-5)
    assert exact - 0.2 <= one <= exact < both
    assert both < epsilon_of(mechanism_of(1000, 100, 100, 1.0), 1e-5)
