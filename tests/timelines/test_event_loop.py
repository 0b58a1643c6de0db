"""The asynchronous methods on their timelines against an event loop that puts nothing off.

The library does a client's steps when it reports, from counts made before the run; the loop of
``async_event_loops.py`` does each when its time has come, and finds counts, versions and times
itself.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import pytest
import regression
from async_event_loops import Trace, arriving, contacted, table_law, waited_for
from regression import M
from small_problems import assert_close, compiled

import fedjax_sim as fs
from experiments.favano.variants import quafl_of_the_program
from fedjax_sim import timelines
from fedjax_sim.algorithms import async_sgd, favano, fedasync, fedbuff, quafl
from fedjax_sim.algorithms.staleness import expected_steps, hinge, polynomial, realised_steps

K, COHORT, CONTACTS = 4, 4, 9
KEY = jax.random.key(6)
MEANS = np.where(np.arange(M) < 3, 8.0, 2.0)[:, None, None]  # three slow clients
# Quarters, so that steps that end at the moment of a contact occur, and sums are exact.
QUARTERS = np.maximum(
    np.random.default_rng(0).exponential(4 * MEANS, (M, 60, K)).round(), 1
) / 4  # fmt: skip
DURATIONS = np.random.default_rng(1).exponential(MEANS, (M, 60, K))
ALPHA, P_ACTIVE = np.linspace(1.5, 4.0, M), np.linspace(0.6, 1.0, M)


def contact_timeline(receives="new", **options):
    law = timelines.renewal_counts(table_law(QUARTERS), **options)
    return timelines.contacts(
        KEY, law, horizon=7.0 * CONTACTS, num_clients=M, cohort_size=COHORT, max_steps=K,
        receives=receives,
    )  # fmt: skip


def arrival_timeline(durations=DURATIONS, **options):
    steps = durations.shape[2]
    return timelines.arrivals(
        KEY, table_law(durations), num_clients=M, num_steps=steps, **options
    )  # fmt: skip


def cohorts_of(timeline):
    return [
        clients[mask].tolist()
        for clients, mask in zip(*map(np.asarray, (timeline.clients, timeline.mask)), strict=True)
    ]


# ---- the methods' rules, on reports (client, version, steps, idle, start, end)


def favano_rule(alpha):
    def rule(w, reports):
        sent = [
            r.start + ((r.end - r.start) / alpha(r) if r.steps else 0 * r.start) for r in reports
        ]
        new = (w + sum(sent)) / (len(reports) + 1)
        return new, [new for _ in reports]

    return rule


def quafl_rule(client_averaging=True, server_averaging=True):
    def rule(w, reports):
        s, total = len(reports), sum(r.end for r in reports)
        new = (w + total) / (s + 1) if server_averaging else total / s
        return new, [(w + s * r.end) / (s + 1) if client_averaging else w for r in reports]

    return rule


def fedbuff_rule(server_lr, weight=lambda delay: 1.0, normalised=False):
    def rule(w, reports, delays):
        weights = [weight(delay) for delay in delays]
        total = sum(s * (r.start - r.end) for s, r in zip(weights, reports, strict=True))
        return w - server_lr * total / (sum(weights) if normalised else len(reports))

    return rule


def fedasync_rule(mix, weight):
    def rule(w, reports, delays):
        (report,), (delay,) = reports, delays
        a = mix * weight(delay)
        return (1 - a) * w + a * report.end

    return rule


def async_sgd_rule(rate):
    """The clients' rate is 1: what they send is the gradient."""

    def rule(w, reports, delays):
        (report,), (delay,) = reports, delays
        return w - rate(delay) * (report.start - report.end)

    return rule


class Case(NamedTuple):
    algorithm: Callable[[], fs.FedAlgorithm]
    timeline: Callable[[], fs.Timeline]
    reference: Callable[[fs.Timeline], Trace]


