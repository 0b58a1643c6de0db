"""``CsvLog``: one CSV file with a row per evaluation, for programs that watch a run."""

from __future__ import annotations

import csv
import os
import pathlib

from fedjax_sim.engine import distributed
from fedjax_sim.runs.events import Action, Event


class CsvLog:
    """Appends the metrics of every evaluation to a file, as columns.

    Unlike ``history.csv``, the file has a column per metric, and a resumed run does not verify it:
    rounds that run again after a kill, those since the last checkpoint, have two equal rows.
    A last row without the end of its line was torn by a kill or a full disk, and is removed.
    Columns: algorithm, seed, round and all metrics; a metric that a round does not measure is
    empty there.

    Args:
        path: the file; rows are appended to an existing one.

    Raises:
        ValueError: during the run, an existing file without a column of one of the metrics.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "log.csv"
        ...     log = CsvLog(path)
        ...     log(Event("FedAvg", ["0"], 2, 9, {"loss": np.array([0.5])}, None, False, None))
        ...     print(path.read_text(), end="")
        algorithm,seed,round,loss
        FedAvg,0,2,0.5
    """

    def __init__(self, path: str | pathlib.Path) -> None:
        self._path = pathlib.Path(path)

    def __call__(self, event: Event) -> Action:
        if event.replayed or not distributed.is_first():
            return None
        exists = _without_torn_row(self._path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("r+" if exists else "w", newline="") as file:
            columns = next(csv.reader(file)) if exists else _columns(event)
            absent = sorted({"algorithm", "seed", "round", *event.metrics} - set(columns))
            if absent:
                raise ValueError(
                    f"path is {self._path}, whose columns lack {', '.join(absent)}; expected a "
                    "file of the same metrics, or a new one"
                )
            file.seek(0, 2)
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            if not exists:
                writer.writeheader()
            for i, seed in enumerate(event.seeds):
                values = {name: x[i] for name, x in event.metrics.items()}
                names = {"algorithm": event.name, "seed": seed, "round": event.round}
                writer.writerow(values | names)
        return None


def _without_torn_row(path: pathlib.Path) -> bool:
    """Cuts a file to its whole lines; returns True if it has any."""
    if not path.exists():
        return False
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    return whole > 0


def _columns(event: Event) -> list[str]:
    return ["algorithm", "seed", "round", *event.metrics, *sorted(event.skipped)]
