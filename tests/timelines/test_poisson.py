"""Poisson sampling with few slots, and the rules that timelines record."""

import dataclasses
import decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_sim import timelines
from fedjax_sim.runs.storage.identity import arrays_digest, timeline_arrays
from fedjax_sim.timelines import Sampling

KEY = jax.random.key(0)


@pytest.mark.slow
def test_cohorts_are_binomial_subsets_cut_to_the_slots():
    """2,000 rounds of 12 clients with probability 0.25 in 5 slots."""
    rounds, clients, slots, q = 2000, 12, 5, 0.25
    timeline = timelines.poisson(KEY, rounds, clients, q, np.arange(clients), slots=slots)
    chosen, mask = np.asarray(timeline.clients), np.asarray(timeline.mask)
    assert (np.sort(chosen, axis=1)[:, 1:] > np.sort(chosen, axis=1)[:, :-1]).all()
    np.testing.assert_array_equal(timeline.num_steps, chosen)
    full = timelines.overflow_probability(clients, q, slots - 1)
    share = (mask.sum(1) == slots).mean()
    assert abs(share - full) < 5 * np.sqrt(full * (1 - full) / rounds)
    empty = (1 - q) ** clients
    assert abs((mask.sum(1) == 0).mean() - empty) < 5 * np.sqrt(empty / rounds)
    # Every client equally often, also in the first slot of a round with few clients.
    alone = mask.sum(1) <= 2
    for visits in (chosen[mask], chosen[alone][mask[alone]]):
        counts = np.bincount(visits, minlength=clients)
        mean = counts.mean()
        assert ((counts - mean) ** 2 / mean).sum() < 40  # chi-squared, 11 degrees of freedom
    longer = timelines.poisson(KEY, 3, clients, q, 1, slots=slots)
    np.testing.assert_array_equal(longer.clients, chosen[:3])


@pytest.mark.slow
def test_law_of_large_populations():
    """10,000 cohorts of 100 of 10^8 clients on average, against Binomial(10^8, 10^-6)."""
    rounds, clients, q, slots = 10_000, 10**8, 1e-6, 160
    sizes = np.asarray(timelines.poisson(KEY, rounds, clients, q, 1, slots=slots).mask).sum(1)
    law = stats.binom(clients, q)
    # Five standard deviations of the mean and of the variance, which are sqrt(v / n) and
    # v sqrt(2 / n) for a law that is almost normal.
    assert abs(sizes.mean() - law.mean()) < 5 * law.std() / np.sqrt(rounds)
    assert abs(sizes.var() - law.var()) < 5 * law.var() * np.sqrt(2 / rounds)
    edges = np.unique(law.ppf([0.0005, *np.linspace(0.02, 0.98, 49), 0.9995]))
    counts = np.bincount(np.searchsorted(edges, sizes), minlength=len(edges) + 1)
    expected = rounds * np.diff([0, *law.cdf(edges), 1])
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < stats.chi2.isf(1e-6, len(edges))  # the probability of a false alarm


@pytest.mark.parametrize(("clients", "probability"), [(5, 0.3), (12, 1.0), (10**8, 1e-6)])
def test_overflow_is_the_tail_of_the_binomial_law(clients, probability):
    for slots in (0, 4, 5, 12, 100, 140, 180):
        tail = timelines.overflow_probability(clients, probability, slots)
        # Both are computed in float64; the relative error is that of an incomplete beta function.
        np.testing.assert_allclose(tail, stats.binom.sf(slots, clients, probability), rtol=1e-9)


@pytest.mark.parametrize(
    ("clients", "probability", "slots"),
    [(100, 0.3, 40), (1000, 0.05, 70), (10**6, 1e-5, 20), (10**8, 1e-6, 140)],
)
def test_expected_uploads_in_decimal_arithmetic(clients, probability, slots):
    """The sum of P(N > k) over k < S, with 50 digits; float64 rounds about 100 terms to 1e-14."""
    with decimal.localcontext(decimal.Context(prec=50)):
        q = decimal.Decimal(probability)
        mass = (clients * (1 - q).ln()).exp()
        below, expected = decimal.Decimal(0), decimal.Decimal(0)
        for k in range(slots):
            below += mass
            expected += 1 - below
            mass = mass * (clients - k) / (k + 1) * q / (1 - q)
    rule = rule_of(lambda: timelines.poisson(KEY, 2, clients, probability, 1, slots=slots))
    np.testing.assert_allclose(rule.expected_uploads, float(expected), rtol=1e-14)


@pytest.mark.parametrize(
    ("clients", "probability", "slots"),
    [(10_000, 0.01, 80), (10_000, 0.01, 100), (10_000, 0.01, 110), (12, 0.25, 5), (7, 1.0, 3)],
)
def test_the_recorded_uploads_are_those_of_cohorts_that_are_cut(clients, probability, slots):
    """With q M = 100, means by q M would be short by 20, 4 and 1 % at 80, 100 and 110 slots."""
    rule = rule_of(lambda: timelines.poisson(KEY, 2, clients, probability, 1, slots=slots))
    sizes = np.arange(clients + 1)
    expected = np.minimum(sizes, slots) @ stats.binom.pmf(sizes, clients, probability)
    np.testing.assert_allclose(rule.expected_uploads, expected, rtol=1e-9)  # both in float64
    short = {80: 0.2006, 100: 0.0397, 110: 0.0086}.get(slots)
    assert short is None or 1 - rule.expected_uploads / 100 == pytest.approx(short, abs=1e-4)


