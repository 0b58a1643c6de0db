"""Epsilon against published and independently computed values, participation, and noise cohorts."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

import fedjax_sim as fs
from fedjax_sim import privacy
from fedjax_sim.timelines import Sampling
from fedjax_sim.wrappers.privacy import fixed_size
from fedjax_sim.wrappers.privacy.events import sampled_gaussian
from fedjax_sim.wrappers.privacy.fixed_size import loss_distribution
from fedjax_sim.wrappers.privacy.participation import (
    min_separation,
    most_visits,
    num_draws,
    repeated_client,
)

KEY = jax.random.key(0)


def setup_of(rule, rounds, clients=4):
    """A setup with this rule; accountants read no arrays where they know the rule."""
    zeros, ones = np.zeros((rounds, 1), np.int32), np.ones((rounds, 1), np.int32)
    time = np.arange(1.0, rounds + 1)
    version = np.arange(rounds)[:, None]
    timeline = fs.Timeline(zeros, version, ones, ones > 0, time, max_steps=1, sampling=rule)
    sizes = np.ones(clients, np.int32)
    return fs.Setup(fs.Task(lambda *_: None, sizes, sizes), timeline, np.zeros(2))


def poisson(q, clients=10**6, slots=None):
    return Sampling("poisson", q * clients, clients, probability=q, slots=slots)


def subset(size, clients):
    return Sampling("without_replacement", float(size), clients, size)


def guarantee(rule, rounds, z, delta, **kwargs):
    setup = setup_of(rule, rounds)
    number = setup.timeline.sampling.expected_uploads
    private = fs.privacy.privatize(fs.fedavg(0.1), 1.0, z, expected_uploads=number)
    return fs.privacy.epsilon(private, setup, delta, **kwargs)


def gaussian_epsilon(z, delta):
    """Epsilon of one Gaussian mechanism in closed form (Balle and Wang, 2018), by bisection."""

    def phi(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    low, high = 0.0, 100.0
    for _ in range(100):
        e = (low + high) / 2
        excess = phi(0.5 / z - e * z) - math.exp(e) * phi(-0.5 / z - e * z)
        low, high = (e, high) if excess > delta else (low, e)
    return high


@pytest.mark.parametrize(
    ("q", "z", "rounds", "delta", "rdp", "pld"),
    [
        pytest.param(0.01, 1.0, 1000, 1e-5, 2.1014, 1.8282, marks=pytest.mark.slow),
        (0.05, 1.0, 200, 1e-5, 5.3679, 4.7659),
        pytest.param(0.1, 1.5, 100, 1e-4, 3.3754, 2.9839, marks=pytest.mark.slow),
        pytest.param(0.001, 0.6, 3000, 1e-6, 3.4324, 2.5163, marks=pytest.mark.slow),
    ],
)
def test_poisson_sampling(q, z, rounds, delta, rdp, pld):
    default = guarantee(poisson(q), rounds, z, delta)
    assert default.epsilon == pytest.approx(pld, abs=2e-3)
    assert default[2:4] == ("add_or_remove_one", "pld")
    renyi = guarantee(poisson(q), rounds, z, delta, accountant="rdp")
    assert renyi.epsilon == pytest.approx(rdp, abs=1e-4)


@pytest.mark.parametrize(
    ("size", "clients", "z", "rounds", "delta", "rdp", "reduced"),
    [
        (10, 1000, 2.0, 1000, 1e-5, 3.5761, 1.829),
        (50, 1000, 2.0, 200, 1e-5, 9.2795, 4.766),
        (10, 100, 3.0, 100, 1e-4, 7.2301, 2.984),
        (1000, 10**6, 1.2, 3000, 1e-6, 4.1163, 2.517),
    ],
)
def test_sampling_without_replacement(size, clients, z, rounds, delta, rdp, reduced):
    """The event has z / 2; the reduction to Poisson sampling, which is not used, is smaller."""
    result = guarantee(subset(size, clients), rounds, z, delta)
    assert result[2:4] == ("replace_one", "pld")
    assert reduced < result.epsilon < 0.65 * rdp
    renyi = guarantee(subset(size, clients), rounds, z, delta, accountant="rdp")
    assert renyi.epsilon == pytest.approx(rdp, abs=1e-4)


def test_losses_that_need_too_many_intervals_get_wider_ones():
    """z = 0.1 has losses up to 400, or 400,000 intervals of 1e-3; two rounds exactly, with those.

    Renyi divergences, which counted them before, give 534.86.
    """
    own = guarantee(subset(10, 100), 2, 0.1, 1e-5)
    assert own.accountant == "pld"
    exact = loss_distribution(0.1, 0.05, 1e-3).self_compose(2).get_epsilon_for_delta(1e-5)
    assert exact <= own.epsilon <= exact + 0.01  # intervals of 1.5e-3
    assert own.epsilon < guarantee(subset(10, 100), 2, 0.1, 1e-5, accountant="rdp").epsilon - 50


@pytest.mark.parametrize("z", [1e-3, 0.02])
def test_little_noise_without_sampling(z):
    """Balle and Wang, 2018, Theorem 8, for three visits; z = 1e-3 had 10^9 intervals."""
    s, delta = z / math.sqrt(3), 1e-5

    def spent(epsilon):
        second = epsilon + log_ndtr(-0.5 / s - epsilon * s)
        return ndtr(0.5 / s - epsilon * s) - math.exp(min(second, 0.0))

    exact = brentq(lambda e: spent(e) - delta, 0.0, 2 / s**2)
    own = guarantee(Sampling("fixed", 1.0), 3, z, delta)
    assert own.accountant == "pld"
    # exp(-loss) underflows above 745: the library returns a quantile of the loss, about 1 more.
    assert exact * (1 - 1e-6) <= own.epsilon <= exact * (1 + 1e-3)


def test_no_noise_is_calibrated_for_a_timeline_without_reports():
    setup = setup_of(None, 2)
    empty = dataclasses.replace(setup.timeline, mask=np.zeros((2, 1), bool))
    setup = dataclasses.replace(setup, timeline=empty)
    with pytest.raises(ValueError, match=r"mechanism has no release .*at most 0 visits"):
        fs.privacy.noise_multiplier(setup, 1.0, 1e-5)


@pytest.mark.parametrize("rounds", [1, 10])
def test_large_samples_without_replacement_cost_no_more_than_everybody(rounds):
    """The bound for small samples, which is the larger one here, is not used."""
    everybody, most, half = (
        guarantee(subset(size, 20), rounds, 5.0, 1e-3, accountant="rdp").epsilon
        for size in (20, 19, 10)
    )
    assert most == everybody
    assert half < everybody


def test_the_two_accountants_differ_by_a_factor_of_two_in_the_sensitivity_under_replacement():
    """So the event has z / 2, which our accountant of cohorts of fixed size does not double."""
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import pld, rdp

    replace, event = dp.NeighboringRelation.REPLACE_ONE, dp.GaussianDpEvent(2.0)
    doubled = pld.PLDAccountant(replace, 1e-3).compose(event).get_epsilon(1e-5)
    plain = rdp.RdpAccountant(neighboring_relation=replace).compose(event).get_epsilon(1e-5)
    assert doubled == pytest.approx(4.3772, abs=1e-3)
    assert doubled == pytest.approx(gaussian_epsilon(1.0, 1e-5), abs=1e-3)
    assert plain == pytest.approx(2.1657, abs=1e-4)
    halved = rdp.RdpAccountant(neighboring_relation=replace).compose(dp.GaussianDpEvent(1.0))
    assert halved.get_epsilon(1e-5) == pytest.approx(4.7285, abs=1e-4)
    mechanism = sampled_gaussian(2.0, setup_of(subset(4, 4), 1).timeline, 4)
    assert mechanism.event.event.event.noise_multiplier == 1.0
    everybody = guarantee(subset(4, 4), 1, 2.0, 1e-5)
    assert everybody.epsilon == pytest.approx(gaussian_epsilon(1.0, 1e-5), abs=1e-3)


@pytest.mark.slow
def test_poisson_cohorts_that_are_cut_to_the_slots():
    with pytest.warns(
        match=r"at most 70 clients, cuts a cohort with a probability of 0\.466.*at m"
    ):
        result = guarantee(poisson(0.05, 1000, slots=70), 200, 1.0, 1e-5)
    assert result.epsilon == pytest.approx(6.5413, abs=2e-3)
    assert result[2:4] == ("zero_out", "pld")


@pytest.mark.slow
def test_slots_that_cost_no_privacy():
    """1,000 rounds of 10,000 clients with q M = 100; 1.8290: dp-accounting without a limit."""
    clients, rounds, delta = 10_000, 1000, 1e-5
    slots = fs.timelines.slots_for(clients, 0.01, rounds, delta)
    # No warning; a ten thousandth is more than what a tenth of delta costs.
    enough = guarantee(poisson(0.01, clients, slots), rounds, 1.0, delta).epsilon
    assert enough == pytest.approx(1.8289344, rel=1e-4)
    few = setup_of(poisson(0.01, clients, 100), rounds)
    private = fs.privacy.privatize(fs.fedavg(0.1), 1.0, 1.0, expected_uploads=100)
    with pytest.warns(match="cuts a cohort with a probability of 1; expected at most 1e-06, a te"):
        epsilons = fs.privacy.epsilon_per_round(private, few, delta, [rounds])
    assert epsilons[0] / enough == pytest.approx(5.89, abs=0.01)
    with pytest.warns(match="slots_for returns the slots"):
        fs.privacy.noise_multiplier(setup_of(poisson(0.01, 100, 1), 5), 3.0, 1e-2, interval=1e-2)


def test_timelines_without_amplification_count_the_visits_of_one_client():
    """A client of the cyclic timeline takes part in 10 of 30 rounds."""
    cyclic = fs.timelines.cyclic(30, 9, 3, num_steps=1)
    unknown = dataclasses.replace(cyclic, sampling=None)
    weighted = fs.timelines.weighted(KEY, 30, np.arange(1.0, 10.0), 3, 1)
    visits = int(np.bincount(np.asarray(weighted.clients).ravel()).max())
    for timeline, count, words in [
        (cyclic, 10, "no amplification, at most 10 visits"),
        (cyclic[:6], 2, "at most 2 visits"),
        (unknown, 10, "a sampling rule that is not known, at most 10 visits"),
        (weighted, visits, f"at most {visits} visits"),
        (fs.timelines.full(10, 9, 1), 10, "at most 10 visits"),
    ]:
        setup = dataclasses.replace(setup_of(None, 1, clients=9), timeline=timeline)
        private = fs.privacy.privatize(fs.fedavg(0.1), 1.0, 5.0, expected_uploads=3)
        result = fs.privacy.epsilon(private, setup, 1e-5)
        # k Gaussian mechanisms are one with z / sqrt(k).
        assert result.epsilon == pytest.approx(gaussian_epsilon(5 / count**0.5, 1e-5), abs=2e-3)
        assert result.adjacency == "zero_out"
        assert words in result.rule
    assert gaussian_epsilon(5 / 10**0.5, 1e-5) == pytest.approx(2.5944, abs=1e-4)


def test_asynchronous_timelines_need_a_declaration():
    timeline = fs.timelines.arrivals(
        KEY,
        fs.timelines.deterministic(np.array([1.0, 2.0])),
        horizon=9.0,
        num_clients=2,
        num_steps=1,
    )
    with pytest.raises(ValueError, match=r"expected timelines.independent_of_data"):
        sampled_gaussian(1.0, timeline, 2)
    declared = fs.timelines.independent_of_data(timeline)
    assert "at most 9 visits" in sampled_gaussian(1.0, declared, 2).rule


def test_events_of_repeated_cohorts_and_of_parts_of_a_timeline():
    pairs = setup_of(dataclasses.replace(subset(3, 9), repeats=2), 8).timeline
    event = sampled_gaussian(2.0, pairs, 9).event
    assert event.count == 4
    assert event.event.event.noise_multiplier == pytest.approx(1 / math.sqrt(2))
    assert sampled_gaussian(2.0, pairs[:3], 9).event.count == 2
    assert sampled_gaussian(2.0, pairs[1:3], 9).event.count == 2


@pytest.mark.parametrize(
    ("cut", "passes"), [(slice(0, 10), 1), (slice(5, 15), 2), (slice(9, 21), 3), (slice(10, 20), 1)]
)
def test_rounds_cut_from_passes_count_every_pass_that_they_meet(cut, passes):
    """A client that draws a place per pass can take part once in each."""
    timeline = fs.timelines.balls_in_bins(KEY, 40, 1000, 10, num_steps=1, redraw=True)[cut]
    visits = np.bincount(np.asarray(timeline.clients)[np.asarray(timeline.mask)])
    assert visits.max() == passes
    assert sampled_gaussian(1.0, timeline, 1000).event.count == passes


def test_late_reports_do_not_move_the_rounds_of_a_part():
    """Rounds 2 .. 6 meet three cohorts of three rounds, although the first report is late."""
    rounds = fs.timelines.repeat_rounds(fs.timelines.uniform(KEY, 4, 10, 1, 1), 3)[2:7]
    assert sampled_gaussian(1.0, rounds, 10).event.count == 3
    late = dataclasses.replace(rounds, version=rounds.version.at[0].add(-1), max_staleness=1)
    assert sampled_gaussian(1.0, late, 10).event.count == 3


@pytest.mark.parametrize(
    "timeline",
    [
        lambda: fs.timelines.balls_in_bins(KEY, 40, 300, 10, num_steps=1),
        lambda: fs.timelines.b_min_sep(KEY, 40, 300, 1.0, num_steps=1, separation=10),
        lambda: fs.timelines.grouped_bernoulli(KEY, 40, 300, 1.0, num_steps=1, num_groups=10),
    ],
)
def test_rounds_that_are_not_consecutive_count_the_visits(timeline):
    """Every tenth round has the same clients, four times."""
    mechanism = sampled_gaussian(1.0, timeline()[::10], 300)
    assert (mechanism.event.count, mechanism.adjacency) == (4, "zero_out")


def repeated(rule):
    return fs.timelines.repeat_rounds(rule, 3)


@pytest.mark.parametrize("fails", [fs.timelines.dropout, fs.timelines.lose_uploads])
@pytest.mark.parametrize(
    ("timeline", "share"),
    [
        (lambda: fs.timelines.balls_in_bins(KEY, 30, 200, 10, num_steps=1), 1 / 10),
        # p / (1 + (b - 1) p), the stationary share of clients that take part.
        (lambda: fs.timelines.b_min_sep(KEY, 30, 200, 0.2, num_steps=1, separation=6), 1 / 10),
        (lambda: repeated(fs.timelines.bernoulli(KEY, 10, 200, 0.1, num_steps=1)), 1 / 10),
        (lambda: fs.timelines.bernoulli(KEY, 30, 200, 0.1, num_steps=1), 1 / 10),
    ],
)
def test_reports_that_fail_make_empty_rounds_more_probable(fails, timeline, share):
    """30 rounds in which 199 others report with a fifth of the share of clients, each."""
    mechanism = sampled_gaussian(1.0, fails(KEY, timeline(), 0.8), 200)
    # The probability of a report is rounded to a multiple of 2^-24.
    assert mechanism.extra_delta == pytest.approx(30 * (1 - share / 5) ** 199, rel=1e-4)


def test_finer_intervals_calibrate_noise_in_the_range_that_they_support():
    """With 1e-4 a noise multiplier of 0.2 is refused; from 0.86 on, losses have 2^18 intervals."""
    setup = setup_of(subset(10, 100), 1)
    z = fs.privacy.noise_multiplier(setup, 2.0, 1e-5, interval=1e-4)
    assert guarantee(subset(10, 100), 1, z, 1e-5, interval=1e-4).epsilon == pytest.approx(
        2, rel=1e-3
    )
    with pytest.raises(
        ValueError, match=r"epsilon is 50.0 .*noise multipliers in .* \.\. 0\.9\d+ give"
    ):
        fs.privacy.noise_multiplier(setup, 50.0, 1e-5, interval=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 0}, r"delta is 0; expected a number in \(0, 1\)"),
        ({"delta": 1.5}, r"delta is 1.5; expected a number in \(0, 1\)"),
        ({"delta": "1e-5"}, r"delta is '1e-5'; expected a number in \(0, 1\)"),
        ({"interval": math.inf}, "interval is inf; expected a positive number"),
        ({"rounds": [1.7]}, "rounds is 1.7; expected an integer"),
        ({"rounds": [-1]}, "rounds is -1; expected at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(changes, message):
    private = fs.privacy.privatize(fs.fedavg(0.1), 1.0, 3.0, expected_uploads=10)
    good = {"delta": 1e-5, "rounds": [1]}
    with pytest.raises(ValueError, match=message):
        fs.privacy.epsilon_per_round(private, setup_of(subset(10, 100), 4), **(good | changes))


@pytest.mark.slow
def test_epsilon_per_round_is_that_of_shorter_runs():
    setup = setup_of(subset(10, 100), 40)
    private = fs.privacy.privatize(fs.fedavg(0.1), 1.0, 3.0, expected_uploads=10)
    values = fs.privacy.epsilon_per_round(private, setup, 1e-4, [0, 40, 10, 10])
    shorter = [guarantee(subset(10, 100), rounds, 3.0, 1e-4).epsilon for rounds in (40, 10)]
    np.testing.assert_allclose(values, [0.0, shorter[0], shorter[1], shorter[1]], rtol=1e-9)
    with pytest.raises(ValueError, match=r"rounds has 41; expected 0 .. 40"):
        fs.privacy.epsilon_per_round(private, setup, 1e-4, [41])


@pytest.mark.parametrize(
    ("rounds", "accountant", "expected"),
    [
        pytest.param(1500, "pld", 0.61624, marks=pytest.mark.slow),
        pytest.param(3000, "pld", 0.63287, marks=pytest.mark.slow),
        (1500, "rdp", 0.71378),
        (3000, "rdp", 0.72468),
    ],
)
def test_noise_of_a_published_benchmark(rounds, accountant, expected):
    """pfl-research, CIFAR-10 IID with central privacy: epsilon 2 at delta 1e-6."""
    setup = setup_of(poisson(1e-3), rounds)
    z = fs.privacy.noise_multiplier(setup, 2.0, 1e-6, accountant=accountant)
    # Values are accurate to the width of the intervals and to the search's tolerance of 1e-4.
    assert z == pytest.approx(expected, abs=1.5e-4)
    assert 0.4 * z / 1000 == pytest.approx(0.4 * expected / 1000, rel=3e-4)


@pytest.mark.parametrize("delta", [1e-16, 1e-100])
def test_the_smallest_deltas_are_counted_by_renyi_divergences(delta):
    """Losses leave out 1e-15, so their epsilon is infinite; Balle and Wang's is exact."""
    exact = brentq(lambda e: fixed_size.gaussian_profile(np.array(e), 1.0) - delta, 0.0, 60.0)
    own = guarantee(Sampling("fixed", 1.0), 1, 1.0, delta)
    assert own.accountant == "rdp"
    assert exact < own.epsilon < 1.05 * exact
    assert guarantee(Sampling("fixed", 1.0), 1, 1.0, delta, accountant="pld").epsilon == math.inf
    assert guarantee(Sampling("fixed", 1.0), 1, 0.0, delta).epsilon == math.inf