def on_contacts(algorithm, rule, lr, receives="new"):
    return Case(
        algorithm,
        functools.partial(contact_timeline, receives),
        lambda timeline: contacted(QUARTERS, cohorts_of(timeline), rule, lr),
    )


def on_arrivals(algorithm, rule, lr, mu=0.0, **options):
    return Case(
        algorithm,
        functools.partial(arrival_timeline, **options),
        lambda timeline: arriving(DURATIONS, rule, lr, mu=mu, **options),
    )


GRADIENTS = DURATIONS[:, :, :1]
BUFFER = {"buffer": 3, "interaction": 1.5, "horizon": 60.0}


def on_gradients(algorithm, rule, assign="same", concurrency=None):
    def reference(timeline):
        """Replays the models that were drawn; clients that never report are arbitrary."""
        named = list(zip(np.ravel(timeline.clients), np.ravel(timeline.version), strict=True))
        first = [int(client) for client, version in named if version == 0]
        assigned = {int(version): [int(client)] for client, version in named if version > 0}
        return arriving(
            GRADIENTS, rule, 1.0, horizon=25.0, interaction=0.1, first=first,
            assigned=assigned if assign == "random" else None,
        )  # fmt: skip

    options = {"horizon": 25.0, "interaction": 0.1, "assign": assign, "concurrency": concurrency}
    return Case(algorithm, functools.partial(arrival_timeline, GRADIENTS, **options), reference)


def root(delay):
    return (1 + delay) ** -0.5


def bent(delay):
    return 1.0 if delay <= 3 else 1 / (0.5 * (delay - 3) + 1)


def adaptive(delay):
    return 0.2 if delay <= 2 else min(0.2, 0.3 / delay)


def synchronous_timeline():
    return timelines.synchronous(
        KEY, table_law(DURATIONS), horizon=230.0, num_clients=M, cohort_size=COHORT, num_steps=K
    )


CASES = {
    "favano_expected": on_contacts(
        lambda: favano(0.2, expected_steps(ALPHA)), favano_rule(lambda r: ALPHA[r.client]), 0.2
    ),
    "favano_realised": on_contacts(
        lambda: favano(0.2, realised_steps(P_ACTIVE)),
        favano_rule(lambda r: P_ACTIVE[r.client] * r.steps),
        0.2,
    ),
    "quafl": on_contacts(lambda: quafl(0.1), quafl_rule(), 0.1, "current"),
    "quafl_rate_factor": on_contacts(
        lambda: quafl_of_the_program(0.1, rate_factor=True),
        quafl_rule(),
        0.1 * (COHORT + 1) / COHORT,
        "current",
    ),
    "quafl_without_client_averaging": on_contacts(
        lambda: quafl_of_the_program(0.1, client_averaging=False), quafl_rule(False), 0.1, "current"
    ),
    "quafl_without_server_averaging": on_contacts(
        lambda: quafl_of_the_program(0.1, server_averaging=False),
        quafl_rule(True, False),
        0.1,
        "current",
    ),
    "fedbuff": on_arrivals(lambda: fedbuff(0.1, 0.6), fedbuff_rule(0.6), 0.1, **BUFFER),
    "fedbuff_old": on_arrivals(
        lambda: fedbuff(0.1, 0.6), fedbuff_rule(0.6), 0.1, restart="old", **BUFFER
    ),
    "fedbuff_polynomial": on_arrivals(
        lambda: fedbuff(0.1, 0.6, polynomial(0.5)), fedbuff_rule(0.6, root), 0.1, **BUFFER
    ),
    "fedbuff_normalised": on_arrivals(
        lambda: fedbuff(0.1, 0.6, polynomial(0.5), normalised=True),
        fedbuff_rule(0.6, root, True),
        0.1,
        **BUFFER,
    ),
    "fedasync_hinge": on_arrivals(
        lambda: fedasync(0.1, 0.6, hinge(3, 0.5)), fedasync_rule(0.6, bent), 0.1, horizon=20.0
    ),
    "fedasync_polynomial_proximal": on_arrivals(
        lambda: fedasync(0.1, 0.6, polynomial(0.5), mu=0.3),
        fedasync_rule(0.6, root),
        0.1,
        mu=0.3,
        horizon=20.0,
    ),
    "async_sgd": on_gradients(lambda: async_sgd(0.2), async_sgd_rule(lambda delay: 0.2)),
    "async_sgd_adaptive": on_gradients(
        lambda: async_sgd(0.2, patience=2, bound=0.3), async_sgd_rule(adaptive)
    ),
    "async_sgd_random": on_gradients(
        lambda: async_sgd(0.2, patience=2, bound=0.3), async_sgd_rule(adaptive), "random", 6
    ),
    "fedavg": Case(
        lambda: fs.fedavg(0.1),
        synchronous_timeline,
        lambda timeline: waited_for(DURATIONS, cohorts_of(timeline), 0.1),
    ),
}


