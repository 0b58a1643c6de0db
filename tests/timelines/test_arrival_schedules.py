"""Reports as clients are done: exact small cases, and the published long-run rates."""

import jax
import numpy as np
import pytest
import scipy.stats

from fedjax_sim.timelines import (
    Availability,
    arrivals,
    arrivals_in_flight,
    deterministic,
    exponential,
    geometric,
    log_normal,
    two_speeds,
)

KEY = jax.random.key(0)


def by_hand(durations, **options):
    timeline = arrivals(
        KEY, deterministic(np.array(durations)), num_clients=len(durations), **options
    )
    return jax.device_get(timeline)


def rows(timeline):
    """Per update its time and the (client, version, idle) of its reports."""
    return [
        (float(time), list(zip(*(x.tolist() for x in visits), strict=True)))
        for time, *visits in zip(
            timeline.time, timeline.clients, timeline.version, timeline.idle, strict=True
        )
    ]


# ---- exact cases


def test_buffer_by_hand():
    """Steps of 2, 3 and 10 units, a buffer of two; the server takes 1 unit, clients none of it."""
    timeline = by_hand([2.0, 3.0, 10.0], horizon=12.0, num_steps=1, buffer=2, interaction=1.0)
    assert rows(timeline) == [
        (4.0, [(0, 0, 1.0), (1, 0, 0.0)]),  # full at 3; both go on at 3, done at 5 and 6
        (7.0, [(0, 1, 1.0), (1, 1, 0.0)]),
        (10.0, [(0, 2, 1.0), (1, 2, 0.0)]),  # full at 9; done at 11 and 12
        (12.0, [(2, 0, 1.0), (0, 3, 0.0)]),
    ]
    assert timeline.mask.all()
    assert (timeline.num_steps == 1).all()
    assert timeline.first_step.tolist() == [[0, 0], [1, 1], [2, 2], [0, 3]]
    assert (timeline.max_steps, timeline.max_staleness, timeline.num_buffers) == (1, 3, 2)


def test_busy_server_by_hand():
    """Arrivals at 1 and 2 units, K = 2 steps; the server takes 5, so that reports queue."""
    timeline = by_hand([0.5, 1.0], horizon=16.0, num_steps=2, interaction=5.0)
    assert rows(timeline) == [
        (6.0, [(0, 0, 0.0)]),
        # Client 1's of 2, then that of 2 of client 0, who began again at 1.
        (11.0, [(1, 0, 4.0)]),
        (16.0, [(0, 1, 9.0)]),
    ]


