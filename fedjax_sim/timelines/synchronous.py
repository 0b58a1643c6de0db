"""FedAvg on the same clock: the server waits for the slowest of its cohort."""

import numpy as np
from jax import Array

from fedjax_sim.timelines.availability import Availability, always
from fedjax_sim.timelines.buffers import Visits, assembled
from fedjax_sim.timelines.durations import Durations, host_generator
from fedjax_sim.types import Timeline


def synchronous(
    key: Array,
    durations: Durations,
    *,
    horizon: float,
    num_clients: int,
    cohort_size: int,
    num_steps: int,
    interaction: float = 3.0,
    one_draw: bool = False,
    availability: Availability | None = None,
) -> Timeline:
    r"""Rounds of ``cohort_size`` random clients that all do ``num_steps`` steps.

    .. math:: \text{a round lasts}\quad \max_{i \in S} \sum_{k=1}^{K} \tau_{ik} + \text{interaction}

    Clients who never come back to finish are not waited for: their slots stay empty.

    Args:
        key: decides cohorts and durations.
        durations: law of the duration of one step.
        horizon: simulated time; the last update is not after it.
        num_clients, cohort_size, num_steps: population M, cohort S, steps K.
        interaction: the server's time for one update.
        one_draw: the K steps of a client take K times one duration (the text of FAVANO, Appendix
            C.2) instead of a sum of K (the program it is based on).
        availability: when clients are present; cohorts are drawn from those. Default always.

    Raises:
        ValueError: a count outside its range, a horizon before the first update or infinite, a
            negative interaction time.

    Example:
        >>> import jax
        >>> from fedjax_sim.timelines import deterministic, synchronous
        >>> timeline = synchronous(
        ...     jax.random.key(0), deterministic(np.array([2.0, 5.0])), horizon=30.0,
        ...     num_clients=2, cohort_size=2, num_steps=2)
        >>> timeline.time.tolist(), sorted(timeline.idle[0].tolist())
        ([13.0, 26.0], [0.0, 6.0])
    """
    if not 1 <= cohort_size <= num_clients:
        raise ValueError(f"cohort_size is {cohort_size}; expected 1 .. num_clients = {num_clients}")
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}; expected at least 1")
    if horizon == np.inf:
        raise ValueError(f"horizon is {horizon}; expected a finite time")
    if not interaction >= 0:
        raise ValueError(f"interaction is {interaction}; expected a time >= 0")
    choosing, drawing = host_generator(key).spawn(2)
    available = availability or always(num_clients)
    updates: list[Visits] = []
    time = 0.0
    while True:
        present = np.flatnonzero(available.present(time))
        size = min(cohort_size, len(present))
        chosen = present[choosing.choice(len(present), size, replace=False)] if size else present
        drawn = durations(drawing, chosen, num_steps)
        total = num_steps * drawn[:, 0] if one_draw else drawn.sum(axis=1)
        ends = available.when(chosen, available.active(time)[chosen] + total)
        back = np.isfinite(ends)
        # With nobody to wait for, time passes until someone comes or goes.
        last = ends[back].max() if back.any() else _next_change(available, time)
        time = float(last) + interaction
        if not time <= horizon:
            break
        version, steps = np.full(size, len(updates)), np.full(size, num_steps)
        idle = np.where(back, last - np.where(back, ends, 0.0), 0.0)
        updates.append(Visits(time, chosen, version, steps, idle, back))
    if not updates:
        raise ValueError(f"horizon is {horizon}; expected at least the time of the first update")
    return assembled(updates, cohort_size, num_steps)


def _next_change(available: Availability, time: float) -> float:
    changes = np.concatenate([available.start, available.end], axis=None)
    return float(changes[changes > time].min(initial=np.inf))