def assert_same_visits(timeline: fs.Timeline, trace: Trace):
    """Times in the timeline are of single precision."""
    timeline = jax.device_get(timeline)
    np.testing.assert_allclose(timeline.time, trace.times, rtol=1e-6)
    done = np.zeros(M, int)
    for t, reports in enumerate(trace.reports):
        slots = np.flatnonzero(timeline.mask[t])
        found = {int(timeline.clients[t, s]): s for s in slots}
        assert sorted(found) == sorted(report.client for report in reports)
        for report in reports:
            s = found[report.client]
            assert timeline.num_steps[t, s] == report.steps
            assert timeline.first_step[t, s] == done[report.client]
            np.testing.assert_allclose(timeline.idle[t, s], report.idle, rtol=1e-5, atol=1e-5)
            done[report.client] += report.steps
    if timeline.max_staleness:
        versions = [
            dict(zip(c[m], v[m], strict=True))
            for c, v, m in zip(timeline.clients, timeline.version, timeline.mask, strict=True)
        ]
        assert versions == [{r.client: r.version for r in reports} for reports in trace.reports]


def models(case, timeline, strategy):
    """The server's model after each update, ``[T, d]``."""

    @compiled
    def path(task, timeline):
        return fs.run(
            case.algorithm(),
            fs.Setup(
                task,
                timeline,
                regression.start_params(),
                eval_fn=lambda params: {"model": regression.flat(params)},
            ),
            jax.random.key(4),
            execution=strategy,
        )[1].metrics["model"]

    return path(regression.task(), timeline)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_models_versions_counts_and_times(name, x64):
    case = CASES[name]
    timeline = case.timeline()
    trace = case.reference(timeline)
    assert len(trace.times) >= 5
    assert_same_visits(timeline, trace)
    # Double precision, some forty steps deep: 1e-16 each.
    assert_close(models(case, timeline, fs.execution.vmapped()), np.array(trace.models), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["favano_realised", "quafl_rate_factor", "fedbuff_normalised"])
def test_under_every_strategy(name, x64):
    case = CASES[name]
    timeline = case.timeline()
    expected = np.array(case.reference(timeline).models)
    for strategy in (
        fs.execution.chunked(3),  # the last chunk is filled up
        fs.execution.sequential(),
        fs.execution.sharded(jax.make_mesh((timeline.cohort_size,), ("clients",))),
    ):
        assert_close(models(case, timeline, strategy), expected, 1e-12)


