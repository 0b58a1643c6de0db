"""What can be told wrong from shapes and concrete values, refused before any compilation."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_sim.types import Params, Task, Timeline


def check_arguments(task: Task, timeline: Timeline, params: Params, eval_every: int) -> None:
    """Refuses arguments of a run, or of a batch of runs.

    Raises:
        ValueError: naming the argument, its value and what was expected.
    """
    if eval_every < 1:
        raise ValueError(f"eval_every is {eval_every}; expected at least 1 round")
    if not jax.tree.leaves(params):
        raise ValueError("params has no leaves; expected a pytree of arrays")
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(timeline)):
        _check_timeline(timeline, task.num_clients)
        if task.placement is not None:
            task.placement.check(timeline)


def check_batch(batched: bool, count: int, params: Params, timeline: Timeline) -> None:
    """Refuses models or timelines that are not one per key, ``count`` of them if ``batched``.

    Raises:
        ValueError: naming the argument, its shape and what was expected.
    """
    if not batched and timeline.clients.ndim != 2:
        raise ValueError(
            f"timeline.clients has shape {timeline.clients.shape}; expected [T, S] for one key"
        )
    if batched and timeline.clients.ndim == 3 and timeline.clients.shape[0] != count:
        raise ValueError(
            f"timeline has {timeline.clients.shape[0]} replicas; expected {count}, one per key"
        )
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
    if batched and any(shape[:1] != (count,) for shape in shapes):
        raise ValueError(
            f"params has leaves of shapes {shapes[:3]}...; expected a leading axis of {count}, one "
            "model per key"
        )


def _check_timeline(timeline: Timeline, num_clients: int) -> None:
    """A concrete timeline, or a batch of them, must mean what it says."""
    # NumPy, since jnp would trace inside a jit.
    clients, version, num_steps, mask = (
        np.asarray(x)
        for x in (timeline.clients, timeline.version, timeline.num_steps, timeline.mask)
    )
    shapes = {x.shape for x in (clients, version, num_steps, mask)}
    if len(shapes) != 1 or timeline.time.shape != clients.shape[:-1]:
        raise ValueError(
            f"timeline has fields of shapes {sorted(shapes)} and time {timeline.time.shape}; "
            "expected [T, S] each and time [T]"
        )
    low, high = clients.min(), clients.max()
    if low < 0 or high >= num_clients:
        raise ValueError(
            f"timeline.clients names clients {low}..{high}; "
            f"expected 0..{num_clients - 1}, the task's"
        )
    staleness = np.where(mask, np.arange(timeline.num_rounds)[:, None] - version, 0)
    if staleness.min() < 0 or staleness.max() > timeline.max_staleness:
        raise ValueError(
            f"timeline.version has staleness {staleness.min()}..{staleness.max()}; "
            f"expected 0..{timeline.max_staleness}, timeline.max_staleness"
        )
    steps = np.where(mask, num_steps, 0)
    if steps.min() < 0 or steps.max() > timeline.max_steps:
        raise ValueError(
            f"timeline.num_steps has {steps.min()}..{steps.max()} steps; "
            f"expected 0..{timeline.max_steps}, timeline.max_steps"
        )
    for name in ("first_step", "fetch"):
        value = getattr(timeline, name)
        if value is not None and np.shape(value) != clients.shape:
            raise ValueError(
                f"timeline.{name} has shape {np.shape(value)}; expected {clients.shape}, as clients"
            )
    if timeline.num_slots:
        _check_places(timeline, mask, version)
    # Empty slots count as so many different absentees.
    present = np.sort(np.where(mask, clients, -1 - np.arange(timeline.cohort_size)), axis=-1)
    if (present[..., 1:] == present[..., :-1]).any():
        raise ValueError(
            "timeline.clients names a client twice in one round; expected distinct clients"
        )


def _check_places(timeline: Timeline, mask: np.ndarray, version: np.ndarray) -> None:
    """Of a whole timeline: what a slot fetches must be the broadcast that it names."""
    if timeline.store is None or timeline.fetch is None:
        raise ValueError(
            f"timeline.num_slots is {timeline.num_slots} without store and fetch; expected both"
        )
    shapes = np.shape(timeline.store), np.shape(timeline.fetch)
    if shapes != (mask.shape[:-1], mask.shape):
        raise ValueError(
            f"timeline.store and fetch have shapes {shapes}; expected {mask.shape[:-1]} and "
            f"{mask.shape}"
        )
    rounds, last = timeline.num_rounds, timeline.num_slots
    store, fetch = np.asarray(timeline.store), np.asarray(timeline.fetch)
    if store.min() < 0 or store.max() > last or fetch.min() < 0 or fetch.max() >= last:
        raise ValueError(
            f"timeline.store is in {store.min()}..{store.max()} and fetch in {fetch.min()}.."
            f"{fetch.max()}; expected 0..{last}, timeline.num_slots, and 0..{last - 1}"
        )
    replicas = zip(
        np.reshape(timeline.store, (-1, rounds)),
        np.reshape(timeline.fetch, (-1, *mask.shape[-2:])),
        np.reshape(version, (-1, *mask.shape[-2:])),
        np.reshape(mask, (-1, *mask.shape[-2:])),
        strict=True,
    )
    for store, fetch, started, present in replicas:
        held = np.full(timeline.num_slots + 1, -1)
        for t in range(rounds):
            held[store[t]] = t
            if (held[fetch[t]] != started[t])[present[t]].any():
                raise ValueError(
                    f"timeline.fetch in round {t} names places that hold the broadcasts "
                    f"{held[fetch[t]].tolist()}; expected timeline.version, {started[t].tolist()}"
                )
