"""Clients of four kinds: honest, mislabelled, duplicated, and free riders."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import fedjax_sim as fs

HONEST, MISLABELLED, DUPLICATED, RIDER = "honest", "mislabelled", "duplicated", "free rider"
FAULTS = (MISLABELLED, DUPLICATED, RIDER)

Examples = dict[str, np.ndarray]


class Problem(NamedTuple):
    """A setup and the kind of each of its clients."""

    setup: fs.Setup
    kinds: tuple[str, ...]


def kinds_of(honest: int, pairs: int, mislabelled: int, riders: int) -> tuple[str, ...]:
    """Kinds of all clients; two duplicated clients follow each other."""
    counts = {HONEST: honest, DUPLICATED: 2 * pairs, MISLABELLED: mislabelled, RIDER: riders}
    return tuple(kind for kind, count in counts.items() for _ in range(count))


def num_parts(kinds: Sequence[str]) -> int:
    """Number of different data sets that the clients have."""
    return len(kinds) - kinds.count(DUPLICATED) // 2


def spoiled(
    parts: Sequence[Examples],  # examples of the clients that are no copies
    kinds: Sequence[str],  # of the clients
    classes: int,  # number of labels
    share: float,  # of a mislabelled client's labels that are drawn from the other classes
    rng: np.random.Generator,  # of the false labels
) -> list[Examples]:
    """Examples of all clients: copies for duplicated clients, false labels for mislabelled ones."""
    clients, rest = [], list(parts)
    for i, kind in enumerate(kinds):
        second = kind == DUPLICATED and kinds[:i].count(DUPLICATED) % 2 == 1
        own = clients[-1] if second else rest.pop(0)
        if kind == MISLABELLED:
            y = own["y"].copy()
            rows = rng.choice(len(y), round(share * len(y)), replace=False)
            y[rows] = (y[rows] + rng.integers(1, classes, len(rows))) % classes
            own = {**own, "y": y}
        clients.append(own)
    return clients


def build(
    clients: Sequence[Examples],
    kinds: tuple[str, ...],
    held_out: Examples,
    model: fs.models.Model,
    key: jax.Array,
    *,
    rounds: int,
    cohort: int,
    batch_size: int,
) -> Problem:
    """Setup of one seed; the metric ``loss`` is that of the held-out examples.

    A free rider takes part without a step, so its upload is 0.
    """
    objective = fs.objectives.cross_entropy(model)
    data = fs.from_clients(clients)
    task = fs.empirical_task(objective, data, fs.epochs(1, batch_size=batch_size))
    keys = jax.random.split(key)
    timeline = fs.timelines.uniform(keys[0], rounds, len(kinds), cohort, task.num_steps)
    rides = np.array([kind == RIDER for kind in kinds])[np.asarray(timeline.clients)]
    timeline = dataclasses.replace(
        timeline, num_steps=np.where(rides, 0, np.asarray(timeline.num_steps))
    )
    eval_fn: Any = fs.evaluation.evaluator(fs.objectives.classification_metrics(model), held_out)
    return Problem(fs.Setup(task, timeline, model.init(keys[1]), eval_fn), kinds)
