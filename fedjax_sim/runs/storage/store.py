"""Folder of a run: identity, history and checkpoints, safe against a kill at any moment.

The rows of a segment are written first, then the checkpoint that records the history's length.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_sim.engine import ClientNames, Execution, History, RunState, distributed
from fedjax_sim.runs.history import Entry, Row
from fedjax_sim.runs.storage.checkpoints import Checkpoints, Confirmed, newest
from fedjax_sim.runs.storage.client_rows import ClientRows, has_clients, read_clients
from fedjax_sim.runs.storage.environment import log_call
from fedjax_sim.runs.storage.files import FolderError, check_run_id, digest, read_json, write_json
from fedjax_sim.runs.storage.history_file import HistoryFile, parsed, read
from fedjax_sim.runs.storage.identity import arrays_digest, timeline_arrays
from fedjax_sim.runs.storage.model_files import Models, Which, read_models, write_models
from fedjax_sim.runs.storage.outcome import Outcome
from fedjax_sim.runs.storage.run_identity import (
    RunIdentity,
    before_changes,
    check_last_evaluation,
    same,
)
from fedjax_sim.types import Timeline

if TYPE_CHECKING:
    import pandas as pd


_MODELS = {"last": "models.npz", "best": "best.npz"}
_RUN, _OUTCOME, _TIMING = "run.json", "outcome.json", "timing.json"
_HISTORY, _CHECKPOINTS, _CALLS = "history.csv", "checkpoints", "calls.jsonl"


class RunFolder:
    """Files of a run: claims, restores, appends, saves, reads and verifies them.

    Nothing else makes paths inside the folder.  Every file has a digest that is verified before
    the file is parsed, and names the run.  Reading changes nothing and may happen while another
    process runs.  Damaged files and those of another run raise a ``FolderError``.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.history_path = path / _HISTORY

    @property
    def exists(self) -> bool:
        """True if a run has claimed the folder."""
        return (self.path / _RUN).exists()

    def identity(self) -> dict[str, Any]:
        """Returns what identifies the run, and the identifier that its files have."""
        return read_json(self.path / _RUN, _ADVICE)

    @functools.cached_property
    def _id(self) -> str:
        return self.identity()["id"]

    # Writing

    def claim(
        self,
        run: RunIdentity,
        communication: Callable[[], Mapping[str, Any]],
        num_evaluations: int = 1,
        client_names: ClientNames = types.MappingProxyType({}),
    ) -> None:
        """Prepares the folder for a run, whose whole number of evaluations is given.

        ``communication`` returns the part of the outcome that is known before the run.
        """
        self._run, self._names = run, run.values["replicas"]
        self._communication, self._saved = functools.cache(communication), time.monotonic()
        self.path.mkdir(parents=True, exist_ok=True)
        left = [name for name in (_HISTORY, _CHECKPOINTS) if (self.path / name).exists()]
        if left and not self.exists:
            raise FolderError(
                f"{self.path / _RUN} is missing, beside {' and '.join(left)}, so that nothing says "
                f"which run this is; {_ADVICE}"
            )
        claims = functools.partial(claim, self.path / _RUN, run.values, run.extends)
        distributed.on_first(claims)
        claims()
        self.checkpoints = Checkpoints(self.path / _CHECKPOINTS, self._check_checkpoint)
        self._history = HistoryFile(self.history_path, self._id)
        self._clients = ClientRows(self.path, self._id, num_evaluations, client_names)

    def _check_checkpoint(self, path: pathlib.Path, known: Mapping[str, Any]) -> None:
        """Refuses a checkpoint of another run."""
        differing = _differing(known, self._run.values)
        if differing and not self._run.extends(known):
            here = self._run.values
            texts = [
                f"{x} is {known.get(x)!r:.60} there, {here.get(x)!r:.60} here" for x in differing
            ]
            raise FolderError(
                f"{path} is a checkpoint of another run than {self.path / _RUN}: "
                f"{'; '.join(texts)}; move it elsewhere"
            )

    def check(self, run: RunIdentity) -> None:
        """Refuses a folder with another run than this one, or than the beginning of this one."""
        known = self.identity()
        del known["id"]
        if (differing := _differing(known, run.values)) and not run.extends(known):
            raise _other_run(self.path / _RUN, differing)

    def restore(self, state: RunState) -> RunState:
        """Returns the latest checkpoint, or ``state`` if there is none; cuts the files to it."""
        restored = self.checkpoints.restore(state)
        state, confirmed = restored or (state, None)

        def resume() -> None:
            if confirmed is None:
                self._history.create()
            else:
                self._history.resume(confirmed.history)
            self._clients.resume(None if confirmed is None else confirmed.clients)

        distributed.on_first(resume)
        return state

    def log_call(self, first_round: int, execution: Execution) -> None:
        """Records this call's environment, on which the last bits of the next rounds depend."""
        if distributed.is_first():
            log_call(self.path / _CALLS, first_round, execution)

    def append(self, rows: Iterable[Row], evaluated: History | None, seeds: Sequence[str]) -> None:
        """Appends rows of the history, and the clients' values of evaluations."""
        if distributed.is_first():
            self._history.append(rows)
            if evaluated is not None:
                self._clients.append(evaluated, seeds)

    def save(self, state: RunState, unless_younger: float = 0.0) -> None:
        """Saves a checkpoint, unless the last one is younger than that many seconds."""
        if not distributed.any_of(time.monotonic() - self._saved >= unless_younger):
            return
        self.write_outcome(state)
        self.checkpoints.save(
            state, lambda: Confirmed(self._run.values, self._history.mark(), self._clients.mark())
        )
        self._saved = time.monotonic()

    def write_outcome(self, state: RunState) -> None:
        """Writes the outcome, which figures and tables read."""
        diverged_at = np.atleast_1d(np.asarray(state.diverged_at)).tolist()
        values = Outcome(
            rounds=int(np.asarray(state.round).max()),
            diverged_at=dict(zip(self._names, diverged_at, strict=True)),
            **self._communication(),
        )
        if distributed.is_first():
            self._write(_OUTCOME, dataclasses.asdict(values))

    def write_models(self, models: Models, which: Which = "last") -> None:
        """Writes the models of all seeds."""
        write_models(self.path / _MODELS[which], models, self._id)

    def write_timing(self, values: Mapping[str, Any]) -> None:
        """Writes the seconds and steps of all calls."""
        self._write(_TIMING, values)

    def _write(self, name: str, values: Mapping[str, Any]) -> None:
        write_json(self.path / name, {"run": self._id, **values}, indent=None)

    # Reading

    def has_state(self, round: int) -> bool:
        """Returns True if there is a checkpoint of a round."""
        return (self.path / _CHECKPOINTS / str(round)).is_dir()

    def state_at(self, state: RunState, round: int) -> RunState | None:
        """Returns the state after a round, placed as ``state``, if its checkpoint is intact."""
        values = {name: x for name, x in self.identity().items() if name != "id"}
        self._run = RunIdentity(values, lambda known: _is_beginning(known, values))
        restored = Checkpoints(self.path / _CHECKPOINTS, self._check_checkpoint).restore(
            state, round
        )
        return None if restored is None else restored[0]

    def _confirmed(self) -> Confirmed | None:
        return newest(self.path / _CHECKPOINTS)

    def history(self) -> bytes:
        """Returns the history, as far as its rows are whole."""
        confirmed = self._confirmed()  # before the rows, which may be newer
        return read(self.history_path, self._id, confirmed and confirmed.history)

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yields the rows ``(replica, round, metric, value)`` of the history, with its digits."""
        yield from parsed(self.history())

    def entries(self) -> Iterator[Entry]:
        """Yields the rows of the history with numbers."""
        for replica, done, metric, value in self.rows():
            yield replica, int(done), metric, float(value)

    @property
    def has_history(self) -> bool:
        """True if there is a history, perhaps without rows."""
        return self.history_path.exists()

    @property
    def has_clients(self) -> bool:
        """True if there are values of clients."""
        return has_clients(self.path)

    def clients(self) -> "pd.DataFrame":
        """Returns the clients' values."""
        confirmed = self._confirmed()
        return read_clients(self.path, self._id, confirmed and confirmed.clients)

    def outcome(self) -> Outcome | None:
        """Returns the outcome; None if there is none."""
        values = self._read(_OUTCOME, "delete it (it can be missed)")
        return None if values is None else Outcome(**values)

    def timing(self) -> dict[str, Any]:
        """Returns the seconds and steps of earlier calls; empty if there were none."""
        advice = "delete the file to continue (it has seconds and steps of earlier calls)"
        return self._read(_TIMING, advice) or {}

    def calls(self) -> list[dict[str, Any]]:
        """Returns the environments of the calls that computed rounds, without torn lines."""
        path, calls = self.path / _CALLS, []
        for line in path.read_text().splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):  # a kill while the line was written
                calls.append(json.loads(line))
        return calls

    def _read(self, name: str, advice: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.exists():
            return None
        values = read_json(path, advice)
        check_run_id(path, values.pop("run"), self._id, advice)
        return values

    def has_models(self, which: Which = "last") -> bool:
        """Returns True if there are models."""
        return (self.path / _MODELS[which]).exists()

    def models(self, which: Which = "last") -> Models:
        """Returns the models of all seeds."""
        return read_models(self.path / _MODELS[which], self._id)


_ADVICE = "restore it from a copy, choose another directory or delete this one"


def claim(
    path: pathlib.Path,
    identity: Mapping[str, Any],
    extends: Callable[[Mapping[str, Any]], bool] = lambda known: False,
    identifier: str | None = None,
) -> str:
    """Writes an identity, or compares it with the one that is there; returns its identifier.

    A file whose identity ``extends`` accepts, as that of the beginning of this run, gets the new
    one and keeps its identifier.  That of a new file is by default a digest of the identity.
    """
    if not path.exists():
        identifier = identifier or digest(dict(identity))
        write_json(path, {"id": identifier, **identity})
        return identifier
    known = read_json(path, _ADVICE)
    identifier = known.pop("id")
    differing = _differing(known, identity)
    if differing and extends(known):
        write_json(path, {"id": identifier, **identity})
    elif differing:
        raise _other_run(path, differing)
    assert identifier is not None
    return identifier


def _other_run(path: pathlib.Path, differing: Sequence[str]) -> FolderError:
    return FolderError(
        f"directory {str(path.parent)!r} holds another run: {', '.join(differing):.200} differ "
        f"from {path.name}; choose another directory or delete this one"
    )


def _differing(known: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Returns the names of the values that differ, or that only one of two identities has."""
    new = json.loads(json.dumps(dict(identity)))
    both = known.keys() & new.keys()
    unequal = {name for name in both if not same(known[name], new[name])}
    return sorted((known.keys() ^ new.keys()) | unequal)


def _is_beginning(known: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Returns True for a run of fewer rounds, or of functions whose change was accepted since."""
    return set(_differing(known, before_changes(values, known))) <= {"rounds", "timeline"}


def check_extension(
    directory: pathlib.Path, num_rounds: int, eval_every: int, timeline: Timeline | None = None
) -> None:
    """Refuses more rounds for a run that they cannot extend; does nothing without a shorter run.

    A call that changes files of its own before it runs checks this first.

    Args:
        directory: folder of the run.
        num_rounds, eval_every: those of the longer run.
        timeline: the longer one, whose beginning is compared; None: it is not.

    Raises:
        FolderError: the run ends between two evaluations, or the timeline begins otherwise.
    """
    if not RunFolder(directory).exists:
        return
    known = RunFolder(directory).identity()
    rounds = known.get("rounds")
    if not isinstance(rounds, int) or not 0 < rounds < num_rounds:
        return
    check_last_evaluation(rounds, num_rounds, eval_every)
    if timeline is None:
        return
    beginning = jax.tree.map(np.asarray, timeline)[:rounds]
    digest = arrays_digest(timeline_arrays(beginning))
    if known.get("timeline", digest) != digest:
        raise FolderError(
            f"rounds is {num_rounds}, and the {rounds} rounds in {directory} have other clients "
            f"per round than the first {rounds} of {num_rounds}; expected {rounds}, since the "
            "sampling depends on the number of rounds"
        )
