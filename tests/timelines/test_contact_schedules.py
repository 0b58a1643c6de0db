"""Contacts at regular times: exact small cases, and the laws of gaps, contacts and steps."""

import functools

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given

from fedjax_sim.theory import step_counts
from fedjax_sim.timelines import (
    alternating,
    contacts,
    contacts_in_flight,
    deterministic,
    exponential,
    geometric,
    independent_counts,
    renewal_counts,
    two_speeds,
)

KEY = jax.random.key(0)
N, S, K = 100, 20, 20  # FAVANO's: 34 of 100 clients slow
SUCCESS = two_speeds(jax.random.key(9), N, 1 / 3, fast=1 / 2, slow=1 / 16)
SLOW = SUCCESS == 1 / 16
LONG = 7.0 * 1500


def favano_contacts(steps, horizon=LONG, key=KEY):
    return contacts(
        key, steps, horizon=horizon, num_clients=N, cohort_size=S, max_steps=K
    )  # fmt: skip


@functools.cache
def long_run():
    return jax.device_get(favano_contacts(renewal_counts(geometric(SUCCESS))))


def gaps_of(timeline):
    """Contacts since each visit's last one, and 0 for the first, ``[T, S]``."""
    rounds = np.arange(timeline.num_rounds)[:, None]
    first = np.zeros_like(timeline.clients, bool)
    seen = set()
    for t, row in enumerate(timeline.clients):
        first[t] = [client not in seen for client in row]
        seen |= set(row.tolist())
    return np.where(first, 0, rounds - timeline.version + 1)


def settled(timeline, values):
    """Returns the visits from contact 80 on.

    The distance to the last contact is then geometric, up to 0.8^80 = 2e-8, for every horizon; an
    average over gaps that END by a horizon is biased.
    """
    return values[80:], timeline.clients[80:]


def within(samples, expected, errors=5):
    """Five standard errors of a mean of independent samples."""
    return abs(samples.mean() - expected) < errors * samples.std() / np.sqrt(samples.size)


# ---- exact cases


def test_receives_current():
    """Contacts and steps are equal, and the server's model is the current one: no staleness."""
    new, current = (
        contacts(
            KEY,
            renewal_counts(geometric(0.3)),
            horizon=210.0,
            num_clients=6,
            cohort_size=2,
            max_steps=4,
            receives=receives,
        )
        for receives in ("new", "current")
    )
    for name in ("clients", "num_steps", "first_step", "mask", "time", "idle"):
        np.testing.assert_array_equal(getattr(new, name), getattr(current, name))
    np.testing.assert_array_equal(current.version, np.arange(30)[:, None].repeat(2, 1))
    assert current.max_staleness == current.num_buffers == 0
    assert new.max_staleness > 1
    assert 0 < new.num_buffers <= 7


def test_steps_in_5000_units():
    assert favano_contacts(renewal_counts(deterministic(2.0)), 5000.0).num_rounds == 714
    timeline = long_run()
    np.testing.assert_array_equal(timeline.time, 7.0 * np.arange(1, 1501))
    short = contacts(
        KEY,
        renewal_counts(deterministic(2.0)),
        horizon=0.3,
        num_clients=1,
        cohort_size=1,
        max_steps=1,
        interval=0.1,
    )
    assert short.num_rounds == 3  # although 0.3 / 0.1 is rounded to less


def test_one_key_contacts_the_same_clients():
    other = favano_contacts(independent_counts(geometric(SUCCESS)), 700.0)
    np.testing.assert_array_equal(other.clients, long_run().clients[:100])
    apart = favano_contacts(independent_counts(geometric(SUCCESS)), 700.0, jax.random.key(1))
    assert (np.asarray(apart.clients) != long_run().clients[:100]).any()


# ---- distributions


def test_contacts_are_uniform_subsets():
    """All 10 pairs of 5 clients equally often, in any order."""
    timeline = contacts(
        KEY, renewal_counts(deterministic(1.0)), horizon=7.0 * 3000, num_clients=5, cohort_size=2,
        max_steps=1,
    )  # fmt: skip
    pairs = np.sort(timeline.clients, axis=1)
    found = np.bincount(5 * pairs[:, 0] + pairs[:, 1])
    assert (found > 0).sum() == 10
    assert scipy.stats.chisquare(found[found > 0]).pvalue > 0.01


def test_number_of_contacts_is_binomial():
    """Its variance over 100 clients to five standard errors, sqrt(2 / 100) of it each."""
    found = np.bincount(np.ravel(long_run().clients), minlength=N)
    assert found.mean() == 1500 * S / N
    variance = 1500 * S / N * (1 - S / N)
    assert abs(found.var() - variance) < 5 * variance * np.sqrt(2 / N)


def test_gaps_are_geometric():
    gaps, _ = settled(long_run(), gaps_of(long_run()))
    found = np.bincount(np.minimum(gaps.ravel(), 15), minlength=16)
    assert found[0] == 0
    expected = scipy.stats.geom.pmf(np.arange(1, 16), S / N)
    expected[-1] = scipy.stats.geom.sf(14, S / N)
    assert scipy.stats.chisquare(found[1:], expected * found.sum()).pvalue > 0.01


