"""Folders of runs without a run."""

import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from fedjax_sim.runs.storage.history_file import HistoryFile
from fedjax_sim.runs.storage.outcome import Outcome
from fedjax_sim.runs.storage.store import RunFolder, claim


def write_run(
    folder: pathlib.Path,
    rows: Iterable[tuple] = (),
    outcome: Outcome | None = None,
    replicas: Sequence[str] = ("0", "1"),
    **identity: Any,
) -> RunFolder:
    """Writes the files of a run whose history has these rows, and no checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    claim(folder / "run.json", {"replicas": list(replicas), **identity})
    run = RunFolder(folder)
    file = HistoryFile(run.history_path, run._id)
    file.create()
    file.append(rows)
    if outcome is not None:
        run._write("outcome.json", dataclasses.asdict(outcome))
    return run