@pytest.mark.parametrize(
    ("clients", "probability", "rounds", "delta"),
    [
        (10_000, 0.01, 1000, 1e-5),
        (10**8, 1e-6, 3000, 1e-9),
        (200, 0.25, 30, 1e-5),
        (10, 1e-9, 1, 0.5),  # one slot at least
        (10, 0.9, 1000, 1e-5),  # a slot per client
        (10, 1.0, 1, 0.5),
    ],
)
def test_slots_are_the_fewest_that_a_tenth_of_delta_allows(clients, probability, rounds, delta):
    slots = timelines.slots_for(clients, probability, rounds, delta)

    def cut(slots):
        return rounds * stats.binom.sf(slots, clients, probability)

    assert cut(slots) <= delta / 10
    assert slots == 1 or cut(slots - 1) > delta / 10
    uploads = rule_of(lambda: timelines.poisson(KEY, 2, clients, probability, 1, slots=slots))
    # E[max(N - S, 0)] <= M P(N > S)
    lost = 1 - uploads.expected_uploads / (clients * probability)
    assert abs(lost) < max(delta / 10 / rounds / probability, 1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((9, 0.0, 4, 1e-5), "probability is 0.0; expected a positive number"),
        ((9, 1.5, 4, 1e-5), "probability is 1.5; expected at most 1"),
        ((9, 0.5, 0, 1e-5), "num_rounds is 0; expected at least 1"),
        ((0, 0.5, 4, 1e-5), "num_clients is 0; expected at least 1"),
        ((9, 0.5, 4, 1.0), r"delta is 1.0; expected a number in \(0, 1\)"),
    ],
)
def test_slots_without_a_meaning_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        timelines.slots_for(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((9, 1.5, 4), "probability is 1.5; expected at most 1"),
        ((9, -0.5, 4), "probability is -0.5; expected at least 0"),
        ((9, 0.5, -1), "slots is -1; expected at least 0"),
        ((0, 0.5, 4), "num_clients is 0; expected at least 1"),
    ],
)
def test_an_overflow_without_a_meaning_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        timelines.overflow_probability(*arguments)


def test_bad_arguments_are_refused():
    for probability, slots, message in [
        (0.0, 2, "probability is 0.0; expected a positive number"),
        (1.5, 2, "probability is 1.5; expected at most 1"),
        (0.5, 9, "slots is 9; expected 1 .. num_clients = 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            timelines.poisson(KEY, 3, 4, probability, 1, slots=slots)


def rule_of(make):
    """The rule of a timeline that is not computed."""
    return jax.eval_shape(make).sampling


def test_rules_survive_what_is_done_to_timelines():
    def bernoulli(probability=0.2):
        return timelines.bernoulli(KEY, 4, 10, probability, 1)

    def uniform():
        return timelines.uniform(KEY, 4, 10, 4, 1)

    rule = Sampling("poisson", 2.0, 10, probability=0.2)
    halved = Sampling("poisson", 1.0, 10, probability=0.1)
    assert (
        rule_of(bernoulli)
        == rule_of(lambda: timelines.delay_uploads(KEY, bernoulli(), 0.5))
        == rule
    )
    assert rule_of(lambda: timelines.dropout(KEY, bernoulli(), 0.5)) == halved
    assert rule_of(lambda: timelines.lose_uploads(KEY, bernoulli(), 0.5)) == halved
    assert jax.eval_shape(bernoulli, 0.2).sampling is None  # a traced probability
    subset = Sampling("without_replacement", 4.0, 10, 4)
    assert rule_of(uniform) == subset
    assert rule_of(lambda: timelines.dropout(KEY, uniform(), 0.5)).expected_uploads == 2.0
    assert rule_of(lambda: timelines.repeat_rounds(uniform(), 2)).repeats == 2
    assert rule_of(lambda: timelines.geometric_steps(KEY, uniform(), 0.5, 4)) == subset
    assert rule_of(lambda: timelines.stratified(KEY, 4, 11, 4, 1, num_strata=2)) == Sampling(
        "without_replacement", 4.0, 5, 2
    )
    batch = jax.vmap(lambda key: timelines.uniform(key, 4, 10, 4, 1))
    assert rule_of(lambda: batch(jax.random.split(KEY))) == subset
    for make in (
        lambda: timelines.full(4, 10, 1),
        lambda: timelines.single(4, 10, 1),
        lambda: timelines.cyclic(4, 10, 3, 1),
        lambda: timelines.weighted(KEY, 4, np.ones(10), 3, 1),
    ):
        assert rule_of(make).kind == "fixed"
    assert rule_of(lambda: timelines.full_or_uniform(KEY, 4, 10, 3, 0.5, 1)) is None
    timeline = timelines.cyclic(4, 10, 4, 1)
    for changed in (
        timeline[1:3],
        timelines.stacked([timeline, timeline]),
        timelines.arrange_by_stratum(timeline, 10, 2),
    ):
        assert changed.sampling == timeline.sampling
    other = dataclasses.replace(timeline, sampling=rule)
    assert timelines.stacked([timeline, other]).sampling is None


def test_rules_change_no_digest():
    timeline = timelines.full(3, 4, 1)
    other = dataclasses.replace(timeline, sampling=None)
    assert arrays_digest(timeline_arrays(timeline)) == arrays_digest(timeline_arrays(other))
    assert jnp.shape(timeline.clients) == (3, 4)
