"""Timelines of a server that contacts random clients at regular times: FAVANO and QuAFL.

From "FAVANO: Federated AVeraging with Asynchronous Nodes", Section 3 and Appendix C.2; Zakerinia et
al., "QuAFL: Federated Averaging Can Be Both Asynchronous and Communication-Efficient", 2022.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

import numpy as np
from jax import Array

from fedjax_sim.checks import (
    called,
    check_choice,
    check_count,
    check_one_number,
    check_part,
    check_positive,
    check_timeline_size,
)
from fedjax_sim.timelines.availability import Availability, checked_availability
from fedjax_sim.timelines.buffers import Visits, assembled
from fedjax_sim.timelines.durations import host_generator
from fedjax_sim.timelines.stepping import Stepper, Stepping
from fedjax_sim.types import Timeline, plain_integers, shown


@shown
class InFlight(NamedTuple):
    """State of all M clients at L moments of an asynchronous schedule."""

    round: np.ndarray  # [L] server updates done
    version: np.ndarray  # [L, M] version of the server's model that the client started from
    num_steps: np.ndarray  # [L, M] steps done since the client received it
    first_step: np.ndarray  # [L, M] steps done before


@plain_integers
def contacts(
    key: Array,
    steps: Stepping,
    *,
    horizon: float,
    num_clients: int,
    cohort_size: int,
    max_steps: int,
    interval: float = 7.0,
    receives: Literal["new", "current"] = "new",
    availability: Availability | None = None,
) -> Timeline:
    """Timeline of a server that contacts ``cohort_size`` distinct clients every ``interval``.

    Clients compute between two contacts, at most ``max_steps`` steps, and then wait.  All clients
    begin at time 0; the first contact is at ``interval``.  If fewer clients are present than a
    cohort has, all of them are contacted; if none is present, the update is empty.

    Args:
        key: decides contacts and durations independently: two schedules with the same key contact
            the same clients.
        steps: law of the number of steps, e.g. ``renewal_counts(geometric(success))``.
        horizon: simulated time; the last contact is not later.
        num_clients: population M.
        cohort_size: clients S per contact.
        max_steps: the cap K.
        interval: waiting time plus interaction time of the server.
        receives: the model that a contacted client receives: the "new" model, which contains its
            own upload (FAVANO), or the "current" model before the update, which the client mixes
            with its own model (QuAFL).  Staleness is then 0, because the client's own model carries
            the age.
        availability: periods of presence; default always.

    Raises:
        ValueError: a horizon that is infinite or before the first contact, a count that is not
            positive, or ``availability`` of another population.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> from fedjax_sim.timelines import contacts, deterministic, renewal_counts
        >>> timeline = contacts(
        ...     jax.random.key(0), renewal_counts(deterministic(2.0)), horizon=5000.0,
        ...     num_clients=100, cohort_size=20, max_steps=20)
        >>> timeline.num_rounds, timeline.num_steps[0, 0].item()
        (714, 3)
    """
    _check(horizon, num_clients, cohort_size, max_steps, interval)
    check_choice(("new", "current"), receives=receives)
    replay = _Replay(key, steps, num_clients, cohort_size, max_steps, interval, availability)
    updates = []
    for t in range(_num_contacts(horizon, interval)):
        visits = replay.contact(t)
        if receives == "current":
            visits = visits._replace(version=np.full_like(visits.version, t))
        updates.append(visits)
    timeline = assembled(updates, cohort_size, max_steps)
    return dataclasses.replace(timeline, own_models=receives == "current")


@plain_integers
def contacts_in_flight(
    key: Array,
    steps: Stepping,
    *,
    every: int,
    horizon: float,
    num_clients: int,
    cohort_size: int,
    max_steps: int,
    interval: float = 7.0,
    availability: Availability | None = None,
) -> InFlight:
    """State of all clients after every ``every``-th contact of the schedule of :func:`contacts`.

    Between contacts a client's model depends only on itself, so a run computes it only when the
    client reports.

    Args:
        every: contacts between two moments.  All other arguments are those of :func:`contacts`.

    Raises:
        ValueError: as :func:`contacts`, or ``every`` below 1.

    Example:
        >>> import jax
        >>> from fedjax_sim.timelines import contacts_in_flight, deterministic, renewal_counts
        >>> flight = contacts_in_flight(
        ...     jax.random.key(0), renewal_counts(deterministic(7.0)), every=2, horizon=30.0,
        ...     num_clients=3, cohort_size=1, max_steps=20)
        >>> # The first two contacts are with the same client.
        >>> flight.round.tolist(), sorted(flight.num_steps[0].tolist())
        ([2, 4], [0, 2, 2])
    """
    _check(horizon, num_clients, cohort_size, max_steps, interval)
    check_count(1, every=every)
    replay = _Replay(key, steps, num_clients, cohort_size, max_steps, interval, availability)
    updates = map(replay.contact, range(_num_contacts(horizon, interval)))
    return in_flight(updates, replay.client_states, every)


def in_flight(
    updates: Iterable[Visits], client_states: Callable[[], tuple[np.ndarray, ...]], every: int
) -> InFlight:
    """Returns the clients' versions, steps and earlier steps after every ``every``-th update."""
    moments, states = [], []
    for t, _ in enumerate(updates):
        if (t + 1) % every == 0:
            moments.append(t + 1)
            states.append(client_states())
    version, done, before = map(np.array, zip(*states, strict=True)) if states else [[]] * 3
    return InFlight(np.array(moments), *map(np.asarray, (version, done, before)))


