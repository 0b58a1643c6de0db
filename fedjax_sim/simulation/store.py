"""Directory of a run: identity, history and checkpoints, safe against a kill at any moment.

The rows of a segment are written first, then the checkpoint that records the history's length.
"""

import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fedjax_sim.engine import RunState
from fedjax_sim.execution import distributed
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.simulation import outcome
from fedjax_sim.simulation.checkpoints import Checkpoints, newest_mark
from fedjax_sim.simulation.environment import log_call
from fedjax_sim.simulation.files import FolderError, read_json, write_text
from fedjax_sim.simulation.history import Row
from fedjax_sim.simulation.history_file import HistoryFile, read_text, verify
from fedjax_sim.simulation.run_identity import RunIdentity, same


class Store:
    """Directory of a run: identity, history, checkpoints."""

    def __init__(
        self,
        directory: pathlib.Path,
        run: RunIdentity,
        checkpoint_seconds: float,
        communication: Callable[[], Mapping[str, Any]],
    ):
        self._directory, self._names = directory, run.values["replicas"]
        self._communication = functools.cache(communication)
        self._interval = checkpoint_seconds
        self._saved = time.monotonic()
        directory.mkdir(parents=True, exist_ok=True)
        path, parts = directory / "run.json", ("history.csv", "checkpoints")
        left = [name for name in parts if (directory / name).exists()]
        if left and not path.exists():
            raise FolderError(
                f"{path} is missing, beside {' and '.join(left)}, so that nothing says which run "
                "this is; restore it from a copy, choose another directory or delete this one"
            )
        claims = functools.partial(claim, path, run.values, run.extends)
        distributed.on_first(claims)
        claims()
        self.folder = directory
        self._calls = directory / "calls.jsonl"
        self.checkpoints = Checkpoints(directory / "checkpoints")
        self.history = HistoryFile(directory / "history.csv")

    def restore(self, state: RunState) -> RunState:
        """Returns the latest checkpoint, or ``state`` if there is none; cuts the history to it.

        Raises:
            FolderError: a history that differs from the one that the checkpoint recorded.
        """
        restored = self.checkpoints.restore(state)
        if restored is None:
            distributed.on_first(self.history.create)
            return state
        state, mark = restored
        distributed.on_first(lambda: self.history.resume(mark))
        return state

    def log_call(self, first_round: int, execution: Execution) -> None:
        """Records this call's environment, on which the last bits of the next rounds depend."""
        if distributed.is_first():
            log_call(self._calls, first_round, execution)

    def append(self, rows: Iterable[Row]) -> None:
        if distributed.is_first():
            self.history.append(rows)

    def save_if_due(self, state: RunState) -> None:
        """Saves unless the last checkpoint is younger than ``checkpoint_seconds``."""
        if distributed.any_of(time.monotonic() - self._saved >= self._interval):
            self.save(state)

    def save(self, state: RunState) -> None:
        self.write_outcome(state)
        self.checkpoints.save(state, self.history.mark())
        self._saved = time.monotonic()

    def write_outcome(self, state: RunState) -> None:
        """Writes ``outcome.json``, which figures and tables read."""
        diverged_at = np.atleast_1d(np.asarray(state.diverged_at)).tolist()
        values = outcome.Outcome(
            rounds=int(np.max(state.round)),
            diverged_at=dict(zip(self._names, diverged_at, strict=True)),
            **self._communication(),
        )
        if distributed.is_first():
            outcome.write(self._directory, values)


def verify_history(directory: pathlib.Path) -> None:
    """Verifies a run's history up to the newest checkpoint; does nothing without one.

    Raises:
        FolderError: a row was changed.
    """
    mark = newest_mark(directory / "checkpoints")
    if mark is not None:
        verify(directory / "history.csv", mark)


def read_history(directory: pathlib.Path) -> Iterator[tuple[str, str, str, str]]:
    """Yields the rows ``(replica, round, metric, value)`` of a run's history, as text.

    Rows after the newest checkpoint are included.

    Raises:
        FolderError: a row was changed, or is none.
    """
    verify_history(directory)
    return read_text(directory / "history.csv")


def claim(
    path: pathlib.Path,
    identity: dict,
    extends: Callable[[Mapping[str, Any]], bool] = lambda known: False,
) -> None:
    """Writes a run's identity, or compares it with the identity that is there.

    Args:
        path: the file.
        identity: JSON-able values.
        extends: returns True for the identity of a run that this one continues; the file then gets
            the new identity.

    Raises:
        FolderError: the directory holds another run, or its file is damaged or lacks a value.
    """
    text = json.dumps(identity, indent=2, sort_keys=True) + "\n"
    if not path.exists():
        write_text(path, text)
        return
    advice = "restore it from a copy, choose another directory or delete this one"
    known = read_json(path, f"expected a JSON object: {advice}")
    new = json.loads(text)
    if missing := sorted(new.keys() - known.keys()):
        raise FolderError(
            f"{path} lacks {', '.join(missing)}, without which another run could continue this "
            f"one; {advice}"
        )
    differing = sorted(name for name in known if not same(known[name], new.get(name)))
    if differing and extends(known):
        write_text(path, text)
        return
    if differing:
        raise FolderError(
            f"directory {str(path.parent)!r} holds another run: {', '.join(differing):.200} differ "
            f"from {path.name}; choose another directory or delete this one"
        )
