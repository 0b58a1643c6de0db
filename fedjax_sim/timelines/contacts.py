"""The server contacts random clients at regular times: the clock of FAVANO and QuAFL.

From "FAVANO: Federated AVeraging with Asynchronous Nodes", Section 3 and Appendix C.2; Zakerinia et
al., "QuAFL: Federated Averaging Can Be Both Asynchronous and Communication-Efficient", 2022.
"""

from typing import Literal, NamedTuple

import numpy as np
from jax import Array

from fedjax_sim.timelines.availability import Availability, always
from fedjax_sim.timelines.buffers import Visits, assembled
from fedjax_sim.timelines.durations import host_generator
from fedjax_sim.timelines.stepping import Stepper, Stepping
from fedjax_sim.types import Timeline


class InFlight(NamedTuple):
    """What every client has at some moments: L moments, M clients."""

    round: np.ndarray  # [L] updates done
    version: np.ndarray  # [L, M] server's model that the client works from
    num_steps: np.ndarray  # [L, M] steps done since then
    first_step: np.ndarray  # [L, M] steps done before


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
    """Every ``interval`` the server contacts ``cohort_size`` random clients, each at most once.

    Clients compute from one contact to the next, at most ``max_steps`` steps, then wait.  All begin
    at time 0; the first contact is at ``interval``.  If fewer clients are present than a cohort
    has, all of these are contacted, and a moment without any is an empty update.

    Args:
        key: decides contacts and durations, separately: two schedules with one key contact the
            same clients.
        steps: law of the number of steps, e.g. ``renewal(geometric(success))``.
        horizon: simulated time; the last contact is not after it.
        num_clients, cohort_size: population M, and clients a contact S.
        max_steps: the cap K.
        interval: waiting and interaction time of the server together.
        receives: a contacted client leaves with the "new" model, which its own report went into
            (FAVANO), or reports with the "current" one at hand and goes on from what it makes of
            both (QuAFL); staleness is then 0, since the age is in the client's own model.
        availability: when clients are present; default always.

    Raises:
        ValueError: a horizon before the first contact or infinite, a count that is not positive.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> from fedjax_sim.timelines import contacts, deterministic, renewal
        >>> timeline = contacts(
        ...     jax.random.key(0), renewal(deterministic(2.0)), horizon=5000.0, num_clients=100,
        ...     cohort_size=20, max_steps=20)
        >>> timeline.num_rounds, timeline.num_steps[0, 0].item()
        (714, 3)
    """
    _check(horizon, num_clients, cohort_size, max_steps, interval)
    if receives not in ("new", "current"):
        raise ValueError(f"receives is {receives!r}; expected 'new' or 'current'")
    replay = _Replay(key, steps, num_clients, cohort_size, max_steps, interval, availability)
    updates = []
    for t in range(_num_contacts(horizon, interval)):
        visits = replay.contact(t)
        if receives == "current":
            visits = visits._replace(version=np.full_like(visits.version, t))
        updates.append(visits)
    return assembled(updates, cohort_size, max_steps)


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
    """What all clients have after every ``every``-th contact of the same schedule.

    Between contacts a client's model depends on nothing but itself, so that it need not be
    computed before someone asks.

    Args:
        every: contacts between two moments; the others as those of :func:`contacts`.

    Raises:
        ValueError: as :func:`contacts`; ``every`` below 1.

    Example:
        >>> import jax
        >>> from fedjax_sim.timelines import contacts_in_flight, deterministic, renewal
        >>> flight = contacts_in_flight(
        ...     jax.random.key(0), renewal(deterministic(7.0)), every=2, horizon=30.0,
        ...     num_clients=3, cohort_size=1, max_steps=20)
        >>> # The first two contacts were of the same client.
        >>> flight.round.tolist(), sorted(flight.num_steps[0].tolist())
        ([2, 4], [0, 2, 2])
    """
    _check(horizon, num_clients, cohort_size, max_steps, interval)
    if every < 1:
        raise ValueError(f"every is {every}; expected at least 1 contact")
    replay = _Replay(key, steps, num_clients, cohort_size, max_steps, interval, availability)
    moments, found = [], []
    for t in range(_num_contacts(horizon, interval)):
        replay.contact(t)
        if (t + 1) % every == 0:
            moments.append(t + 1)
            found.append(replay.everyone())
    version, num_steps, first_step = map(np.array, zip(*found, strict=True)) if found else [[]] * 3
    return InFlight(np.array(moments), *map(np.asarray, (version, num_steps, first_step)))


class _Replay:
    """The clients between contacts."""

    def __init__(self, key, steps, num_clients, cohort_size, max_steps, interval, availability):
        choosing, durations = host_generator(key).spawn(2)
        self.rng: np.random.Generator = choosing
        self.stepper: Stepper = steps(durations, num_clients, max_steps)
        self.cohort_size, self.interval = cohort_size, interval
        self.available: Availability = availability or always(num_clients)
        self.clients = np.arange(num_clients)
        self.stepper.restart(self.clients, None)
        self.begun = self.available.active(0.0)  # [M] in time of presence
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

    def everyone(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        elapsed = self.available.active(self.time) - self.begun
        return self.version.copy(), self.stepper.done(self.clients, elapsed), self.steps_done.copy()


def _num_contacts(horizon: float, interval: float) -> int:
    return int(np.floor(horizon / interval * (1 + 1e-12)))


def _check(horizon, num_clients, cohort_size, max_steps, interval) -> None:
    if not interval > 0:
        raise ValueError(f"interval is {interval}; expected a positive time")
    if not interval <= horizon < np.inf:
        raise ValueError(
            f"horizon is {horizon}; expected a finite time, at least the interval, {interval}"
        )
    if not 1 <= cohort_size <= num_clients:
        raise ValueError(f"cohort_size is {cohort_size}; expected 1 .. num_clients = {num_clients}")
    if max_steps < 1:
        raise ValueError(f"max_steps is {max_steps}; expected at least 1")
