"""Presence: its two clocks are inverse to each other, and periods are what they should be."""

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

from fedjax_sim.timelines import (
    Availability,
    alternating,
    always,
    arrivals,
    contacts,
    deterministic,
    renewal_counts,
    synchronous,
)

# Lengths of absences and presences in turn, in quarters: sums are exact.
quarters = st.integers(1, 40).map(lambda n: n / 4)
lives = st.lists(
    st.tuples(
        st.booleans(),  # present at first
        st.lists(quarters, max_size=7),
        st.booleans(),  # there for good in the end
    ),
    min_size=1,
    max_size=4,
)


def availability(lives) -> tuple[Availability, list[list[tuple[float, float]]]]:
    periods = []
    for present, lengths, stays in lives:
        own, time = [], 0.0
        for length in lengths:
            if present:
                own.append((time, time + length))
            time, present = time + length, not present
        if stays:
            if own and own[-1][1] == time:
                own[-1] = (own[-1][0], np.inf)
            else:
                own.append((time, np.inf))
        periods.append(own)
    table = np.full((len(periods), 1 + max(map(len, periods)), 2), np.inf)
    for client, own in enumerate(periods):
        table[client, : len(own)] = np.reshape(own, (-1, 2))
    return Availability(table[..., 0], table[..., 1]), periods


@given(lives, st.integers(0, 400).map(lambda n: n / 4))
def test_present_and_active_by_hand(lives, time):
    who, periods = availability(lives)
    here = [any(a <= time < b for a, b in own) for own in periods]
    assert who.present(time).tolist() == here
    spent = [sum(min(b, time) - min(a, time) for a, b in own) for own in periods]
    assert who.active(time).tolist() == spent


@given(lives, st.integers(1, 400).map(lambda n: n / 4))
def test_when_inverts_active(lives, target):
    """The first moment at which a client has been present for so long; inf beyond its life."""
    who, periods = availability(lives)
    clients = np.arange(len(periods))[::-1]
    found = who.when(clients, np.full(len(clients), target))
    for client, time in zip(clients, found, strict=True):
        total = sum(b - a for a, b in periods[client])
        if total < target:
            assert time == np.inf
        else:
            assert who.active(time)[client] == target
            assert who.active(time - 0.125)[client] < target


@given(lives, st.integers(0, 400).map(lambda n: n / 4))
def test_active_inverts_when(lives, time):
    """At a moment of presence; a moment of absence leads back to the client's leaving."""
    who, periods = availability(lives)
    clients = np.arange(len(periods))
    spent = who.active(time)
    back = who.when(clients, spent)
    for client in clients[spent > 0]:
        ends = [b for a, b in periods[client] if a < time]
        assert back[client] == min(time, ends[-1])


def test_always():
    who = always(3)
    assert who.present(1e9).all()
    assert who.active(12.5).tolist() == [12.5] * 3
    assert who.when(np.array([2, 0]), np.array([1.5, 7.0])).tolist() == [1.5, 7.0]


def test_periods_of_comings_and_goings():
    """Ordered and apart; whoever is there at the horizon stays; unused ones fill up with inf."""
    horizon = 50.0
    who = alternating(jax.random.key(0), 300, horizon, mean_present=8.0, mean_absent=4.0)
    used = np.isfinite(who.start)
    assert (who.start[used] < who.end[used]).all()
    assert (who.end[~used] == np.inf).all()
    later = used[:, 1:]
    assert (later <= used[:, :-1]).all()
    assert (who.end[:, :-1][later] < who.start[:, 1:][later]).all()
    finite = np.isfinite(who.end)
    assert who.start[used].max() < horizon
    assert who.end[finite].max() < horizon
    np.testing.assert_array_equal(who.present(horizon), who.present(1e6))
    assert 0 < who.present(horizon).mean() < 1
    # Lengths of complete periods that begin early: exponential but for those cut off (e^-5 of
    # them, 1 in 150 of the mean at most 5 e^-5 lower); five standard errors.
    early = used & finite & (who.start < 10)
    lengths = (who.end - np.where(used, who.start, 0.0))[early]
    assert abs(lengths.mean() - 8) < 5 * 8 / np.sqrt(len(lengths)) + 0.3