def test_noise_of_one_gaussian_mechanism():
    z = fs.privacy.noise_multiplier(setup_of(Sampling("fixed", 1.0), 1), 1.0, 1e-5)
    assert z == pytest.approx(3.730632, abs=5e-4)
    assert gaussian_epsilon(z, 1e-5) <= 1.0


def test_runs_without_noise_and_unreachable_targets():
    setup = setup_of(Sampling("fixed", 1.0), 1)
    silent = fs.privacy.privatize(fs.fedavg(0.1), 1.0, 0.0, expected_uploads=1)
    assert fs.privacy.epsilon(silent, setup, 1e-5).epsilon == math.inf
    with pytest.raises(
        ValueError, match=r"algorithm is not private; expected fs.privacy.privatize"
    ):
        fs.privacy.epsilon(fs.fedavg(0.1), setup, 1e-5)
    with pytest.raises(ValueError, match=r"delta is 1.0; expected a number in"):
        fs.privacy.epsilon(silent, setup, 1.0)
    with pytest.raises(ValueError, match=r"noise_multiplier is inf; expected a finite number"):
        fs.privacy.privatize(fs.fedavg(0.1), 1.0, math.inf, expected_uploads=1)
    for interval in (0.0, -1e-3):
        with pytest.raises(ValueError, match=r"interval is .*; expected a positive number"):
            fs.privacy.epsilon(silent, setup, 1e-5, interval=interval)
        with pytest.raises(ValueError, match=r"interval is .*; expected a positive number"):
            fs.privacy.noise_multiplier(setup, 1.0, 1e-5, interval=interval)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"epsilon is .*; expected a positive number"):
            fs.privacy.noise_multiplier(setup, epsilon, 1e-5)
    with pytest.raises(ValueError, match=r"epsilon is 1000000.0 .*; expected a number in 0 .. 35"):
        fs.privacy.noise_multiplier(setup, 1e6, 1e-5, accountant="rdp")