def test_cases_exercise_what_they_should():
    """Otherwise the comparison above would hold without having tested it."""
    for name, case in CASES.items():
        trace = case.reference(case.timeline())
        reports = [report for reports in trace.reports for report in reports]
        delays = {t - r.version for t, all_ in enumerate(trace.reports) for r in all_}
        visited = [report.client for report in reports]
        assert len(set(visited)) < len(visited)
        if name != "fedavg":
            assert {0, 1} < delays
        if name.startswith(("favano", "quafl")):
            assert {0, 1, K} < {report.steps for report in reports}
            ends = np.cumsum(QUARTERS, axis=2)
            assert np.isin(ends, 7.0 * np.arange(1, 4)).any()
        if name.startswith(("fedasync_hinge", "async_sgd")):
            assert min(delays) <= 2 < 4 <= max(delays)
    random = arrival_timeline(GRADIENTS, horizon=25.0, assign="random", concurrency=6)
    client, version = np.asarray(random.clients)[:, 0], np.asarray(random.version)[:, 0]
    assert len(set(client.tolist())) > 6
    # Someone is given a job before the one before it is done: update t - 1 makes version t.
    assert any(
        0 < version[u] <= t
        for u in range(len(client))
        for t in np.flatnonzero(client[:u] == client[u])[-1:]
    )


# ---- what the schedules can do beyond that: counts and versions only


def periods(availability):
    return [
        [(a, b) for a, b in zip(*each, strict=True) if np.isfinite(a)]
        for each in zip(availability.start, availability.end, strict=True)
    ]


@functools.cache
def comings_and_goings():
    """In quarters, so that reckoning in time of presence is exact."""
    drawn = timelines.alternating(jax.random.key(3), M, 100.0, mean_present=12.0, mean_absent=6.0)
    return timelines.Availability(*(np.round(4 * times) / 4 for times in drawn))


def stay(w, reports):
    return w, [w for _ in reports]


VARIANTS = {
    "plain": ({}, {}, None),
    "strict": ({"strict": True}, {"strict": True}, None),
    "pending": ({"pending": True}, {"keep": True}, None),
    "strict_pending": ({"strict": True, "pending": True}, {"strict": True, "keep": True}, None),
    "availability": ({}, {}, comings_and_goings),
    "pending_availability": ({"pending": True}, {"keep": True}, comings_and_goings),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_contacts_and_flights(variant):
    library, loop, available = VARIANTS[variant]
    options = {
        "horizon": 98.0, "num_clients": M, "cohort_size": COHORT, "max_steps": K,
        "availability": available and available(),
    }  # fmt: skip
    timeline = timelines.contacts(
        KEY, timelines.renewal_counts(table_law(QUARTERS), **library), **options
    )
    flight = timelines.contacts_in_flight(
        KEY, timelines.renewal_counts(table_law(QUARTERS), **library), every=2, **options
    )
    when = None if available is None else periods(available())
    trace = contacted(QUARTERS, cohorts_of(timeline), stay, 0.0, periods=when, **loop)
    assert_same_visits(timeline, trace)
    assert flight.round.tolist() == [2, 4, 6, 8, 10, 12, 14]
    found = np.stack([flight.version, flight.num_steps, flight.first_step], axis=-1)
    np.testing.assert_array_equal(found, np.array(trace.flights)[1::2])
    if available is not None:  # the cohort does not always fill
        assert not timeline.mask.all()


@pytest.mark.parametrize("restart", ["new", "old"])
@pytest.mark.parametrize("available", [None, comings_and_goings])
def test_arrivals_and_flights(restart, available):
    options = {"horizon": 60.0, "buffer": 3, "interaction": 1.5, "restart": restart}
    availability = available and available()
    timeline = arrival_timeline(availability=availability, **options)
    flight = timelines.arrivals_in_flight(
        KEY, table_law(DURATIONS), every=2, num_clients=M, num_steps=K, availability=availability,
        **options,
    )  # fmt: skip
    when = None if available is None else periods(availability)
    trace = arriving(DURATIONS, lambda w, reports, delays: w, 0.0, periods=when, **options)
    assert_same_visits(timeline, trace)
    found = np.stack([flight.version, flight.num_steps, flight.first_step], axis=-1)
    expected = np.array(trace.flights)[1::2][: len(found)]
    assert len(found) == len(trace.times) // 2
    np.testing.assert_array_equal(found, expected)