def test_long_run_share():
    """5 standard errors over 4,000 independent clients, at the start and later."""
    who = alternating(jax.random.key(1), 4000, 100.0, mean_present=3.0, mean_absent=1.0)
    for time in (0.0, 2.0, 60.0):
        assert abs(who.present(time).mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 4000)


@pytest.mark.parametrize("name", ["horizon", "mean_present", "mean_absent"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_refuses(name, value):
    options = {"horizon": 5.0, "mean_present": 1.0, "mean_absent": 1.0} | {name: value}
    with pytest.raises(ValueError, match=rf"{name} is {value}; expected a positive finite number"):
        alternating(jax.random.key(0), 2, **options)


@pytest.mark.parametrize("count", [2, 5])
def test_periods_of_another_population_are_refused(count):
    """Clients beyond the population would report; clients without periods never would."""
    sizes = {"horizon": 90.0, "num_clients": 3, "availability": always(count)}
    key, durations = jax.random.key(0), deterministic(1.0)
    builds = [
        lambda: synchronous(key, durations, cohort_size=2, num_steps=1, **sizes),
        lambda: arrivals(key, durations, num_steps=1, **sizes),
        lambda: contacts(key, renewal_counts(durations), cohort_size=2, max_steps=1, **sizes),
    ]
    for build in builds:
        message = f"availability has {count} clients; expected 3, num_clients"
        with pytest.raises(ValueError, match=message):
            build()


WRONG_PERIODS = {
    "overlap": ([[0.0, 2.0]], [[5.0, 9.0]], "client 0 has end 5.0 and then start 2.0"),
    "unordered": ([[6.0, 0.0]], [[9.0, 3.0]], "client 0 has end 9.0 and then start 0.0"),
    "backwards": ([[5.0]], [[2.0]], "client 0 has start 5.0 and then end 2.0"),
    "nan": ([[0.0]], [[np.nan]], "end has shape .* and 1 NaN"),
    "flat": ([0.0], [1.0], r"start has shape \(1,\)"),
    "shapes": ([[0.0, 4.0]], [[1.0]], r"end has shape \(1, 1\); expected \(1, 2\)"),
    "words": ([["now"]], [["never"]], "start is .*expected an array of numbers"),
}


@pytest.mark.parametrize("wrong", WRONG_PERIODS)
def test_wrong_periods_are_refused(wrong):
    """Overlaps would count twice: six seconds of work were done in four."""
    start, end, message = WRONG_PERIODS[wrong]
    who, key = Availability(start, end), jax.random.key(0)
    law = deterministic(1.0)
    with pytest.raises(ValueError, match=f"^availability.*{message}"):
        arrivals(key, law, horizon=9.0, num_clients=1, num_steps=1, availability=who)
    with pytest.raises(ValueError, match=f"^availability.*{message}"):
        synchronous(
            key, law, horizon=9.0, num_clients=1, cohort_size=1, num_steps=1, availability=who
        )
    with pytest.raises(ValueError, match=f"^availability.*{message}"):
        contacts(
            key, renewal_counts(law), horizon=9.0, num_clients=1, cohort_size=1, max_steps=9,
            availability=who,
        )  # fmt: skip


def test_periods_of_lists_and_other_types():
    key, law = jax.random.key(0), deterministic(1.0)
    who = Availability([[0.0, 4.0]], [[2.0, 8.0]])
    timeline = arrivals(key, law, horizon=9.0, num_clients=1, num_steps=1, availability=who)
    assert timeline.time.tolist() == [1, 2, 5, 6, 7, 8]
    with pytest.raises(ValueError, match=r"^availability is a tuple; expected an fs.timelines.Av"):
        arrivals(key, law, horizon=9.0, num_clients=1, num_steps=1, availability=([[0.0]], [[9.0]]))