def test_selections_that_depend_on_the_data_have_no_epsilon():
    """The run is refused, and so is a guarantee of the timeline's rule for it."""
    private = fs.privacy.privatize(fs.fedavg(0.1), 1.0, 1.0, expected_uploads=9)
    task = fs.Task(lambda client, key, max_steps: None, np.ones(9, int), np.ones(9, int))
    setup = fs.Setup(task, fs.timelines.full(2, 9, 1), np.zeros(3))
    assert 0 < fs.privacy.epsilon(private, setup, 1e-5).epsilon < np.inf
    chosen = fs.selection.select(private, fs.selection.power_of_choice(3))
    with pytest.raises(ValueError, match="algorithm has a selection; expected none: no accountant"):
        fs.privacy.epsilon(chosen, setup, 1e-5)


def test_rounds_without_uploads_cost_delta_or_are_refused():
    """M = 1000, q = 0.01: 4.4e-5 per round; q = 0.05: 5.6e-23."""
    rare = sampled_gaussian(1.0, setup_of(poisson(0.05, 1000), 1).timeline, 1000)
    often = sampled_gaussian(1.0, setup_of(poisson(0.01, 1000), 1).timeline, 1000)
    assert rare.extra_delta == pytest.approx(5.6e-23, rel=0.01)
    assert often.extra_delta == pytest.approx(4.4e-5, rel=0.02)
    with pytest.raises(
        ValueError, match=r"delta is 1e-05; expected at least .* sample more clients"
    ):
        guarantee(poisson(0.01, 1000), 1, 1.0, 1e-5)
    with pytest.raises(ValueError, match=r"expected at least 0.00436"):
        fs.privacy.noise_multiplier(setup_of(poisson(0.01, 1000), 1), 1.0, 1e-5)


