"""Asynchronous training as it happens: a heap of events, one client and one step at a time.

Nothing is put off: every client takes each step when its time has come, whether or not anyone will
ask for it.  Shares no code with the library; float64 throughout.
"""

import collections
import heapq
import itertools
from typing import Any, NamedTuple

import numpy as np
from regression import START, grad

# What happens first at one moment: steps end, clients come and go, the server acts.
STEP, PRESENCE, SERVER = range(3)


class Report(NamedTuple):
    client: int
    version: int
    steps: int
    idle: float
    start: np.ndarray
    end: np.ndarray


class Trace(NamedTuple):
    """Record of an event loop, with one entry per server update."""

    models: list[np.ndarray]
    times: list[float]
    reports: list[list[Report]]
    flights: list[list[tuple[int, int, int]]]  # every client's version, steps since, steps before


class Clock:
    def __init__(self, late_steps=False):
        """``late_steps``: a step that ends when the server acts ends after that."""
        self.events, self.numbers, self.now = [], itertools.count(), 0.0
        self.order = (2, 0, 1) if late_steps else (0, 1, 2)

    def at(self, time, kind, action):
        heapq.heappush(self.events, (time, self.order[kind], next(self.numbers), action))

    def go(self, finished):
        while self.events and not finished():
            self.now, _, _, action = heapq.heappop(self.events)
            action()


class Worker:
    """One client.  ``visits``: the durations of the steps of its 1st, 2nd, ... visit."""

    def __init__(self, clock, number, visits, lr, mu=0.0, arrive=None, periods=((0.0, np.inf),)):
        self.clock, self.number, self.visits = clock, number, iter(visits)
        self.lr, self.mu, self.arrive = lr, mu, arrive
        self.durations: Any = ()
        self.version = self.steps = self.reported = 0
        self.here, self.event = periods[0][0] == 0, None
        self.jobs = collections.deque()
        for come, go in periods:
            if come > 0:
                clock.at(come, PRESENCE, self.come)
            if go < np.inf:
                clock.at(go, PRESENCE, self.go)

    @property
    def working(self):
        return self.steps < len(self.durations)

    def begin(self, model, version, keep=False):
        """``keep``: the step that this cuts short is begun again with the same duration."""
        kept = self.durations[self.steps] if keep and self.working else None
        self.start = self.model = model
        self.version, self.steps, self.last = version, 0, self.clock.now
        self.durations = list(next(self.visits))
        if kept is not None:
            self.durations[0] = kept
        self.left = self.durations[0]
        self.resume()

    def give(self, model, version):
        """A job for now, or for when those before it are done."""
        if self.working:
            self.jobs.append((model, version))
        else:
            self.begin(model, version)

    def resume(self):
        if self.here and self.working:
            self.ends = self.clock.now + self.left
            self.event = event = object()
            self.clock.at(self.ends, STEP, lambda: self.step(event))

    def step(self, event):
        if event is not self.event:
            return  # contacted or gone meanwhile
        pull = self.mu * (self.model - self.start)
        self.model = self.model - self.lr * (grad(self.number, self.model, self.steps) + pull)
        self.steps, self.last = self.steps + 1, self.clock.now
        if self.working:
            self.left = self.durations[self.steps]
            self.resume()
        elif self.arrive is not None:
            report = self.report()
            if self.jobs:
                self.begin(*self.jobs.popleft())
            self.arrive(report)

    def go(self):
        self.here, self.event = False, None
        if self.working:
            self.left = self.ends - self.clock.now

    def come(self):
        self.here = True
        self.resume()

    def report(self):
        idle = 0.0 if self.working else self.clock.now - self.last
        return Report(self.number, self.version, self.steps, idle, self.start, self.model)

    def flight(self):
        return self.version, self.steps, self.reported


