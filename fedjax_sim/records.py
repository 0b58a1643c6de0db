"""The history of a run on disk: a tidy CSV that survives being killed.

Rows are ``replica, round, metric, value``.  Values are written in the shortest decimal form that
reads back to the same bits.  A checkpoint remembers the length of the file; resuming cuts
what was written after it, and the same rounds, run again, write the same rows.
"""

import csv
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.engine import History
from fedjax_sim.typing import Timeline

COLUMNS = ("replica", "round", "metric", "value")
Row = tuple[str, int, str, str]


class Clock:
    """What has happened up to each round of a (possibly batched) timeline, per replica."""

    def __init__(self, timeline: Timeline, num_replicas: int):
        def batched(x, ndim: int) -> np.ndarray:
            x = np.asarray(x)
            return x if x.ndim > ndim else np.broadcast_to(x, (num_replicas, *x.shape))

        self.mask = batched(timeline.mask, 2)  # [n, T, S]
        self.time = batched(timeline.time, 1)  # [n, T]
        steps = np.where(self.mask, batched(timeline.num_steps, 2), 0).sum(-1, dtype=np.int64)
        self.local_steps = np.cumsum(steps, axis=-1)  # [n, T]


def rows(
    history: History, clock: Clock, replicas: Sequence[str], client_probes: Collection[str] = ()
) -> Iterator[Row]:
    """The rows of one segment, whose arrays carry a leading replica axis.

    Per replica: simulated time, local steps done so far and the metrics of each evaluation; then
    the probes of each round, client probes as the mean over the clients that reported.  Metrics
    that are arrays become ``name/0``, ``name/1``, ...
    """
    history = jax.tree.map(np.asarray, history)
    for r, replica in enumerate(replicas):
        for e, done in enumerate(history.round[r]):
            yield from _row(replica, done, "time", clock.time[r, done - 1])
            yield from _row(replica, done, "local_steps", clock.local_steps[r, done - 1])
            for name, values in sorted(history.metrics.items()):
                yield from _row(replica, done, name, values[r, e])
        for name, values in sorted(history.probes.items()):
            first = history.round[r, -1] - values.shape[1] + 1
            for done, value in enumerate(values[r], start=int(first)):
                if name in client_probes:
                    reported = clock.mask[r, done - 1]
                    value = value[reported].mean(axis=0) if reported.any() else np.nan
                yield from _row(replica, done, name, value)


def _row(replica: str, round: int, name: str, value: Any) -> Iterator[Row]:
    value = np.asarray(value)
    if value.ndim == 0:
        yield replica, int(round), name, str(value[()])
    for i, entry in enumerate(value.reshape(-1) if value.ndim else ()):
        yield replica, int(round), f"{name}/{i}", str(entry)


def create(path: pathlib.Path) -> int:
    """Writes an empty history; returns its length in bytes."""
    path.write_text(",".join(COLUMNS) + "\n")
    return path.stat().st_size


def append(path: pathlib.Path, new: Iterable[Row]) -> int:
    """Appends rows and forces them to the disk; returns the file's new length in bytes."""
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(new)
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size


def truncate(path: pathlib.Path, length: int) -> None:
    """Cuts the history back to a length it once had.

    Raises:
        ValueError: the file is missing or shorter than that.
    """
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise ValueError(
            f"{path} has {size} bytes; expected at least the {length} its checkpoint recorded"
        )
    os.truncate(path, length)