# ---- participation


def timeline(clients, mask):
    rounds = fs.timelines.full(len(clients), len(clients[0]), num_steps=1)
    return dataclasses.replace(rounds, clients=np.array(clients), mask=np.array(mask, bool))


RETURNS = timeline([[0, 1], [2, 3], [4, 5], [0, 3]], [[1, 1], [1, 1], [1, 0], [1, 1]])


def test_visits_are_counted_in_rounds_with_a_report():
    assert (most_visits(RETURNS), min_separation(RETURNS), num_draws(RETURNS)) == (2, 2, 4)
    empty = dataclasses.replace(RETURNS, mask=np.array([[1, 1], [1, 1], [0, 0], [1, 1]], bool))
    # Client 3 reports in rounds 1 and 3; nobody reports between them.
    assert (min_separation(empty), num_draws(empty)) == (1, 3)
    assert repeated_client(empty, 2) is None
    assert repeated_client(empty, 3) == (0, 0)


def test_a_client_that_never_returns_has_no_separation():
    once = fs.timelines.cyclic(3, num_clients=6, cohort_size=2, num_steps=1)
    assert (min_separation(once), most_visits(once), repeated_client(once, 3)) == (None, 1, None)


def test_the_worst_replica_of_a_batch_counts():
    batch = fs.timelines.stacked([RETURNS, fs.timelines.cyclic(4, 8, 2, num_steps=1)])
    assert (most_visits(batch), min_separation(batch)) == (2, 2)


