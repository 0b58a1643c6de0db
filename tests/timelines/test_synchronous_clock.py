"""FedAvg's clock: rounds as long as their slowest client takes, exactly and in the mean."""

import jax
import numpy as np
import pytest
from small_problems import no_data

import fedjax_sim as fs
from fedjax_sim.timelines import (
    Availability,
    alternating,
    deterministic,
    geometric,
    synchronous,
    two_speeds,
)

KEY = jax.random.key(0)
DURATIONS = np.array([2.0, 5.0, 1.0])


def rounds(durations=DURATIONS, **options):
    options = {"num_clients": len(durations), "cohort_size": 2, "num_steps": 3} | options
    return jax.device_get(synchronous(KEY, deterministic(durations), **options))


def test_by_hand():
    timeline = rounds(horizon=200.0)
    now = 0.0
    for t in range(timeline.num_rounds):
        ends = 3 * DURATIONS[timeline.clients[t]]
        now += ends.max() + 3.0
        assert timeline.time[t] == now
        np.testing.assert_array_equal(timeline.idle[t], ends.max() - ends)
    assert now <= 200 < now + 3 + 3 * DURATIONS.max()
    assert set(timeline.clients.ravel().tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(timeline.version, np.arange(len(timeline.time))[:, None] + [0, 0])
    assert (timeline.num_steps == 3).all()
    assert timeline.mask.all()
    assert (timeline.max_steps, timeline.max_staleness, timeline.num_buffers) == (3, 0, 0)
    for client in range(3):
        firsts = timeline.first_step[timeline.clients == client]
        np.testing.assert_array_equal(firsts, 3 * np.arange(len(firsts)))


def test_instants_beyond_single_precision_are_distinct():
    """Rounds of 100,000,001 units: single precision knows multiples of 8 there, and of 16."""
    timeline = rounds(np.array([100_000_001.0, 1.0]), horizon=4e8, num_steps=1, interaction=0.0)
    assert timeline.time.tolist() == [100_000_001, 200_000_002, 300_000_003]
    assert sorted(timeline.idle[0].tolist()) == [0, 100_000_000]
    assert np.float32(timeline.time[0]) != timeline.time[0]
    setup = fs.Setup(no_data(2), timeline, np.zeros(1, np.float32), eval_fn=lambda x: {"x": x})
    frame = fs.simulate(fs.fedavg(0.1), setup, KEY).to_frame().query("metric == 'time'")
    assert frame["value"].tolist() == timeline.time.tolist()


def test_a_visit_takes_the_sum_of_its_steps_durations():
    def law(rng, clients, count):
        return np.broadcast_to([1.0, 2.0, 3.0], (len(clients), count))

    timeline = synchronous(
        KEY, law, horizon=40.0, num_clients=2, cohort_size=2, num_steps=3, interaction=0.5
    )
    assert timeline.time[0] == 1 + 2 + 3 + 0.5


@pytest.mark.parametrize(
    ("slow_fraction", "published", "steps"), [(1 / 3, 418.9, {11, 12}), (8 / 9, 461.4, {10, 11})]
)
def test_mean_length_of_a_round(slow_fraction, published, steps):
    """Against the published mean, to 0.05 and four standard errors of about 1,000 independent
    rounds, 0.5 % at most; and rounds in 5,000 units: 5000 / 418.9 = 11.94 and 5000 / 461.4 = 10.84
    in the mean."""
    success = two_speeds(jax.random.key(4), 100, slow_fraction, fast=1 / 2, slow=1 / 16)
    timeline = jax.device_get(
        synchronous(
            KEY,
            geometric(success),
            horizon=1000 * published,
            num_clients=100,
            cohort_size=20,
            num_steps=20,
        )
    )
    lengths = np.diff(np.asarray(timeline.time, np.float64), prepend=0.0)
    error = lengths.std() / np.sqrt(len(lengths))
    assert error < 0.005 * published
    assert abs(lengths.mean() - published) < 0.05 + 4 * error
    assert np.count_nonzero(timeline.time <= 5000.0) in steps


def test_cohorts_are_uniform():
    """Each of 8 clients is in 1,000 T / 8 of the cohorts of 3; five deviations."""
    timeline = rounds(np.ones(8), horizon=4000.0, cohort_size=3, num_steps=1)
    found = np.bincount(timeline.clients.ravel(), minlength=8)
    expected = timeline.num_rounds * 3 / 8
    assert np.abs(found - expected).max() < 5 * np.sqrt(expected * 5 / 8)
    assert (np.diff(np.sort(timeline.clients, axis=1)) > 0).all()


def test_waits_for_who_returns():
    """Client 0 is gone from 3 to 10: its work of 6 units ends at 13."""
    who = Availability(
        np.array([[0.0, 10.0], [0.0, np.inf]]), np.array([[3.0, np.inf], [np.inf] * 2])
    )
    timeline = rounds(np.array([2.0, 5.0]), horizon=20.0, availability=who)
    assert timeline.time.tolist() == [18]
    assert sorted(timeline.idle[0].tolist()) == [0, 2]
    timeline = rounds(np.array([2.0, 1.0]), horizon=20.0, availability=who)
    assert timeline.time.tolist() == [16]
    assert sorted(timeline.idle[0].tolist()) == [0, 10]


def test_does_not_wait_for_who_never_returns():
    who = Availability(np.zeros((2, 1)), np.array([[3.0], [np.inf]]))
    timeline = rounds(np.array([2.0, 1.0]), horizon=20.0, availability=who)
    assert timeline.time.tolist() == [6, 12, 18]
    reported = [
        row[mask].tolist() for row, mask in zip(timeline.clients, timeline.mask, strict=True)
    ]
    assert reported == [[1]] * 3
    assert timeline.first_step[timeline.mask].tolist() == [0, 3, 6]


def test_goes_on_when_the_whole_cohort_left_for_good():
    """One client a round. If it is the one that leaves at 3 the round ends then, without report."""
    who = Availability(np.zeros((2, 1)), np.array([[3.0], [np.inf]]))
    first = set()
    for k in range(8):
        timeline = synchronous(
            jax.random.key(k), deterministic(np.array([2.0, 1.0])), horizon=20.0, num_clients=2,
            cohort_size=1, num_steps=3, availability=who,
        )  # fmt: skip
        assert timeline.time.tolist() == [6, 12, 18]
        first.add((int(timeline.clients[0, 0]), bool(timeline.mask[0, 0])))
        assert np.asarray(timeline.mask)[1:].all()
        assert set(np.ravel(timeline.clients)[1:].tolist()) == {1}
    assert first == {(0, False), (1, True)}


def test_nobody_there():
    """Time passes until someone comes; the update is empty."""
    who = Availability(np.array([[10.0]]), np.array([[np.inf]]))
    timeline = rounds(np.array([2.0]), horizon=30.0, cohort_size=1, availability=who)
    assert timeline.time.tolist() == [13, 22]
    assert timeline.mask.ravel().tolist() == [False, True]
    assert timeline.idle.ravel().tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"horizon is 8\.0; expected at least the time of the fir"):
        rounds(np.array([2.0]), horizon=8.0, cohort_size=1, availability=who)


