"""Recorder of a run: passes each part of the history to memory, files and callbacks."""

from collections.abc import Sequence

import jax
import numpy as np

from fedjax_sim.engine import Execution, History, RunState, distributed
from fedjax_sim.runs.events import Action, Listeners, strongest
from fedjax_sim.runs.history import Clock, complete, latest, rows
from fedjax_sim.runs.storage.files import FolderError
from fedjax_sim.runs.storage.model_files import Models
from fedjax_sim.runs.storage.store import RunFolder
from fedjax_sim.types import PyTree


class Recorder:
    """Keeps a run's history, whose arrays have a leading axis of seeds."""

    def __init__(
        self,
        seeds: Sequence[str],
        clock: Clock,
        client_probes: Sequence[str],
        listeners: Listeners,
        folder: RunFolder | None,
    ):
        self._seeds, self._clock, self._client_probes = seeds, clock, client_probes
        self._listeners, self._folder = listeners, folder
        self.parts: list[History] = []
        self.latest: dict[str, float] = {}  # metrics of the last evaluation

    def resume(self, done: int, execution: Execution) -> Action:
        """Passes on the rounds until ``done`` before the others; returns the callbacks' action."""
        if self._folder is None:
            return None
        self._folder.log_call(done, execution)
        return _agreed(self._listeners.replay(self._folder.entries(), done))

    def add(self, part: History, state: RunState) -> Action:
        """Records the evaluations of a segment and the state after it; returns the action."""
        self.parts.append(part)
        evaluated, action = bool(np.size(part.round)), None
        if evaluated:
            self.latest = latest(part)
        listen = evaluated and self._listeners.listen
        if self._folder is not None or listen:
            last = int(np.asarray(state.round).max())
            # Events have no probes.
            recorded = part if self._folder is not None else part._replace(probes={})
            whole = complete(recorded, self._clock, self._client_probes, last=last)
            if self._folder is not None:
                lines = rows(whole, self._seeds, last)
                self._folder.append(lines, part if evaluated else None, self._seeds)
            if listen:
                action = self._listeners.new(whole, _by_seed(state.server.params, state))
        return _agreed(strongest([action, self._listeners.poll()]))

    def finish(self, state: RunState) -> None:
        """Writes the last checkpoint and the models."""
        if self._folder is None:
            return
        if self.parts:
            self._folder.save(state)
        done = np.atleast_1d(np.asarray(state.round)).tolist()
        # A kill after the last checkpoint may have left the models of an earlier call.
        if distributed.is_first() and (self.parts or _rounds(self._folder) != done):
            params = _by_seed(jax.tree.map(np.asarray, state.server.params), state)
            self._folder.write_models(Models(params, list(self._seeds), done, {}))

    def history(self) -> History | None:
        """Returns everything that was recorded, None if nothing was."""
        if not self.parts:
            return None
        # Round 0 has an evaluation and no probes.
        probes = [part.probes for part in self.parts if part.probes]
        parts = [part._replace(probes={}) for part in self.parts]
        together = jax.tree.map(lambda *x: np.concatenate(x, 1), *parts)
        return together._replace(
            probes=jax.tree.map(lambda *x: np.concatenate(x, 1), *probes) if probes else {}
        )


def _by_seed(params: PyTree, state: RunState) -> PyTree:
    """Returns the models of all seeds, ``[n, ...]``, also of a state without an axis of seeds."""
    return params if np.ndim(state.round) else jax.tree.map(lambda x: x[None], params)


def _rounds(folder: RunFolder) -> list[int] | None:
    """Returns the rounds of the models in a folder, by seed; None without intact ones."""
    try:
        return list(folder.models().rounds)
    except FolderError:
        return None


def _agreed(action: Action) -> Action:
    """Returns an action that one of the processes took."""
    if distributed.any_of(action == "interrupt"):
        return "interrupt"
    return "stop" if distributed.any_of(action == "stop") else None
