"""Timelines of clients that report when they are done: FedBuff, FedAsync, asynchronous SGD.

From Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022; Xie et al.,
"Asynchronous Federated Optimization", 2019; Koloskova et al., "Sharper Convergence Guarantees for
Asynchronous SGD", 2022; runtimes as in "FAVANO", Appendix C.2.
"""

from __future__ import annotations

import heapq
from typing import Literal

import numpy as np
from jax import Array

from fedjax_sim.checks import (
    check_at_least,
    check_choice,
    check_count,
    check_horizon,
    check_one_number,
    check_part,
)
from fedjax_sim.timelines.availability import Availability, checked_availability
from fedjax_sim.timelines.buffers import Visits, assembled
from fedjax_sim.timelines.contacts import InFlight, in_flight
from fedjax_sim.timelines.durations import Durations, drawn_durations, host_generator
from fedjax_sim.types import Timeline, plain_integers


@plain_integers
def arrivals(
    key: Array,
    durations: Durations,
    *,
    horizon: float,
    num_clients: int,
    num_steps: int,
    buffer: int = 1,
    interaction: float = 0.0,
    restart: Literal["new", "old"] = "new",
    concurrency: int | None = None,
    assign: Literal["same", "random"] = "same",
    availability: Availability | None = None,
) -> Timeline:
    """Timeline of clients that do ``num_steps`` steps and report; ``buffer`` reports per update.

    A client that has reported waits until the buffer is full, then begins its next visit.  The
    interaction time of the server passes after that, while clients already compute.

    Args:
        key: decides the durations and which clients work.
        durations: law of the duration of one step.
        horizon: simulated time; the last update is not later.
        num_clients: population M.
        num_steps: steps K per visit.
        buffer: reports Z per update; 1 for FedAsync and asynchronous SGD.
        interaction: time that the server needs for one update.
        restart: the model that contributors continue from: the "new" model, which contains their
            contribution, or the "old" model before it (as in QuAFL's program for FedBuff).
        concurrency: clients that work at the same time; default all.
        assign: receiver of the model after a report: the "same" client, so that only the first
            ``concurrency`` clients ever work, or a "random" client, which does its jobs one after
            the other.  "random" requires ``buffer=1``.
        availability: periods of presence; default always.  An absent client continues its work
            when it returns.

    Raises:
        ValueError: a count outside its range, a horizon that is infinite, before the first update
            or too far for the durations, a negative interaction time, or ``availability`` of
            another population.

    Example:
        >>> import jax
        >>> from fedjax_sim.timelines import arrivals, deterministic
        >>> speeds = deterministic(np.array([1.0, 1.0, 4.0]))
        >>> timeline = arrivals(
        ...     jax.random.key(0), speeds, horizon=4.0, num_clients=3, num_steps=1, buffer=2)
        >>> timeline.clients.tolist(), timeline.version.tolist()
        ([[0, 1], [0, 1], [0, 1], [2, 0]], [[0, 0], [1, 1], [2, 2], [0, 3]])
    """
    replay = _Replay(
        key, durations, num_clients, num_steps, buffer, restart, concurrency, assign, availability
    )
    updates = list(replay.updates(horizon, interaction))
    if not updates:
        raise ValueError(f"horizon is {horizon}; expected at least the time of the first update")
    return assembled(updates, buffer, num_steps)


@plain_integers
def arrivals_in_flight(
    key: Array,
    durations: Durations,
    *,
    every: int,
    horizon: float,
    num_clients: int,
    num_steps: int,
    buffer: int = 1,
    interaction: float = 0.0,
    restart: Literal["new", "old"] = "new",
    availability: Availability | None = None,
) -> InFlight:
    """State of all clients after every ``every``-th update of the schedule of :func:`arrivals`.

    Raises:
        ValueError: as :func:`arrivals`, or ``every`` below 1.

    Example:
        >>> import jax
        >>> from fedjax_sim.timelines import arrivals_in_flight, deterministic
        >>> flight = arrivals_in_flight(
        ...     jax.random.key(0), deterministic(np.array([1.0, 1.0, 4.0])), every=3, horizon=4.0,
        ...     num_clients=3, num_steps=2, buffer=1)
        >>> flight.round.tolist(), flight.num_steps.tolist()
        ([3], [[0, 2, 1]])
    """
    check_count(1, every=every)
    replay = _Replay(
        key, durations, num_clients, num_steps, buffer, restart, None, "same", availability
    )
    return in_flight(replay.updates(horizon, interaction), replay.client_states, every)