class _Replay:
    """Progress of all clients over the contacts."""

    def __init__(self, key, steps, num_clients, cohort_size, max_steps, interval, availability):
        choosing, durations = host_generator(key).spawn(2)
        self.rng: np.random.Generator = choosing
        expected = "a law of the number of steps, as from fs.timelines.renewal_counts"
        given = f"(generator, {num_clients}, {max_steps})"
        stepper = called("steps", given, expected, steps, durations, num_clients, max_steps)
        if not isinstance(stepper, Stepper):
            raise ValueError(f"steps returns a {type(stepper).__name__}; expected {expected}")
        self.stepper: Stepper = stepper
        self.cohort_size, self.interval = cohort_size, interval
        self.available: Availability = checked_availability(availability, num_clients)
        self.clients = np.arange(num_clients)
        self.stepper.restart(self.clients, None)
        self.begun = self.available.active(0.0)  # [M] last contact, in time of presence
        self.version = np.zeros(num_clients, int)
        self.steps_done = np.zeros(num_clients, int)
        self.time = 0.0

    def contact(self, t: int) -> Visits:
        self.time = self.interval * (t + 1)
        present = np.flatnonzero(self.available.present(self.time))
        size = min(self.cohort_size, len(present))
        chosen = present[self.rng.choice(len(present), size, replace=False)] if size else present
        now = self.available.active(self.time)
        elapsed = (now - self.begun)[chosen]
        num_steps = self.stepper.done(chosen, elapsed)
        idle = self.stepper.idle(chosen, elapsed)  # in time of presence
        finished = self.available.when(chosen, now[chosen] - idle)
        idle = np.where(idle > 0, self.time - finished, 0.0)
        visits = Visits(self.time, chosen, self.version[chosen], num_steps, idle)
        self.stepper.restart(chosen, elapsed)
        self.begun[chosen] = now[chosen]
        self.version[chosen] = t + 1
        self.steps_done[chosen] += num_steps
        return visits

    def client_states(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        elapsed = self.available.active(self.time) - self.begun
        return self.version.copy(), self.stepper.done(self.clients, elapsed), self.steps_done.copy()


def _num_contacts(horizon: float, interval: float) -> int:
    return int(np.floor(horizon / interval * (1 + 1e-12)))


def _check(horizon, num_clients, cohort_size, max_steps, interval) -> None:
    check_positive(interval=interval)
    check_one_number(horizon=horizon)
    if not interval <= horizon < np.inf:
        raise ValueError(
            f"horizon is {horizon}; expected a finite time, at least the interval, {interval}"
        )
    check_part("num_clients", num_clients, cohort_size=cohort_size)
    check_count(1, max_steps=max_steps)
    check_timeline_size(_num_contacts(horizon, interval), cohort_size)
