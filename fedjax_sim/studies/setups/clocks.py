"""Simulated time on the command line: the timeline of each algorithm on one clock.

All algorithms of a comparison share the clients' speeds, the law of step durations and the horizon.
They differ in when clients report: see :data:`SCHEDULES`, which has a row for every algorithm that
is not synchronous.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.studies.setups.entries import StepsPerVisit
from fedjax_sim.theory import step_counts
from fedjax_sim.timelines import (
    Durations,
    arrivals,
    contacts,
    deterministic,
    exponential,
    from_trace,
    geometric,
    log_normal,
    read_trace,
    renewal_counts,
    stacked,
    synchronous,
    two_speeds,
)
from fedjax_sim.types import Timeline

_SAMPLES = 20_000  # of the steps between two contacts, per speed


class Law(NamedTuple):
    """Law of the duration of one local step."""

    durations: Durations
    speeds: np.ndarray  # [M] number of the client's speed; clients of one number have the same law
    success: np.ndarray | None = None  # [M] of a geometric law


class Clock(NamedTuple):
    """Simulated time: step durations, and when the server acts."""

    law: Law
    num_clients: int  # M
    cohort_size: int  # S
    num_steps: int  # K, steps per report and most steps between two contacts
    interval: float  # between contacts
    interaction: float  # of the server per update
    buffer_size: int  # reports per update of FedBuff
    concurrency: int | None  # clients that compute at the same time; None: all
    horizon: float
    updates: int | None  # most server updates; None: no limit
    failing: Callable[[Array, Timeline], Timeline] = lambda key, timeline: timeline

    def timelines(self, algorithm: str, keys: Array) -> Timeline:
        """Returns the algorithm's timelines, one per key: ``[n, T, S]``.

        Raises:
            ValueError: a horizon before the first update, or a buffer larger than the number of
                clients that compute.
        """
        schedule = SCHEDULES.get(algorithm, _rounds)
        return stacked([self.failing(key, schedule(self, key)[: self.updates]) for key in keys])

    def steps_per_visit(self) -> StepsPerVisit:
        """Returns the law of a client's steps between two contacts, for FAVANO's reweighting.

        It is exact for geometric durations and whole intervals, else the mean over 20,000 draws
        per speed.
        """
        law, contacted = self.law, self.cohort_size / self.num_clients
        if law.success is not None and float(self.interval).is_integer():
            steps = step_counts.renewal(law.success, self.num_steps, int(self.interval), contacted)
            return StepsPerVisit(tuple(steps.p_active.tolist()), tuple(steps.mean.tolist()))
        rng = np.random.default_rng(0)
        clients = np.unique(law.speeds, return_index=True)[1]
        drawn = [self._draw(rng, client, contacted) for client in clients]
        steps = step_counts.empirical(np.stack(drawn), self.num_steps)
        place = np.searchsorted(law.speeds[clients], law.speeds)
        return StepsPerVisit(
            tuple(steps.p_active[place].tolist()), tuple(steps.mean[place].tolist())
        )

    def _draw(self, rng: np.random.Generator, client: int, contacted: float) -> np.ndarray:
        """Numbers of steps of one client between two contacts, ``[samples]``."""
        gaps = self.interval * rng.geometric(contacted, _SAMPLES)
        durations = self.law.durations(rng, np.full(_SAMPLES, client), self.num_steps)
        return (np.cumsum(durations, axis=1) <= gaps[:, None]).sum(axis=1)


def step_law(
    kind: str,
    num_clients: int,
    *,
    step_time: float,
    slow_fraction: float,
    slow_factor: float,
    log_sigma: float,
    trace: str | None,
    seed: int,
) -> Law:
    """Returns the law of step durations that the options describe.

    Args:
        kind: ``geometric``, ``exponential``, ``deterministic``, ``log-normal`` or ``trace``.
        num_clients: M.
        step_time: mean duration on a fast client.
        slow_fraction: fraction of slow clients.
        slow_factor: mean duration on a slow client divided by ``step_time``.
        log_sigma: standard deviation of the logarithm of log-normal durations.
        trace: path of the file with measured durations.
        seed: seed of the choice of slow clients.

    Raises:
        ValueError: durations that the law does not admit, or a trace that cannot be read.
    """
    if kind == "trace":
        return Law(from_trace(_read(str(trace), num_clients)), np.arange(num_clients))
    shortest = step_time * min(slow_factor, 1.0)
    if kind == "geometric" and shortest < 1:
        raise ValueError(
            f"step_time is {step_time}; expected a mean of at least 1 on all clients with --clock "
            f"geometric, where durations are whole numbers, but the smallest is {shortest:g}"
        )
    slow = two_speeds(jax.random.key(seed), num_clients, slow_fraction, fast=0, slow=1)
    mean = np.where(slow == 1, step_time * slow_factor, step_time)
    speeds = slow.astype(int)
    if kind == "geometric":
        return Law(geometric(1 / mean), speeds, 1 / mean)
    laws = {
        "exponential": exponential,
        "deterministic": deterministic,
        "log-normal": lambda mean: log_normal(mean, log_sigma),
    }
    return Law(laws[kind](mean), speeds)


def _read(path: str, num_clients: int) -> np.ndarray:
    try:
        return read_trace(path, num_clients)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"trace is {path!r}, which cannot be read: {error}") from error


def _rounds(clock: Clock, key: Array) -> Timeline:
    """The server waits for the slowest client of every cohort."""
    return synchronous(
        key,
        clock.law.durations,
        horizon=clock.horizon,
        num_clients=clock.num_clients,
        cohort_size=clock.cohort_size,
        num_steps=clock.num_steps,
        interaction=clock.interaction,
    )


def _contacts(clock: Clock, key: Array, receives: Literal["new", "current"]) -> Timeline:
    """The server contacts random clients at regular times."""
    return contacts(
        key,
        renewal_counts(clock.law.durations),
        horizon=clock.horizon,
        num_clients=clock.num_clients,
        cohort_size=clock.cohort_size,
        max_steps=clock.num_steps,
        interval=clock.interval,
        receives=receives,
    )


def _reports(
    clock: Clock, key: Array, num_steps: int, buffer: int = 1, interaction: float = 0.0
) -> Timeline:
    """Clients report when they are done; every ``buffer`` reports are an update."""
    return arrivals(
        key,
        clock.law.durations,
        horizon=clock.horizon,
        num_clients=clock.num_clients,
        num_steps=num_steps,
        buffer=buffer,
        interaction=interaction,
        concurrency=clock.concurrency,
    )


# Algorithm -> its timeline on a clock; algorithms that are not here are synchronous.
SCHEDULES: dict[str, Callable[[Clock, Array], Timeline]] = {
    "async_sgd": lambda clock, key: _reports(clock, key, 1),
    "favano": lambda clock, key: _contacts(clock, key, "new"),
    "fedasync": lambda clock, key: _reports(clock, key, clock.num_steps),
    "fedbuff": lambda clock, key: _reports(
        clock, key, clock.num_steps, clock.buffer_size, clock.interaction
    ),
    "quafl": lambda clock, key: _contacts(clock, key, "current"),
}
