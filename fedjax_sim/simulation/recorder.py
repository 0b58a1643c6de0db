"""Recorder of a run: passes each part of the history to memory, files and callbacks."""

from collections.abc import Sequence

import jax
import numpy as np

from fedjax_sim.engine import History, RunState
from fedjax_sim.evaluation.names import ClientNames
from fedjax_sim.execution import distributed
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.simulation.client_rows import ClientRows
from fedjax_sim.simulation.events import Action, Listeners
from fedjax_sim.simulation.history import Clock, latest, rows
from fedjax_sim.simulation.model_files import LAST, Models, rounds_of, write_models
from fedjax_sim.simulation.store import Store


class Recorder:
    """Keeps a run's history, whose arrays have a leading axis of seeds.

    Args:
        seeds: names of the seeds.
        clock: simulated time and local steps.
        client_probes: names of the client probes.
        listeners: the callbacks.
        store: the run's folder; None keeps the history in memory only.
        client_names: names of the clients that are evaluated, by split.
    """

    def __init__(
        self,
        seeds: Sequence[str],
        clock: Clock,
        client_probes: Sequence[str],
        listeners: Listeners,
        store: Store | None,
        client_names: ClientNames,
    ):
        self._seeds, self._clock, self._client_probes = seeds, clock, client_probes
        self._listeners, self._store, self._client_names = listeners, store, client_names
        self._clients: ClientRows | None = None
        self.parts: list[History] = []
        self.latest: dict[str, float] = {}  # metrics of the last evaluation

    def resume(self, done: int, execution: Execution, num_evaluations: int) -> Action:
        """Prepares the files for the rounds after ``done``; returns the callbacks' action."""
        if self._store is None:
            return None
        self._store.log_call(done, execution)
        clients = ClientRows(self._store.folder, num_evaluations, self._client_names)
        # A checkpoint of round 0 follows the evaluation of the initial model.
        kept = None if self._store.checkpoints.newest is None else done
        distributed.on_first(lambda: clients.resume(kept))
        self._clients = clients
        return _agreed(self._listeners.replay(self._store.history.path, done))

    def add(self, part: History, state: RunState) -> Action:
        """Records the evaluations of a segment and the state after it; returns the action."""
        self.parts.append(part)
        if self._store is not None:
            last = int(np.asarray(state.round).max())
            self._store.append(rows(part, self._clock, self._seeds, self._client_probes, last))
        evaluated = bool(np.size(part.round))
        if evaluated:
            self.latest = latest(part)
        if evaluated and self._clients is not None and distributed.is_first():
            self._clients.append(part, self._seeds)
        action = self._listeners.new(part, self._clock, state) if evaluated else None
        return _agreed(action or self._listeners.poll())

    def finish(self, state: RunState) -> None:
        """Writes the last checkpoint and the models."""
        if self._store is None:
            return
        path = self._store.folder / LAST
        if self.parts:
            self._store.save(state)
        done = np.atleast_1d(np.asarray(state.round)).tolist()
        # A kill after the last checkpoint may have left the models of an earlier call.
        if distributed.is_first() and (self.parts or rounds_of(path) != done):
            batched = np.ndim(state.round) == 1
            params = jax.tree.map(np.asarray, state.server.params)
            params = params if batched else jax.tree.map(lambda x: x[None], params)
            write_models(path, Models(params, list(self._seeds), done, {}))

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


def _agreed(action: Action) -> Action:
    """Returns an action that one of the processes took."""
    if distributed.any_of(action == "interrupt"):
        return "interrupt"
    return "stop" if distributed.any_of(action == "stop") else None
