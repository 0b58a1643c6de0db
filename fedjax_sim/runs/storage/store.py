"""Directory of a run: identity, history and checkpoints, safe against a kill at any moment.

The rows of a segment are written first, then the checkpoint that records the history's length.
"""

import functools
import json
import pathlib
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.engine import NO_PROBES, Probes, RunState
from fedjax_sim.engine.execution import distributed
from fedjax_sim.engine.execution.offload import OnHost
from fedjax_sim.engine.execution.strategies import Execution
from fedjax_sim.runs.history import Row
from fedjax_sim.runs.storage import outcome
from fedjax_sim.runs.storage.checkpoints import Checkpoints, newest_mark
from fedjax_sim.runs.storage.environment import log_call
from fedjax_sim.runs.storage.files import FolderError, read_json, write_text
from fedjax_sim.runs.storage.history_file import HistoryFile, read_text, verify
from fedjax_sim.runs.storage.identity import (
    algorithm_identity,
    arrays_digest,
    description,
    functions_digest,
    sharded_digest,
    source_digest,
    timeline_arrays,
)
from fedjax_sim.types import FedAlgorithm, Setup, Timeline


class Store:
    """Directory of a run: identity, history, checkpoints."""

    def __init__(
        self,
        directory: pathlib.Path,
        run: "RunIdentity",
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
        # Earlier versions wrote eval_initial only if it was true.
        claims = functools.partial(claim, path, run.values, run.extends, {"eval_initial": False})
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
    if_missing: Mapping[str, Any] = types.MappingProxyType({}),
) -> None:
    """Writes a run's identity, or compares it with the identity that is there.

    Args:
        path: the file.
        identity: JSON-able values.
        extends: returns True for the identity of a run that this one continues; the file then gets
            the new identity.
        if_missing: values of an earlier version that its file lacks, so that they are compared.

    Raises:
        FolderError: the directory holds another run, or its file is damaged or lacks a value.
    """
    text = json.dumps(identity, indent=2, sort_keys=True) + "\n"
    if not path.exists():
        write_text(path, text)
        return
    advice = "restore it from a copy, choose another directory or delete this one"
    known = dict(if_missing) | read_json(path, f"expected a JSON object: {advice}")
    new = json.loads(text)
    if missing := sorted(new.keys() - known.keys()):
        raise FolderError(
            f"{path} lacks {', '.join(missing)}, without which another run could continue this "
            f"one; {advice}"
        )
    differing = sorted(name for name in known if not _same(known[name], new.get(name)))
    if differing and extends(known):
        write_text(path, text)
        return
    if differing:
        raise FolderError(
            f"directory {str(path.parent)!r} holds another run: {', '.join(differing):.200} differ "
            f"from {path.name}; choose another directory or delete this one"
        )


def _same(one: Any, other: Any) -> bool:
    """Returns True for equal JSON values; NaN equals NaN, which is the same text in a file."""
    return one == other or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class RunIdentity(NamedTuple):
    """Values that make two calls the same run, and the test for a shorter run."""

    values: dict[str, Any]
    extends: Callable[[Mapping[str, Any]], bool]


def identify(
    algorithm: FedAlgorithm,
    config: Mapping[str, Any] | None,
    setup: Setup,
    keys: Array,
    names: Sequence[str],
    probes: Probes = NO_PROBES,
    execution: Execution | None = None,
    eval_initial: bool = False,
) -> RunIdentity:
    """Returns the values that make two calls the same run: digests and the given config.

    ``functions`` covers the code of the algorithm, the objective, the model, the evaluation and the
    probes.  An execution counts if it was given.  Of a task on the host, ``source`` and
    ``source_functions`` cover the examples, the objective and the minibatch rule.
    """
    timeline = jax.tree.map(np.asarray, setup.timeline)
    placement = setup.task.placement
    # Another number of devices may continue a run with data by client, and no process has it all.
    by_client = placement is not None and placement.axis is not None
    data_digest = sharded_digest if by_client else arrays_digest
    values = {
        "algorithm": algorithm_identity(algorithm),
        "functions": functions_digest(
            (algorithm, setup.task.oracle, setup.eval_fn, setup.weighting, probes)
        ),
        "execution": None if execution is None else functions_digest(execution),
        "config": dict(config or {}),
        "data": data_digest((setup.task, setup.eval_fn)),
        "timeline": arrays_digest(timeline_arrays(timeline)),
        "rounds": timeline.num_rounds,
        "params": arrays_digest(setup.params),
        "key": arrays_digest(keys),
        "eval_every": setup.eval_every,
        "weighting": description(setup.weighting),
        "replicas": list(names),
        "eval_initial": bool(eval_initial),
    }
    if isinstance(placement, OnHost):  # the task has neither the examples nor the objective
        assert placement.source is not None
        values["source"] = source_digest(placement.source)
        values["source_functions"] = functions_digest(placement.build)

    def extends(known: Mapping[str, Any]) -> bool:
        """Returns True if the known run is the beginning of this one."""
        rounds = known.get("rounds")
        if not isinstance(rounds, int) or not 0 < rounds < timeline.num_rounds:
            return False
        beginning = {
            "rounds": rounds,
            "timeline": arrays_digest(timeline_arrays(timeline[:rounds])),
        }
        expected = values | beginning
        same = known.keys() <= expected.keys() and all(
            _same(value, known.get(name)) for name, value in expected.items()
        )
        if same:
            _check_last_evaluation(rounds, timeline.num_rounds, setup.eval_every)
        return same

    return RunIdentity(values, extends)


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
    try:
        known = read_json(directory / "run.json", "")
    except (OSError, ValueError):
        return  # damage has its message in `claim`
    rounds = known.get("rounds")
    if not isinstance(rounds, int) or not 0 < rounds < num_rounds:
        return
    _check_last_evaluation(rounds, num_rounds, eval_every)
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


def _check_last_evaluation(known: int, num_rounds: int, eval_every: int) -> None:
    """Refuses to extend a run whose last evaluation a longer run does not have."""
    if known % eval_every:
        raise FolderError(
            f"rounds is {num_rounds}, and the directory has {known} rounds with an evaluation "
            f"every {eval_every} and after the last one; expected {known}, since only a multiple "
            f"of {eval_every} can be extended"
        )