@pytest.mark.parametrize("law", ["geometric", "strict", "exponential"])
def test_steps_against_their_closed_forms(law):
    """Mean, second moment, inverse and P(E > 0), of 10,000 to 19,000 visits; the gaps between
    contacts are those of every client, so that the visits of a class are independent."""
    laws = {
        "geometric": (
            renewal_counts(geometric(SUCCESS)),
            lambda p: step_counts.renewal(p, K, 7, S / N),
        ),
        "strict": (
            renewal_counts(geometric(SUCCESS), strict=True),
            lambda p: step_counts.renewal(p, K, 7, S / N, True),
        ),
        "exponential": (
            renewal_counts(exponential(1 / SUCCESS)),
            lambda p: step_counts.poisson_renewal(1 / p, K, 7.0, S / N),
        ),
    }
    steps, closed_form = laws[law]
    timeline = long_run() if law == "geometric" else jax.device_get(favano_contacts(steps))
    done, clients = settled(timeline, timeline.num_steps)
    for slow, success in ((False, 1 / 2), (True, 1 / 16)):
        samples = done[SLOW[clients] == slow].astype(float)
        expected = closed_form(success)
        assert within(samples > 0, expected.p_active)
        assert within(samples, expected.mean)
        assert within(samples**2, expected.second_moment)
        assert within(np.where(samples > 0, 1 / np.maximum(samples, 1), 0), expected.inverse)


@pytest.mark.parametrize("first", [0, 1])
def test_literal_steps(first):
    """Their law does not depend on the gap; slow clients do more."""
    timeline = jax.device_get(favano_contacts(independent_counts(geometric(SUCCESS), first=first)))
    gaps = gaps_of(timeline)
    for slow, success in ((False, 1 / 2), (True, 1 / 16)):
        expected = step_counts.geometric(success, K, first)
        for chosen in (gaps <= 3, gaps > 3):
            samples = timeline.num_steps[chosen & (SLOW[timeline.clients] == slow)].astype(float)
            assert samples.min() == first
            assert within(samples, expected.mean)
            assert within(samples**2, expected.second_moment)
            assert within(samples > 0, expected.p_active) or first == 1
    assert not timeline.idle.any()


# ---- those who come and go


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), cohort=st.integers(1, 4))
def test_only_those_present_are_contacted(seed, cohort):
    who = alternating(jax.random.key(seed), 4, 100.0, mean_present=9.0, mean_absent=12.0)
    timeline = contacts(
        jax.random.key(seed + 1), renewal_counts(geometric(0.3)), horizon=100.0, num_clients=4,
        cohort_size=cohort, max_steps=5, availability=who,
    )  # fmt: skip
    timeline = jax.device_get(timeline)
    for t, (row, mask) in enumerate(zip(timeline.clients, timeline.mask, strict=True)):
        here = np.flatnonzero(who.present(7.0 * (t + 1)))
        chosen = row[mask].tolist()
        assert len(set(chosen)) == len(chosen) == min(cohort, len(here))
        assert set(chosen) <= set(here.tolist())


# ---- in between


def test_in_flight_by_hand():
    """Steps of exactly one interval: as many as contacts since the own last one."""
    options = {"horizon": 70.0, "num_clients": 4, "cohort_size": 1, "max_steps": 3}
    flight = contacts_in_flight(KEY, renewal_counts(deterministic(7.0)), every=3, **options)
    assert flight.round.tolist() == [3, 6, 9]
    since = flight.round[:, None] - flight.version
    np.testing.assert_array_equal(flight.num_steps, np.minimum(since, 3))
    none = contacts_in_flight(KEY, renewal_counts(deterministic(7.0)), every=11, **options)
    assert none.round.size == none.version.size == 0


GOOD = {"horizon": 70.0, "num_clients": 4, "cohort_size": 2, "max_steps": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"horizon": 6.9}, r"horizon is 6\.9; expected a finite time, at least the interval, 7\.0"),
        ({"horizon": np.nan}, "horizon is nan"),
        ({"horizon": np.inf}, "horizon is inf"),
        ({"interval": 0.0}, r"interval is 0\.0; expected a positive number"),
        ({"cohort_size": 0}, r"cohort_size is 0; expected 1 \.\. num_clients = 4"),
        ({"cohort_size": 5}, r"cohort_size is 5; expected 1 \.\. num_clients = 4"),
        ({"max_steps": 0}, "max_steps is 0; expected at least 1"),
    ],
)
def test_refuses(change, message):
    steps = renewal_counts(deterministic(1.0))
    with pytest.raises(ValueError, match=message):
        contacts(KEY, steps, **GOOD | change)
    with pytest.raises(ValueError, match=message):
        contacts_in_flight(KEY, steps, every=1, **GOOD | change)


def test_refuses_other_words_and_numbers():
    steps = renewal_counts(deterministic(1.0))
    with pytest.raises(ValueError, match="receives is 'old'; expected 'new' or 'current'"):
        contacts(KEY, steps, receives="old", **GOOD)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="every is 0; expected at least 1"):
        contacts_in_flight(KEY, steps, every=0, **GOOD)
    with pytest.raises(ValueError, match="first is 2; expected 0 or 1"):
        independent_counts(geometric(0.5), first=2)
