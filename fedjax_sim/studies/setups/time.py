"""Options of the time of a run: rounds, or a clock."""

import functools
import pathlib
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np
import pydantic
from jax import Array

from fedjax_sim.studies.setups.entries import StepsPerVisit
from fedjax_sim.studies.setups.fields import Count, NotNegative, Positive, Probability, group
from fedjax_sim.studies.setups.sampling import Cohort, failing
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


@group
class Rounds:
    """Rounds of communication without simulated time."""

    rounds: Count = 100
    """Rounds of communication."""
    eval_every: Count = 2
    """Rounds between evaluations on the test and training examples."""
    kind: Literal["rounds"] = "rounds"


@group
class TwoSpeeds:
    """Fast and slow clients, drawn with the partition's seed."""

    step_time: Positive = 2.0
    """Mean duration of a local step on a fast client, in units of simulated time."""
    slow_fraction: Probability = 1 / 3
    """Fraction of clients that are slow."""
    slow_factor: Positive = 8.0
    """Mean duration of a step on a slow client divided by that on a fast one."""


@group
class Geometric(TwoSpeeds):
    """Geometric durations of a local step."""

    kind: Literal["geometric"] = "geometric"


@group
class Exponential(TwoSpeeds):
    """Exponential durations of a local step."""

    kind: Literal["exponential"] = "exponential"


@group
class Deterministic(TwoSpeeds):
    """Equal durations of all local steps of a client."""

    kind: Literal["deterministic"] = "deterministic"


@group
class LogNormal(TwoSpeeds):
    """Log-normal durations of a local step."""

    log_sigma: NotNegative = 1.0
    """Standard deviation of the logarithm of a duration."""
    kind: Literal["log-normal"] = "log-normal"


@group
class Trace:
    """Measured durations."""

    file: pathlib.Path
    """CSV file with columns client,duration, one measured step per row."""
    kind: Literal["trace"] = "trace"


StepLaw = Annotated[
    Geometric | Exponential | Deterministic | LogNormal | Trace,
    pydantic.Field(discriminator="kind"),
]


@group
class ClockOptions:
    """Simulated time, which the asynchronous algorithms require; needs --local-steps."""

    law: StepLaw = Geometric()
    """Law of the duration of one local step."""
    interval: Positive = 7.0
    """Time between two contacts of the server (favano, quafl); --cohort-size clients are contacted
    at once."""
    interaction: NotNegative = 3.0
    """Time that the server needs per update (synchronous algorithms, fedbuff)."""
    buffer_size: Count = 10
    """Reports per server update of fedbuff."""
    concurrency: Count | None = None
    """Clients that compute at the same time (fedbuff, fedasync, async_sgd); default: all."""
    horizon: Positive = 1000.0
    """Simulated time at which every algorithm ends."""
    updates: Count | None = None
    """Largest number of server updates per algorithm; default: no limit."""
    eval_time: Positive | None = None
    """Simulated time between evaluations; default: a fortieth of the horizon."""
    kind: Literal["clock"] = "clock"


Time = Annotated[Rounds | ClockOptions, pydantic.Field(discriminator="kind")]


class Law(NamedTuple):
    """Law of the duration of one local step."""

    durations: Durations
    speeds: np.ndarray  # [M] number of the client's speed; clients of one number have the same law
    success: np.ndarray | None = None  # [M] of a geometric law


class Clock(NamedTuple):
    """Simulated time: step durations, and when the server acts."""

    options: ClockOptions
    law: Law
    num_clients: int  # M
    cohort_size: int  # S
    num_steps: int  # K, steps per report and most steps between two contacts
    failing: Callable[[Array, Timeline], Timeline] = lambda key, timeline: timeline

    def timelines(self, algorithm: str, keys: Array) -> Timeline:
        """Returns the algorithm's timelines, one per key: ``[n, T, S]``."""
        schedule = SCHEDULES.get(algorithm, _rounds)
        return stacked(
            [self.failing(key, schedule(self, key)[: self.options.updates]) for key in keys]
        )

    def steps_per_visit(self) -> StepsPerVisit:
        """Returns the law of a client's steps between two contacts, for FAVANO's reweighting.

        It is exact for geometric durations and whole intervals, else the mean over 20,000 draws
        per speed.
        """
        law, contacted = self.law, self.cohort_size / self.num_clients
        if law.success is not None and float(self.options.interval).is_integer():
            steps = step_counts.renewal(
                law.success, self.num_steps, int(self.options.interval), contacted
            )
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
        gaps = self.options.interval * rng.geometric(contacted, _SAMPLES)
        durations = self.law.durations(rng, np.full(_SAMPLES, client), self.num_steps)
        return (np.cumsum(durations, axis=1) <= gaps[:, None]).sum(axis=1)