def test_only_those_present_begin():
    who = alternating(jax.random.key(1), 6, 300.0, mean_present=15.0, mean_absent=15.0)
    timeline = rounds(np.ones(6), horizon=300.0, cohort_size=4, availability=who)
    begun = np.concatenate([[0.0], timeline.time[:-1]])
    for start, row, mask in zip(begun, timeline.clients, timeline.mask, strict=True):
        assert who.present(start + 1e-3)[row[mask]].all()
    assert not timeline.mask.all()
    assert timeline.mask.any(axis=1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cohort_size": 0}, r"cohort_size is 0; expected 1 \.\. num_clients = 3"),
        ({"cohort_size": 4}, r"cohort_size is 4; expected 1 \.\. num_clients = 3"),
        ({"num_steps": 0}, "num_steps is 0; expected at least 1"),
        ({"interaction": -1.0}, r"interaction is -1\.0; expected at least 0"),
        ({"interaction": np.nan}, "interaction is nan; expected at least 0"),
        ({"horizon": 2.0}, r"horizon is 2\.0; expected at least the time of the first update"),
        ({"horizon": np.inf}, "horizon is inf; expected a finite time"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        rounds(**{"horizon": 50.0} | change)


def test_refuses_durations_that_let_time_stand_still():
    with pytest.raises(ValueError, match=r"horizon is 50\.0, but after 4096 updates"):
        rounds(1e-9 * DURATIONS, horizon=50.0, interaction=0.0)
