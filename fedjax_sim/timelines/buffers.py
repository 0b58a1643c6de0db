"""Timelines from lists of visits, with buffers for past broadcasts."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_count, check_one_timeline, check_population
from fedjax_sim.timelines.rules import Sampling
from fedjax_sim.types import Timeline, plain_integers


class Visits(NamedTuple):
    """The visits that report to one server update; S may differ between updates."""

    time: float
    clients: np.ndarray  # [S]
    version: np.ndarray  # [S]
    num_steps: np.ndarray  # [S]
    idle: np.ndarray  # [S] time since the client's last step
    mask: np.ndarray | None = None  # [S]; None: all True


def assembled(updates: Sequence[Visits], cohort_size: int, max_steps: int) -> Timeline:
    """Assembles the timeline of these updates, with first steps and buffers."""
    num_rounds = len(updates)
    shape = (num_rounds, cohort_size)
    clients, version, num_steps = (np.zeros(shape, np.int32) for _ in range(3))
    idle = np.zeros(shape)
    mask = np.zeros(shape, bool)
    for t, visits in enumerate(updates):
        count = len(visits.clients)
        clients[t, :count] = visits.clients
        version[t] = t  # in empty slots
        version[t, :count] = visits.version
        num_steps[t, :count] = visits.num_steps
        idle[t, :count] = visits.idle
        mask[t, :count] = True if visits.mask is None else visits.mask
    done: dict[int, int] = {}
    first_step = np.zeros(shape, np.int32)
    for t, s in zip(*np.nonzero(mask), strict=True):
        client = int(clients[t, s])
        first_step[t, s] = done.get(client, 0)
        done[client] = int(first_step[t, s] + num_steps[t, s])
    staleness = np.where(mask, np.arange(num_rounds)[:, None] - version, 0)
    timeline = Timeline(
        clients=clients,
        version=version,
        num_steps=num_steps,
        mask=mask,
        time=np.array([visits.time for visits in updates], np.float64),
        max_steps=max_steps,
        max_staleness=int(staleness.max(initial=0)),
        first_step=first_step,
        idle=idle,
        sampling=Sampling("durations", float(mask.sum(axis=1).mean())),
    )
    return _on_device(allocate_buffers(timeline) if timeline.max_staleness else timeline)


def allocate_buffers(timeline: Timeline, held: np.ndarray | None = None) -> Timeline:
    """Assigns a buffer to every broadcast that a later visit starts from.

    A buffer is reused after the last visit that starts from its broadcast.  The number of buffers
    is therefore the largest number of broadcasts in use at once: at most ``max_staleness + 1``, the
    size of a ring, and at most one more than the number of clients.

    Args:
        timeline: concrete; one timeline ``[T, S]`` or a batch ``[n, T, S]``.
        held: ``[T, M]`` or ``[n, T, M]``, the version that each client holds after each update, as
            :func:`held_versions` returns it; these broadcasts are kept as well.

    Raises:
        ValueError: ``held`` has another number of updates or timelines, or a part of a timeline
            that begins after its first round.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> slow = fs.timelines.arrivals(  # one of three clients is twenty times as slow
        ...     jax.random.key(0), fs.timelines.deterministic(np.array([1.0, 1.0, 20.0])),
        ...     horizon=40.0, num_clients=3, num_steps=1)
        >>> slow.max_staleness, slow.num_buffers
        (40, 3)
    """
    versions, masks = np.asarray(timeline.version), np.asarray(timeline.mask)
    rounds = np.arange(timeline.num_rounds)[:, None]
    if (late := masks & (versions > rounds)).any():
        at = tuple(int(i[0]) for i in np.nonzero(late))
        raise ValueError(
            f"timeline.version[{', '.join(map(str, at))}] is {versions[at]}; expected at most "
            f"{at[-2]}, the round: buffers are assigned to whole timelines, not to later parts"
        )
    if held is not None and held.shape[:-1] != masks.shape[:-1]:
        raise ValueError(f"held has shape {held.shape}; expected {(*masks.shape[:-1], 'M')}")
    if masks.ndim == 2:
        write_buffer, read_buffer, num_buffers = _allocate(versions, masks, held)
        return dataclasses.replace(
            timeline, write_buffer=write_buffer, read_buffer=read_buffer, num_buffers=num_buffers
        )
    all_held = [None] * len(masks) if held is None else held
    allocations = [_allocate(v, m, h) for v, m, h in zip(versions, masks, all_held, strict=True)]
    num_buffers = max(count for _, _, count in allocations)
    # A broadcast that is not kept is written to buffer number num_buffers, here that of the batch.
    write_buffer = np.stack([np.where(w == count, num_buffers, w) for w, _, count in allocations])
    read_buffer = np.stack([read for _, read, _ in allocations])
    return dataclasses.replace(
        timeline, write_buffer=write_buffer, read_buffer=read_buffer, num_buffers=num_buffers
    )


@plain_integers
def check_delay(timeline: Timeline, delay: int) -> None:
    """Refuses delays below 1, and clients that start from their own models."""
    check_count(1, delay=delay)
    if timeline.own_models:
        raise ValueError(
            "timeline.own_models is True (contacts with receives='current', for QuAFL); expected "
            "a timeline whose clients start from a broadcast"
        )


def delayed(timeline: Timeline, version: np.ndarray | Array, delay: int) -> Timeline:
    """Timeline with these versions, which are smaller by ``delay`` at most, and their buffers."""
    late = dataclasses.replace(
        timeline, version=version, max_staleness=timeline.max_staleness + delay
    )
    return allocate_buffers(late) if timeline.num_buffers else late


def held_versions(timeline: Timeline, num_clients: int, *, new: bool = True) -> np.ndarray:
    """Version of the server's model that each client holds after each update, ``[T, M]``.

    Args:
        timeline: one timeline, ``[T, S]``.
        num_clients: M; all clients hold version 0 at first.
        new: clients that report to update t receive version t + 1; otherwise version t.

    Raises:
        ValueError: a batch of timelines, a number of clients that is negative or no integer, or a
            report of a client outside of the population.

    Example:
        >>> import fedjax_sim as fs
        >>> held_versions(fs.timelines.cyclic(3, 2, 1, num_steps=1), 2).tolist()
        [[1, 0], [1, 2], [3, 2]]
    """
    check_count(num_clients=num_clients)
    clients, mask = np.asarray(timeline.clients), np.asarray(timeline.mask)
    check_one_timeline(clients)
    check_population(clients, mask, num_clients)
    held = np.zeros((timeline.num_rounds, num_clients), np.int32)
    current = np.zeros(num_clients, np.int32)
    for t in range(timeline.num_rounds):
        current[clients[t][mask[t]]] = t + 1 if new else t
        held[t] = current
    return held


def stacked(timelines: Sequence[Timeline]) -> Timeline:
    """Batch ``[n, T, S]`` of timelines, one per seed; shorter ones are padded with empty updates.

    Raises:
        ValueError: no timelines, or timelines with different numbers of slots S or ``max_steps``.

    Example:
        >>> import fedjax_sim as fs
        >>> full = [fs.timelines.full(rounds, 2, num_steps=1) for rounds in (1, 3)]
        >>> stacked(full).mask[:, :, 0].tolist()
        [[True, False, False], [True, True, True]]
    """
    kinds = {
        (
            t.cohort_size,
            t.max_steps,
            t.own_models,
            *(x is None for x in (t.first_step, t.idle, t.lost)),
        )
        for t in timelines
    }
    if len(kinds) != 1:
        raise ValueError(
            f"timelines have the (cohort size, max_steps, ...) {sorted(kinds)}; expected equal ones"
        )
    length = max(t.num_rounds for t in timelines)

    def joined(name: str) -> np.ndarray | None:
        parts = [getattr(t, name) for t in timelines]
        if parts[0] is None:
            return None
        padded = []
        for part in map(np.asarray, parts):
            padding = length - len(part)
            if name == "time":
                last = part[-1:] if len(part) else np.zeros(1, part.dtype)
                padded.append(np.concatenate([part, np.repeat(last, padding)]))
            else:
                padded.append(np.pad(part, ((0, padding), (0, 0))))
        return np.stack(padded)

    names = ("clients", "version", "num_steps", "mask", "time", "first_step", "idle", "lost")
    batch = Timeline(
        **{name: joined(name) for name in names},  # pyright: ignore[reportArgumentType]
        max_steps=timelines[0].max_steps,
        max_staleness=max(t.max_staleness for t in timelines),
        own_models=timelines[0].own_models,
        sampling=timelines[0].sampling if len({t.sampling for t in timelines}) == 1 else None,
    )
    return _on_device(allocate_buffers(batch) if batch.max_staleness else batch)


def _allocate(
    version: np.ndarray, mask: np.ndarray, held: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Buffers that broadcasts are written to and slots read from, and the number of buffers."""
    num_rounds = len(version)
    last_use = np.full(num_rounds, -1)
    rounds = np.broadcast_to(np.arange(num_rounds)[:, None], version.shape)
    np.maximum.at(last_use, version[mask], rounds[mask])
    if held is not None:
        rounds = np.broadcast_to(np.arange(num_rounds)[:, None], held.shape)
        known = held <= rounds  # a client can hold a version before it is broadcast
        np.maximum.at(last_use, held[known], rounds[known])
    buffer = np.full(num_rounds, -1)  # [T]; -1: not kept
    free: list[int] = []
    in_use: list[tuple[int, int]] = []  # (last use, buffer)
    num_buffers = 0
    for t in range(num_rounds):
        while in_use and in_use[0][0] < t:
            heapq.heappush(free, heapq.heappop(in_use)[1])
        if last_use[t] < t:
            continue
        if not free:
            free, num_buffers = [num_buffers], num_buffers + 1
        buffer[t] = heapq.heappop(free)
        heapq.heappush(in_use, (int(last_use[t]), int(buffer[t])))
    num_buffers = max(num_buffers, 1)
    write_buffer = np.where(buffer < 0, num_buffers, buffer).astype(np.int32)
    read_buffer = np.where(mask, buffer[version], 0).astype(np.int32)
    return write_buffer, read_buffer, num_buffers


def _on_device(timeline: Timeline) -> Timeline:
    """Converts NumPy fields to JAX arrays, except the times, which stay in double precision."""
    values = {
        field.name: jnp.asarray(getattr(timeline, field.name))
        for field in dataclasses.fields(timeline)
        if field.name not in ("time", "idle")
        and isinstance(getattr(timeline, field.name), np.ndarray)
    }
    return dataclasses.replace(timeline, **values)