def step_law(options: StepLaw, num_clients: int, seed: int) -> Law:
    """Returns the law of step durations of M clients."""
    if isinstance(options, Trace):
        return Law(from_trace(_read(str(options.file), num_clients)), np.arange(num_clients))
    step_time, slow_factor = options.step_time, options.slow_factor
    shortest = step_time * min(slow_factor, 1.0)
    if isinstance(options, Geometric) and shortest < 1:
        raise ValueError(
            f"law.step_time is {step_time}; expected a mean of at least 1 on all clients with "
            "law:geometric, where durations are whole numbers, but the smallest is "
            f"{shortest:g}"
        )
    slow = two_speeds(jax.random.key(seed), num_clients, options.slow_fraction, fast=0, slow=1)
    mean = np.where(slow == 1, step_time * slow_factor, step_time)
    speeds = slow.astype(int)
    match options:
        case Geometric():
            return Law(geometric(1 / mean), speeds, 1 / mean)
        case Exponential():
            return Law(exponential(mean), speeds)
        case Deterministic():
            return Law(deterministic(mean), speeds)
        case LogNormal():
            return Law(log_normal(mean, options.log_sigma), speeds)


def _read(path: str, num_clients: int) -> np.ndarray:
    try:
        return read_trace(path, num_clients)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"law.file is {path!r}, which cannot be read: {error}") from error


def _rounds(clock: Clock, key: Array) -> Timeline:
    """The server waits for the slowest client of every cohort."""
    return synchronous(
        key,
        clock.law.durations,
        horizon=clock.options.horizon,
        num_clients=clock.num_clients,
        cohort_size=clock.cohort_size,
        num_steps=clock.num_steps,
        interaction=clock.options.interaction,
    )


def _contacts(clock: Clock, key: Array, receives: Literal["new", "current"]) -> Timeline:
    """The server contacts random clients at regular times."""
    return contacts(
        key,
        renewal_counts(clock.law.durations),
        horizon=clock.options.horizon,
        num_clients=clock.num_clients,
        cohort_size=clock.cohort_size,
        max_steps=clock.num_steps,
        interval=clock.options.interval,
        receives=receives,
    )


def _reports(
    clock: Clock, key: Array, num_steps: int, buffer: int = 1, interaction: float = 0.0
) -> Timeline:
    """Clients report when they are done; every ``buffer`` reports are an update."""
    return arrivals(
        key,
        clock.law.durations,
        horizon=clock.options.horizon,
        num_clients=clock.num_clients,
        num_steps=num_steps,
        buffer=buffer,
        interaction=interaction,
        concurrency=clock.options.concurrency,
    )


# Algorithm -> its timeline on a clock; algorithms that are not here are synchronous.
SCHEDULES: dict[str, Callable[[Clock, Array], Timeline]] = {
    "async_sgd": lambda clock, key: _reports(clock, key, 1),
    "favano": lambda clock, key: _contacts(clock, key, "new"),
    "fedasync": lambda clock, key: _reports(clock, key, clock.num_steps),
    "fedbuff": lambda clock, key: _reports(
        clock, key, clock.num_steps, clock.options.buffer_size, clock.options.interaction
    ),
    "quafl": lambda clock, key: _contacts(clock, key, "current"),
}


def clock_of(
    options: ClockOptions, cohort: Cohort, num_clients: int, num_steps: int, seed: int
) -> Clock:
    """Returns the clock of a population, whose slow clients are drawn with a seed."""
    return Clock(
        options,
        step_law(options.law, num_clients, seed),
        num_clients,
        cohort.cohort_size,
        num_steps,
        functools.partial(failing, cohort),
    )
