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
    Availability,
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


def test_by_hand():
    """Three clients, one contacted at 7, 14, ..., steps of 2, 3.5 and 40 units, at most 5."""
    durations = np.array([2.0, 3.5, 40.0])
    timeline = contacts(
        KEY, renewal_counts(deterministic(durations)), horizon=91.0, num_clients=3, cohort_size=1,
        max_steps=5,
    )  # fmt: skip
    assert timeline.time.tolist() == [7.0 * (t + 1) for t in range(13)]
    last, done = np.zeros(3), np.zeros(3, int)
    for t in range(13):
        client, now = int(timeline.clients[t, 0]), 7.0 * (t + 1)
        steps = min(int((now - last[client]) // durations[client]), 5)
        assert int(timeline.version[t, 0]) == last[client] / 7
        assert int(timeline.num_steps[t, 0]) == steps
        assert int(timeline.first_step[t, 0]) == done[client]
        waited = now - last[client] - 5 * durations[client] if steps == 5 else 0
        assert float(timeline.idle[t, 0]) == waited
        last[client], done[client] = now, done[client] + steps
    assert set(np.ravel(timeline.clients).tolist()) == {0, 1, 2}
    assert timeline.max_steps == 5


@pytest.mark.parametrize(("strict", "steps"), [(False, 2), (True, 1)])
def test_step_that_ends_at_the_contact(strict, steps):
    timeline = contacts(
        KEY, renewal_counts(deterministic(3.5), strict=strict), horizon=21.0, num_clients=1,
        cohort_size=1, max_steps=9,
    )  # fmt: skip
    assert timeline.num_steps.tolist() == [[steps]] * 3


def test_pending_step_keeps_its_duration():
    """Durations 3, 10, 1, 1 of each visit: the step of 10 restarts until it fits."""

    def law(rng, clients, count):
        return np.broadcast_to([3.0, 10.0, 1.0, 1.0], (len(clients), count))

    for interval, pending, steps in (
        (7.0, True, [1, 0, 0]), (7.0, False, [1, 1, 1]), (10.0, True, [1, 1, 1]),
        (14.0, True, [3, 4, 3]), (99.0, True, [4, 4, 4]),
    ):  # fmt: skip
        timeline = contacts(
            KEY,
            renewal_counts(law, pending=pending),
            horizon=3 * interval,
            num_clients=1,
            cohort_size=1,
            max_steps=4,
            interval=interval,
        )
        assert timeline.num_steps.ravel().tolist() == steps


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


def test_pending_steps_are_fewer_and_follow_the_rule():
    """Against a scalar replica of the rule "draw, keep what was drawn if it does not fit"."""
    steps = renewal_counts(exponential(16.0), strict=True, pending=True)
    timeline = jax.device_get(favano_contacts(steps))
    pending = settled(timeline, timeline.num_steps)[0].ravel().astype(float)
    rng, replica = np.random.default_rng(0), []
    gaps = np.minimum(rng.geometric(S / N, (40, 800)), 200)
    for own in gaps:
        drawn = rng.exponential(16.0)
        for gap in own:
            clock, done = 0.0, 0
            while done < K and clock + drawn < 7 * gap:
                clock, done = clock + drawn, done + 1
                drawn = rng.exponential(16.0)
            replica.append(float(done))
    fresh = step_counts.poisson_renewal(16.0, K, 7.0, S / N).mean
    replica = np.array(replica)
    # Visits of a client are not independent: long steps survive. Twice the error of independent
    # ones bounds that here, and five of those.
    error = 5 * 2 * np.sqrt(pending.var() / pending.size + replica.var() / replica.size)
    assert abs(pending.mean() - replica.mean()) < error
    assert abs((pending > 0).mean() - (replica > 0).mean()) < error
    assert fresh - pending.mean() > 3 * error


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


def test_absent_time_computes_nothing_by_hand():
    """Present until 3 and from 10 on, steps of 2 units: the second one goes on at 10."""
    who = Availability(np.array([[0.0, 10.0]]), np.array([[3.0, np.inf]]))
    timeline = contacts(
        KEY,
        renewal_counts(deterministic(2.0)),
        horizon=28.0,
        num_clients=1,
        cohort_size=1,
        max_steps=3,
        availability=who,
    )
    assert timeline.mask.ravel().tolist() == [False, True, True, True]
    # By 14 it was there for 3 + 4, ends at 2, 11 and 13; then it waits.
    assert timeline.num_steps.ravel().tolist() == [0, 3, 3, 3]
    assert timeline.idle.ravel().tolist() == [0, 1, 1, 1]
    assert timeline.version.ravel().tolist() == [0, 0, 2, 3]


def test_time_spent_waiting_includes_absence():
    """Done at 2, gone from 3 to 10: at 14 it has waited for 12."""
    who = Availability(np.array([[0.0, 10.0]]), np.array([[3.0, np.inf]]))
    timeline = contacts(
        KEY,
        renewal_counts(deterministic(2.0)),
        horizon=14.0,
        num_clients=1,
        cohort_size=1,
        max_steps=1,
        availability=who,
    )
    assert timeline.idle.ravel().tolist() == [0, 12]


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


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), pending=st.booleans(), kind=st.sampled_from(["r", "l"]))
def test_in_flight_grows_to_what_the_contact_reports(seed, pending, kind):
    steps = {
        "r": renewal_counts(geometric(0.3), pending=pending),
        "l": independent_counts(geometric(0.3)),
    }[kind]
    options = {"horizon": 140.0, "num_clients": 5, "cohort_size": 2, "max_steps": 6}
    timeline = jax.device_get(contacts(jax.random.key(seed), steps, **options))
    flight = contacts_in_flight(jax.random.key(seed), steps, every=1, **options)
    assert flight.round.tolist() == list(range(1, 21))
    for t in range(1, 20):
        visits = {
            int(client): (int(version), int(done), int(first))
            for client, version, done, first in zip(
                timeline.clients[t], timeline.version[t], timeline.num_steps[t],
                timeline.first_step[t], strict=True,
            )
        }  # fmt: skip
        for client in range(5):
            before, after = (
                (int(x.version[client]), int(x.num_steps[client]), int(x.first_step[client]))
                for x in (
                    flight._replace(**{n: getattr(flight, n)[u] for n in flight._fields})
                    for u in (t - 1, t)
                )
            )
            if client in visits:
                version, done, first = visits[client]
                assert (version, first) == (before[0], before[2])
                assert done == before[1] if kind == "l" else done >= before[1]
                assert (after[0], after[2]) == (t + 1, first + done)
                assert kind == "l" or after[1] == 0
            else:
                assert (after[0], after[2]) == (before[0], before[2])
                assert after[1] >= before[1]


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