def contacted(
    durations, cohorts, rule, lr, interval=7.0, strict=False, keep=False, periods=None
) -> Trace:
    """``rule(w, reports) -> (new w, what each contacted client goes on with)``."""
    trace, clock, w = Trace([], [], [], []), Clock(late_steps=strict), START
    workers = [
        Worker(clock, i, visits, lr, periods=((0.0, np.inf),) if periods is None else periods[i])
        for i, visits in enumerate(durations)
    ]
    for worker in workers:
        worker.begin(START, 0)

    def contact(t):
        nonlocal w
        reports = [workers[i].report() for i in cohorts[t]]
        w, following = rule(w, reports) if reports else (w, [])
        for report, model in zip(reports, following, strict=True):
            workers[report.client].reported += report.steps
            workers[report.client].begin(model, t + 1, keep)
        record(trace, w, clock.now, reports, workers)

    for t in range(len(cohorts)):
        clock.at(interval * (t + 1), SERVER, lambda t=t: contact(t))
    clock.go(lambda: len(trace.times) == len(cohorts))
    return trace


def arriving(
    durations, rule, lr, *, horizon, buffer=1, interaction=0.0, restart="new", mu=0.0,
    first=None, assigned=None, periods=None,
) -> Trace:  # fmt: skip
    """``rule(w, reports, staleness) -> new w``.

    ``first``: who works at first; ``assigned[v]``: who gets version v; default all, and whoever
    has just reported.
    """
    trace, clock, w = Trace([], [], [], []), Clock(), START
    waiting, busy, over = collections.deque(), False, False

    def arrive(report):
        waiting.append((clock.now, report))
        attempt()

    def attempt():
        nonlocal w, busy, over
        if busy or len(waiting) < buffer:
            return
        if clock.now + interaction > horizon:
            over = True
            return
        taken = [waiting.popleft() for _ in range(buffer)]
        reports = [report._replace(idle=clock.now - arrived) for arrived, report in taken]
        t, old = len(trace.times), w
        w = rule(w, reports, [t - report.version for report in reports])
        following = [r.client for r in reports] if assigned is None else assigned.get(t + 1, [])
        for report in reports:
            workers[report.client].reported += report.steps
        for i in following:
            workers[i].give(*((w, t + 1) if restart == "new" else (old, t)))
        record(trace, w, clock.now + interaction, reports, [])
        busy = True
        clock.at(clock.now + interaction, SERVER, freed)

    def freed():
        nonlocal busy
        busy = False
        trace.flights.append([worker.flight() for worker in workers])
        attempt()

    workers = [
        Worker(
            clock, i, visits, lr, mu, arrive, ((0.0, np.inf),) if periods is None else periods[i]
        )
        for i, visits in enumerate(durations)
    ]
    for i in range(len(workers)) if first is None else first:
        workers[i].begin(START, 0)
    clock.go(lambda: over)
    return trace


def waited_for(durations, cohorts, lr, *, interaction=3.0) -> Trace:
    """FedAvg: the mean of the cohort's models, when the last of them is done."""
    trace, clock, w = Trace([], [], [], []), Clock(), START
    workers = []
    done: list[tuple[float, Report]] = []

    def arrive(report):
        done.append((clock.now, report))
        if len(done) == len(cohorts[len(trace.times)]):
            clock.at(clock.now + interaction, SERVER, update)
            trace.reports.append([r._replace(idle=clock.now - arrived) for arrived, r in done])

    def update():
        nonlocal w
        w = np.mean([report.end for _, report in done], axis=0)
        trace.models.append(w)
        trace.times.append(clock.now)
        begin()

    def begin():
        done.clear()
        if len(trace.times) < len(cohorts):
            for i in cohorts[len(trace.times)]:
                workers[i].begin(w, len(trace.times))

    workers += [Worker(clock, i, each, lr, arrive=arrive) for i, each in enumerate(durations)]
    begin()
    clock.go(lambda: len(trace.times) == len(cohorts))
    return trace


def record(trace, w, time, reports, workers):
    trace.models.append(w)
    trace.times.append(time)
    trace.reports.append(reports)
    if workers:
        trace.flights.append([worker.flight() for worker in workers])


def table_law(durations):
    """A law of durations that reads a table ``[M, visits, K]``: both sides see the same ones."""
    visited = np.zeros(len(durations), int)

    def law(rng, clients, count):
        del rng
        assert count == durations.shape[2]
        drawn = durations[clients, visited[clients]]
        visited[clients] += 1
        return drawn

    return law