def test_traced_timelines_are_refused():
    with pytest.raises(ValueError, match="is traced; expected a concrete timeline"):
        jax.eval_shape(lambda t: most_visits(t), RETURNS)


# ---- noise cohorts


SETTING = {"cohort_size": 50, "noise_cohort_size": 1000, "population": 10**6}


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "z"), [(1500, 0.61624), (3000, 0.63287)])
def test_reference_noise_of_cifar10(rounds, z):
    forecast = privacy.noise_cohort(2.0, 1e-6, num_rounds=rounds, **SETTING)
    assert forecast.noise_multiplier * 20 == pytest.approx(z, abs=2e-4)
    assert "not private at that epsilon" in str(forecast)
    if rounds == 1500:
        # Noise on the mean of 50 clients with the clip 0.4.
        assert forecast.noise_multiplier * 0.4 / 50 == pytest.approx(2.465e-4, rel=1e-3)


@pytest.mark.slow
def test_reference_noise_by_renyi_divergences():
    forecast = privacy.noise_cohort(2.0, 1e-6, num_rounds=1500, accountant="rdp", **SETTING)
    assert forecast.noise_multiplier * 20 == pytest.approx(0.71378, abs=2e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_cohort_size": 49}, "noise_cohort_size is 49; expected at least 50"),
        ({"population": 999}, "noise_cohort_size is 1000; expected at most 999"),
        ({"cohort_size": 0}, "cohort_size is 0"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(ValueError, match=message):
        privacy.noise_cohort(2.0, 1e-6, num_rounds=10, **(SETTING | changes))


@pytest.mark.slow
def test_the_guarantee_names_the_accountant_that_counted():
    sizes = {"cohort_size": 5, "noise_cohort_size": 10, "population": 50}
    first, named = (
        privacy.noise_cohort(2.0, 1e-6, num_rounds=10, accountant=name, **sizes)
        for name in (None, "pld")
    )
    assert first.guarantee.accountant == "pld"
    assert first == named