class _Replay:
    """Event loop over the jobs of all clients, in the order in which they end."""

    def __init__(
        self,
        key,
        durations,
        num_clients,
        num_steps,
        buffer,
        restart,
        concurrency,
        assign,
        available,
    ):
        working = num_clients if concurrency is None else concurrency
        _check(num_clients, num_steps, buffer, working, restart, assign)
        choosing, drawing = host_generator(key).spawn(2)
        self.choosing: np.random.Generator = choosing
        self.durations, self.drawing = durations, drawing
        self.num_steps, self.buffer, self.assign = num_steps, buffer, assign
        self.new = restart == "new"
        self.available: Availability = checked_availability(available, num_clients)
        self.free = self.available.active(0.0)  # [M] end of the last job, in time of presence
        self.ends = np.zeros((num_clients, num_steps))  # of the steps of each client's last job
        self.version = np.zeros(num_clients, int)
        self.steps_done = np.zeros(num_clients, int)
        self.jobs: list[tuple[float, int, int, int]] = []  # (end, number, client, version)
        self.count = 0
        self.time = 0.0
        first = np.arange(num_clients)
        if working < num_clients:
            first = np.sort(choosing.choice(num_clients, working, replace=False))
        self.start(first, 0, 0.0)

    def start(self, clients: np.ndarray, version: int, time: float) -> None:
        begun = np.maximum(self.available.active(time)[clients], self.free[clients])
        drawn = drawn_durations("durations", self.durations, self.drawing, clients, self.num_steps)
        ends = begun[:, None] + np.cumsum(drawn, axis=1)
        self.ends[clients], self.free[clients] = ends, ends[:, -1]
        self.version[clients] = version
        for client, end in zip(clients, self.available.when(clients, ends[:, -1]), strict=True):
            heapq.heappush(self.jobs, (float(end), self.count, int(client), version))
            self.count += 1

    def updates(self, horizon: float, interaction: float):
        """Yields the visits of each update until the horizon."""
        check_one_number(horizon=horizon)
        if horizon == np.inf:
            raise ValueError(f"horizon is {horizon}; expected a finite time")
        check_at_least(0, interaction=interaction)
        t = 0
        while len(self.jobs) >= self.buffer:
            arrived = [heapq.heappop(self.jobs) for _ in range(self.buffer)]
            full = max(self.time, arrived[-1][0])
            if not full + interaction <= horizon:
                return
            clients = np.array([client for _, _, client, _ in arrived])
            end = np.array([end for end, *_ in arrived])
            self.time = full + interaction
            check_horizon(horizon, self.time, t + 1, self.buffer)
            visits = Visits(
                self.time,
                clients,
                np.array([version for *_, version in arrived]),
                np.full(self.buffer, self.num_steps),
                full - end,
            )
            self.steps_done[clients] += self.num_steps
            receivers = clients
            if self.assign == "random":
                receivers = self.choosing.integers(0, len(self.free), (self.buffer,))
            self.start(receivers, t + 1 if self.new else t, full)
            yield visits
            t += 1

    def client_states(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        now = self.available.active(self.time)
        steps = (self.ends <= now[:, None]).sum(axis=1)
        return self.version.copy(), steps, self.steps_done.copy()


def _check(num_clients, num_steps, buffer, working, restart, assign) -> None:
    check_count(1, num_steps=num_steps)
    check_part("num_clients", num_clients, concurrency=working)
    check_part("concurrency", working, buffer=buffer)
    check_choice(("new", "old"), restart=restart)
    check_choice(("same", "random"), assign=assign)
    if assign == "random" and buffer > 1:
        raise ValueError(
            f"buffer is {buffer} with assign='random'; expected 1, since a client "
            "could otherwise report twice in an update"
        )
