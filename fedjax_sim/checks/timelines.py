"""Checks of timelines."""

import numpy as np
from jax import Array

from fedjax_sim.checks.numbers import check_count, is_traced
from fedjax_sim.types import Task, Timeline


def check_timeline(timeline: Timeline, num_clients: int, *, continued: bool = False) -> None:
    """Checks a concrete timeline or a batch; ``continued``: broadcasts before round 0 exist."""
    # NumPy, since jnp would trace inside a jit.
    clients, version, num_steps, mask = (
        np.asarray(x)
        for x in (timeline.clients, timeline.version, timeline.num_steps, timeline.mask)
    )
    for name in ("max_steps", "max_staleness", "num_buffers"):
        check_count(0, **{f"timeline.{name}": getattr(timeline, name)})
    shapes = {x.shape for x in (clients, version, num_steps, mask)}
    if len(shapes) != 1 or np.shape(timeline.time) != clients.shape[:-1]:
        raise ValueError(
            f"timeline has fields of shapes {sorted(shapes)} and time {np.shape(timeline.time)}; "
            "expected [T, S] each and time [T]"
        )
    for name, value, kind in (
        ("clients", clients, np.integer),
        ("version", version, np.integer),
        ("num_steps", num_steps, np.integer),
        ("mask", mask, np.bool_),
    ):
        if not np.issubdtype(value.dtype, kind):
            expected = "booleans" if kind is np.bool_ else "integers"
            raise ValueError(f"timeline.{name} has dtype {value.dtype}; expected {expected}")
    if not clients.size:
        raise ValueError(
            f"timeline.clients has shape {clients.shape}; expected at least one round and one slot"
        )
    low, high = clients.min(), clients.max()
    if low < 0 or high >= num_clients:
        raise ValueError(
            f"timeline.clients has clients {low} .. {high}; "
            f"expected 0 .. {num_clients - 1}, the clients of the task"
        )
    time = np.asarray(timeline.time).reshape(-1, timeline.num_rounds)
    earlier = np.argwhere(time[:, 1:] < time[:, :-1])
    if earlier.size:
        i, t = earlier[0]
        raise ValueError(
            f"timeline.time falls from {time[i, t]} to {time[i, t + 1]} in round {t + 1}; expected "
            "times that never fall"
        )
    if not np.isfinite(time).all():
        i, t = np.argwhere(~np.isfinite(time))[0]
        raise ValueError(f"timeline.time has {time[i, t]} in round {t}; expected finite times")
    if not isinstance(timeline.own_models, bool):
        raise ValueError(f"timeline.own_models is {timeline.own_models!r}; expected True or False")
    started = np.where(mask, version, 0)
    if started.min() < 0 and not continued:
        raise ValueError(
            f"timeline.version has {started.min()}; expected 0 or above, the number of a broadcast"
        )
    staleness = np.where(mask, np.arange(timeline.num_rounds)[:, None] - version, 0)
    if staleness.min() < 0 or staleness.max() > timeline.max_staleness:
        raise ValueError(
            f"timeline.version has staleness {staleness.min()} .. {staleness.max()}; "
            f"expected 0 .. {timeline.max_staleness}, timeline.max_staleness"
        )
    steps = np.where(mask, num_steps, 0)
    if steps.min() < 0 or steps.max() > timeline.max_steps:
        raise ValueError(
            f"timeline.num_steps is in {steps.min()} .. {steps.max()}; "
            f"expected 0 .. {timeline.max_steps}, timeline.max_steps"
        )
    for name in ("first_step", "idle", "read_buffer", "lost"):
        value = getattr(timeline, name)
        if value is not None and np.shape(value) != clients.shape:
            raise ValueError(
                f"timeline.{name} has shape {np.shape(value)}; expected {clients.shape}, "
                "the shape of timeline.clients"
            )
    if timeline.lost is not None and np.asarray(timeline.lost).dtype != np.bool_:
        raise ValueError(
            f"timeline.lost has dtype {np.asarray(timeline.lost).dtype}; expected booleans"
        )
    if timeline.num_buffers:
        _check_buffers(timeline, mask, version)
    # Empty slots count as distinct clients.
    present = np.sort(np.where(mask, clients, -1 - np.arange(timeline.cohort_size)), axis=-1)
    if (present[..., 1:] == present[..., :-1]).any():
        raise ValueError(
            "timeline.clients has a client twice in one round; expected distinct clients"
        )


def _check_buffers(timeline: Timeline, mask: np.ndarray, version: np.ndarray) -> None:
    """Checks that every slot reads the broadcast of the version that it names."""
    if timeline.write_buffer is None or timeline.read_buffer is None:
        raise ValueError(
            f"timeline.num_buffers is {timeline.num_buffers} without write_buffer and read_buffer; "
            "expected both"
        )
    shapes = np.shape(timeline.write_buffer), np.shape(timeline.read_buffer)
    if shapes != (mask.shape[:-1], mask.shape):
        raise ValueError(
            f"timeline.write_buffer and read_buffer have shapes {shapes}; "
            f"expected {mask.shape[:-1]} and {mask.shape}"
        )
    rounds, last = timeline.num_rounds, timeline.num_buffers
    written, read = np.asarray(timeline.write_buffer), np.asarray(timeline.read_buffer)
    if written.min() < 0 or written.max() > last or read.min() < 0 or read.max() >= last:
        raise ValueError(
            f"timeline.write_buffer is in {written.min()} .. {written.max()} and read_buffer in "
            f"{read.min()} .. {read.max()}; expected 0 .. {last}, timeline.num_buffers, and "
            f"0 .. {last - 1}"
        )
    replicas = zip(
        written.reshape(-1, rounds),
        read.reshape(-1, *mask.shape[-2:]),
        version.reshape(-1, *mask.shape[-2:]),
        mask.reshape(-1, *mask.shape[-2:]),
        strict=True,
    )
    for written, read, started, present in replicas:
        content = np.full(last + 1, -1)
        for t in range(rounds):
            content[written[t]] = t
            if (content[read[t]] != started[t])[present[t]].any():
                raise ValueError(
                    f"timeline.read_buffer in round {t} has buffers with the broadcasts "
                    f"{content[read[t]].tolist()}; expected those of timeline.version, "
                    f"{started[t].tolist()}"
                )


def check_one_timeline(clients: np.ndarray | Array) -> None:
    """Raises ValueError if ``timeline.clients`` is that of a batch of timelines."""
    if clients.ndim != 2:
        raise ValueError(f"timeline.clients has shape {clients.shape}; expected [T, S]")


def check_population(clients: np.ndarray, mask: np.ndarray, num_clients: int) -> None:
    """Raises ValueError for a report of a client outside of the population."""
    last = int(clients[mask].max(initial=0))
    if last >= num_clients:
        raise ValueError(
            f"timeline.clients has client {last}; expected 0 .. num_clients - 1 = {num_clients - 1}"
        )


def partial_rounds(task: Task, timeline: Timeline) -> np.ndarray:
    """Returns the numbers of uploads of the rounds with some but not all clients' uploads.

    Rounds in which no client does any work are left out; traced timelines have none.
    """
    if is_traced(timeline):
        return np.zeros(0, int)
    reports = np.asarray(timeline.arrived).sum(axis=-1)
    return reports[(reports < task.num_clients) & np.asarray(timeline.mask).any(axis=-1)]
