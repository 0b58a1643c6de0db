"""Tidy rows of a history: ``replica, round, metric, value``.

Values are written in the shortest decimal form that reads back to the same bits.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.engine import CLOCK, PER_CLIENT, History, due, is_mark
from fedjax_sim.types import Timeline

COLUMNS = ("replica", "round", "metric", "value")
Row = tuple[str, int, str, str]
Entry = tuple[str, int, str, float]


class Clock:
    """Simulated time and local steps up to each round of a timeline, per replica."""

    def __init__(self, timeline: Timeline, num_replicas: int):
        def batched(x, ndim: int) -> np.ndarray:
            x = np.asarray(x)
            return x if x.ndim > ndim else np.broadcast_to(x, (num_replicas, *x.shape))

        self.mask = batched(timeline.mask, 2)  # [n, T, S]
        self.time = batched(timeline.time, 1)  # [n, T]
        steps = np.where(self.mask, batched(timeline.num_steps, 2), 0).sum(-1, dtype=np.int64)
        self.local_steps = np.cumsum(steps, axis=-1)  # [n, T]


def complete(
    history: History,
    clock: Clock,
    client_probes: Collection[str] = (),
    seeds: Any = slice(None),
    last: int | None = None,
) -> History:
    """Adds times to a history and averages its client probes; arrays have a leading replica axis.

    The metrics of the result begin with the simulated time and the local steps so far.  Client
    probes become the mean over the clients that reported, NaN in a round without reports.
    ``seeds`` selects the clock's replicas that belong to the history; ``last`` is its last round,
    by default that of the last evaluation.
    """
    history = jax.tree.map(np.asarray, history)
    at = np.asarray(history.round) - 1  # -1 before the first round
    metrics: dict[str, Any] = {}
    for name in CLOCK:
        values = np.take_along_axis(getattr(clock, name)[seeds], np.maximum(at, 0), axis=1)
        metrics[name] = np.where(at >= 0, values, np.zeros_like(values))
    metrics |= dict(sorted(history.metrics.items()))
    probes: dict[str, Any] = dict(sorted(history.probes.items()))
    for name in [name for name in client_probes if name in probes]:  # the initial model has none
        end = int(history.round[0, -1]) if last is None else last
        rounds = end - probes[name].shape[1], end
        mask = clock.mask[seeds, slice(*rounds)]
        probes[name] = np.stack(
            [
                np.stack([_mean(v, m) for v, m in zip(*replica, strict=True)])
                for replica in zip(probes[name], mask, strict=True)
            ]
        )
    return History(history.round, metrics, probes)


def rows(history: History, replicas: Sequence[str], last: int | None = None) -> Iterator[Row]:
    """Yields the rows of one segment that ends with round ``last``; arrays have a replica axis.

    Per round and replica: the metrics of the evaluation as :func:`complete` returns them, then the
    probes, so the order does not depend on the segments.  Metrics that are arrays become
    ``name/0``, ``name/1``, ...; booleans are 1 and 0.
    """
    values = [
        (replica, *row)
        for r, replica in enumerate(replicas)
        for row in melted(jax.tree.map(lambda x, r=r: x[r], history), last)
    ]
    for replica, done, name, value in sorted(values, key=lambda row: row[1]):
        yield replica, done, name, str(value)


def melted(history: History, last: int | None = None) -> Iterator[tuple[int, str, Any]]:
    """Yields ``(round, metric, value)`` of one replica's complete history up to round ``last``.

    Metrics that were not evaluated in a round (:func:`fedjax_sim.engine.evaluation.at_rounds`) and
    values of all clients (:mod:`fedjax_sim.runs.storage.client_rows`) are left out.
    """
    for e, done in enumerate(history.round):
        metrics = {name: values[e] for name, values in history.metrics.items()}
        for name, value in metrics.items():
            if f"/{PER_CLIENT}/" not in f"/{name}" and due(metrics, name):
                yield from _entries(int(done), name, value)
    for name, values in history.probes.items():
        first = (int(history.round[-1]) if last is None else last) - len(values) + 1
        for done, value in enumerate(values, start=first):
            yield from _entries(done, name, value)


def measured(metrics: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], frozenset[str]]:
    """Returns the metrics ``[n]`` that some of n seeds measured, and the names of the others.

    A seed that did not measure a metric has NaN.  Marks are in neither; the clock always counts as
    measured.
    """
    result, skipped = {}, set()
    for name, values in metrics.items():
        if is_mark(name):
            continue
        seeds = range(len(values)) if name not in CLOCK else ()
        lacks = [i for i in seeds if not due({k: x[i] for k, x in metrics.items()}, name)]
        if lacks and len(lacks) == len(values):
            skipped.add(name)
            continue
        if lacks:
            values = np.asarray(values, float)
            values[lacks] = np.nan
        result[name] = values
    return result, frozenset(skipped)


def as_number(value: Any) -> Any:
    """Returns an array whose booleans are 1 and 0, since files and frames have numbers."""
    return value.astype(int) if value.dtype == bool else value


def as_written(values: np.ndarray) -> np.ndarray:
    """Returns the numbers that a reader of the history has: 0.1, not the float32 next to it."""
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        return values
    return np.array([float(str(x)) for x in values.reshape(-1)]).reshape(values.shape)


def latest(history: History) -> dict[str, float]:
    """Returns the scalar metrics of the last evaluation, means over the axis of replicas."""
    last = {name: np.asarray(x)[0, -1] for name, x in history.metrics.items()}
    return {
        name: float(np.asarray(history.metrics[name])[:, -1].mean())
        for name, value in last.items()
        if value.ndim == 0 and due(last, name)
    }


def _mean(values: np.ndarray, reported: np.ndarray) -> np.ndarray:
    """Returns the mean over the clients that reported in a round."""
    if reported.any():
        return values[reported].mean(axis=0)
    return np.full(values.shape[1:], np.nan, np.result_type(values.mean(axis=0)))


def _entries(round: int, name: str, value: Any) -> Iterator[tuple[int, str, Any]]:
    value = as_number(value)
    if value.ndim == 0:
        yield round, name, value[()]
    for i, entry in enumerate(value.reshape(-1) if value.ndim else ()):
        yield round, f"{name}/{i}", entry