def test_concurrency_of_the_same():
    """Only so many clients ever work, in whatever order."""
    timeline = by_hand([1.0, 2.0, 3.0, 4.0, 5.0], horizon=60.0, num_steps=1, concurrency=2)
    working = sorted(set(timeline.clients.ravel().tolist()))
    assert len(working) == 2
    done = np.bincount(timeline.clients.ravel(), minlength=5)
    assert done[working].tolist() == [60 // (client + 1) for client in working]
    keys = jax.random.split(KEY, 30)
    law = deterministic(1.0)
    first = [
        arrivals(key, law, horizon=1.0, num_clients=5, num_steps=1, concurrency=2) for key in keys
    ]
    assert set(np.ravel([timeline.clients for timeline in first]).tolist()) == set(range(5))


@pytest.mark.slow
def test_random_assignment():
    """Everybody gets the same share of the jobs, however slow; C - 1 others are under way.

    Each update ages these by one, so that delays add up to (C - 1) T but for those under way at the
    end, C of them.
    """
    mean = np.array([1.0, 1.0, 1.0, 1.0, 4.0, 4.0])
    timeline = jax.device_get(
        arrivals(
            KEY,
            exponential(mean),
            horizon=4000.0,
            num_clients=6,
            num_steps=1,
            concurrency=3,
            assign="random",
        )
    )
    updates = timeline.num_rounds
    done = np.bincount(timeline.clients.ravel(), minlength=6)
    # Drawn uniformly, up to the jobs under way, whatever their durations.
    assert scipy.stats.chisquare(done).pvalue > 0.01
    delays = np.arange(updates)[:, None] - timeline.version
    assert 0 <= 2 * updates - delays.sum() <= 3 * (timeline.max_staleness + 1)
    # A client's jobs, one after the other: its reports are at least one duration apart.
    assert timeline.max_staleness > 6
    same = arrivals(
        KEY, exponential(mean), horizon=4000.0, num_clients=6, num_steps=1, concurrency=6
    )
    share = np.bincount(np.ravel(same.clients), minlength=6) / same.num_rounds
    # In proportion to speed: 4 of 4.5 of the fast; five standard errors of a count.
    np.testing.assert_allclose(share, 1 / mean / 4.5, atol=5 * 0.5 / np.sqrt(same.num_rounds))


def test_jobs_of_a_client_follow_each_other():
    """Two jobs at a time for one client: each takes its 2 units, the second waits for the first."""
    timeline = jax.device_get(
        arrivals(
            KEY,
            deterministic(2.0),
            horizon=200.0,
            num_clients=2,
            num_steps=1,
            concurrency=2,
            assign="random",
        )
    )
    for client in range(2):
        times = timeline.time[timeline.clients[:, 0] == client]
        assert np.diff(times).min() >= 2
    assert np.diff(timeline.time).max() == 2  # someone always works


# ---- those who come and go


def test_whoever_never_returns_reports_no_more():
    who = Availability(np.zeros((2, 1)), np.array([[3.0], [np.inf]]))
    timeline = by_hand([1.0, 4.0], horizon=20.0, num_steps=1, availability=who)
    assert np.bincount(timeline.clients.ravel()).tolist() == [3, 5]
    # A buffer that needs the other one is never full again.
    timeline = by_hand([1.0, 4.0], horizon=90.0, num_steps=1, buffer=2, availability=who)
    assert timeline.time.tolist() == [4]
    with pytest.raises(ValueError, match=r"horizon is 90\.0; expected at least the time of the fi"):
        by_hand([4.0, 4.0], horizon=90.0, num_steps=1, buffer=2, availability=who)


# ---- in between


# ---- long-run rates


def long_run(slow_fraction, horizon, **options):
    success = two_speeds(jax.random.key(4), 100, slow_fraction, fast=1 / 2, slow=1 / 16)
    timeline = arrivals(
        jax.random.key(5), geometric(success), horizon=horizon, num_clients=100, **options
    )
    return jax.device_get(timeline), success


def batch_mean(samples, batches=20):
    """Mean and its standard error, from means of consecutive stretches."""
    means = np.array([part.mean() for part in np.array_split(samples, batches)])
    return means.mean(), means.std(ddof=1) / np.sqrt(batches)


@pytest.mark.parametrize(
    ("slow_fraction", "horizon", "step_time", "share", "ratio"),
    [(1 / 3, 25_000.0, (6.07, 6.07), 0.064, 0.133), (8 / 9, 60_000.0, (20.2, 20.3), 0.548, 0.150)],
)
def test_fedbuff_in_the_long_run(slow_fraction, horizon, step_time, share, ratio):
    """Published to so many digits; four standard errors of batch means, at most 0.5 %."""
    timeline, success = long_run(slow_fraction, horizon, num_steps=20, buffer=10, interaction=3.0)
    late = timeline.time > 2000  # at the start all clients are in step
    mean, error = batch_mean(np.diff(timeline.time[late].astype(float)))
    assert error < 0.005 * mean
    assert step_time[0] - 0.005 - 4 * error < mean < step_time[1] + 0.005 + 4 * error
    slow = success == 1 / 16
    reports = slow[timeline.clients[late]].mean(axis=1)
    found, error = batch_mean(reports)
    assert abs(found - share) < 4 * error + 0.0005
    per_client = found / slow.sum() / ((1 - found) / (~slow).sum())
    assert abs(per_client - ratio) < 4 * error / share * ratio + 0.0005


@pytest.mark.slow
def test_fedbuff_steps_in_5000_units():
    """824 and 247 are 5000 over the long-run mean. At first only the fast clients report, so that
    there are a few steps less; the mean over three keys has an error of half a per cent."""
    for slow_fraction, steps in ((1 / 3, 824), (8 / 9, 247)):
        success = two_speeds(jax.random.key(4), 100, slow_fraction, fast=1 / 2, slow=1 / 16)
        found = [
            arrivals(
                jax.random.key(k), geometric(success), horizon=5000.0, num_clients=100,
                num_steps=20, buffer=10, interaction=3.0,
            ).num_rounds
            for k in range(3)
        ]  # fmt: skip
        assert 0.97 * steps < np.mean(found) < 1.005 * steps


@pytest.mark.slow
def test_async_sgd_in_the_long_run():
    """Gradients arrive at the sum of the clients' rates; published: every 0.0285 units."""
    timeline, success = long_run(1 / 3, 300.0, num_steps=1)
    rate = success.sum()
    assert round(1 / rate, 4) == 0.0285
    late = timeline.time > 50
    # Whole units: updates of one unit come together, so count them by the unit.
    per_unit = np.bincount(timeline.time[late].astype(int))[51:]
    mean, error = batch_mean(per_unit.astype(float))
    assert error < 0.02 * rate
    assert abs(mean - rate) < 4 * error


GOOD = {"horizon": 50.0, "num_clients": 4, "num_steps": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_steps": 0}, "num_steps is 0; expected at least 1"),
        ({"buffer": 0}, r"buffer is 0; expected 1 \.\. concurrency = 4"),
        ({"buffer": 5}, r"buffer is 5; expected 1 \.\. concurrency = 4"),
        ({"restart": "later"}, "restart is 'later'; expected 'new' or 'old'"),
        ({"interaction": -1.0}, r"interaction is -1\.0; expected at least 0"),
        ({"interaction": np.nan}, "interaction is nan; expected at least 0"),
        ({"horizon": np.inf}, "horizon is inf; expected a finite time"),
    ],
)
def test_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        arrivals(KEY, deterministic(1.0), **GOOD | change)
    with pytest.raises(ValueError, match=message):
        arrivals_in_flight(KEY, deterministic(1.0), every=1, **GOOD | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"concurrency": 0}, r"concurrency is 0; expected 1 \.\. num_clients = 4"),
        ({"concurrency": 5}, "concurrency is 5"),
        ({"concurrency": 2, "buffer": 3}, r"buffer is 3; expected 1 \.\. concurrency = 2"),
        ({"assign": "other"}, "assign is 'other'; expected 'same' or 'random'"),
        ({"assign": "random", "buffer": 2}, "buffer is 2 with assign='random'; expected 1"),
        ({"horizon": 1.9}, r"horizon is 1\.9; expected at least the time of the first update"),
        ({"horizon": np.nan}, "horizon is nan; expected at least the time of the first update"),
    ],
)
def test_refuses_assignments_and_horizons(change, message):
    with pytest.raises(ValueError, match=message):
        arrivals(KEY, deterministic(1.0), **GOOD | change)


@pytest.mark.parametrize("durations", [deterministic(1e-9), log_normal(1.0, 40.0)])
def test_refuses_durations_that_let_time_stand_still(durations):
    """Of sigma = 40 most durations round to 0: the updates would never reach the horizon."""
    with pytest.raises(ValueError, match=r"horizon is 50\.0, but after 4096 updates .* is \d"):
        arrivals(KEY, durations, **GOOD)


def test_refuses_moments_that_are_none():
    with pytest.raises(ValueError, match="every is 0; expected at least 1"):
        arrivals_in_flight(KEY, deterministic(1.0), every=0, **GOOD)
