"""Timelines of synchronous rounds in simulated time: the server waits for the slowest client."""

from __future__ import annotations

import numpy as np
from jax import Array

from fedjax_sim.checks import (
    check_at_least,
    check_count,
    check_horizon,
    check_one_number,
    check_part,
)
from fedjax_sim.timelines.availability import Availability, checked_availability
from fedjax_sim.timelines.buffers import Visits, assembled
from fedjax_sim.timelines.durations import Durations, drawn_durations, host_generator
from fedjax_sim.types import Timeline, plain_integers


@plain_integers
def synchronous(
    key: Array,
    durations: Durations,
    *,
    horizon: float,
    num_clients: int,
    cohort_size: int,
    num_steps: int,
    interaction: float = 3.0,
    availability: Availability | None = None,
) -> Timeline:
    r"""Timeline of rounds of ``cohort_size`` random clients that all do ``num_steps`` steps.

    .. math:: \text{duration} = \max_{i \in S} \sum_{k=1}^{K} \tau_{ik} + \text{interaction}

    The server does not wait for clients that never return: their slots stay empty.

    Args:
        key: decides cohorts and durations.
        durations: law of the duration of one step.
        horizon: simulated time; the last update is not later.
        num_clients: population M.
        cohort_size: clients S per round.
        num_steps: steps K per visit.
        interaction: time that the server needs for one update.
        availability: periods of presence; cohorts are drawn from the clients present.  Default
            always.

    Raises:
        ValueError: a count outside its range, a horizon that is infinite, before the first update
            or too far for the durations, a negative interaction time, or ``availability`` of
            another population.

    Example:
        >>> import jax
        >>> from fedjax_sim.timelines import deterministic, synchronous
        >>> timeline = synchronous(
        ...     jax.random.key(0), deterministic(np.array([2.0, 5.0])), horizon=30.0,
        ...     num_clients=2, cohort_size=2, num_steps=2)
        >>> timeline.time.tolist(), sorted(timeline.idle[0].tolist())
        ([13.0, 26.0], [0.0, 6.0])
    """
    check_part("num_clients", num_clients, cohort_size=cohort_size)
    check_count(1, num_steps=num_steps)
    check_one_number(horizon=horizon)
    if horizon == np.inf:
        raise ValueError(f"horizon is {horizon}; expected a finite time")
    check_at_least(0, interaction=interaction)
    choosing, drawing = host_generator(key).spawn(2)
    available = checked_availability(availability, num_clients)
    updates: list[Visits] = []
    time = 0.0
    while True:
        present = np.flatnonzero(available.present(time))
        size = min(cohort_size, len(present))
        chosen = present[choosing.choice(len(present), size, replace=False)] if size else present
        drawn = drawn_durations("durations", durations, drawing, chosen, num_steps)
        total = drawn.sum(axis=1)
        ends = available.when(chosen, available.active(time)[chosen] + total)
        returns = np.isfinite(ends)
        # If no client returns, the round lasts until a client arrives or leaves.
        last = ends[returns].max() if returns.any() else _next_change(available, time)
        time = float(last) + interaction
        if not time <= horizon:
            break
        check_horizon(horizon, time, len(updates) + 1, cohort_size)
        version, steps = np.full(size, len(updates)), np.full(size, num_steps)
        idle = np.where(returns, last - np.where(returns, ends, 0.0), 0.0)
        updates.append(Visits(time, chosen, version, steps, idle, returns))
    if not updates:
        raise ValueError(f"horizon is {horizon}; expected at least the time of the first update")
    return assembled(updates, cohort_size, num_steps)


def _next_change(available: Availability, time: float) -> float:
    """Time at which the next client arrives or leaves; infinity: never."""
    changes = np.concatenate([available.start, available.end], axis=None)
    return float(changes[changes > time].min(initial=np.inf))
