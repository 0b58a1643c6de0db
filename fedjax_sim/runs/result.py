"""Result of one simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.engine import ClientNames, History, RunState, headline
from fedjax_sim.runs import views
from fedjax_sim.runs.history import Clock, complete, melted
from fedjax_sim.runs.seeds import Seed, seed_column
from fedjax_sim.runs.storage.client_rows import client_frame, of_finite_models
from fedjax_sim.runs.storage.store import RunFolder
from fedjax_sim.types import PyTree, Rows, Summary, listed, shown

if TYPE_CHECKING:
    import pandas as pd

FRAME_COLUMNS = ("seed", "diverged_at", "round", "metric", "value")


class Progress(NamedTuple):
    """Argument of a callback's ``progress`` after every segment.

    Example:
        >>> progress = Progress(5, 10, {"loss": 0.25}, seeds_done=1, num_seeds=2)
        >>> progress.fraction, progress.status
        (0.75, 'seed 2/2, round 5/10, loss 0.25')
    """

    round: int
    num_rounds: int
    # Of the last evaluation, mean over replicas; none before this call's first evaluation.
    metrics: Mapping[str, float]
    seeds_done: int = 0
    num_seeds: int = 1  # seeds that run one after the other; 1: all of them run together
    name: str = ""  # of the algorithm in a comparison

    @property
    def fraction(self) -> float:
        """Share of the work that is done, in [0, 1]."""
        return (self.seeds_done + self.round / max(self.num_rounds, 1)) / self.num_seeds

    @property
    def position(self) -> str:
        """Seed, if seeds run one after the other, and round as a text."""
        seed = f"seed {self.seeds_done + 1}/{self.num_seeds}, " if self.num_seeds > 1 else ""
        return f"{seed}round {self.round}/{self.num_rounds}"

    @property
    def status(self) -> str:
        """Position and the three most important metrics as a text."""
        metrics = headline(self.metrics)[:3]
        return ", ".join([self.position, *(f"{name} {self.metrics[name]:.3g}" for name in metrics)])


class Record(NamedTuple):
    """Context of a history that a table needs."""

    seeds: Sequence[str]
    clock: Clock
    client_probes: Sequence[str]
    folder: RunFolder | None  # with the rounds of earlier calls
    client_names: ClientNames  # of the clients that are evaluated, by split
    about: Rows  # algorithm and setup as texts
    partial_model: bool = False  # metrics of the server's model mean nothing


@shown
class Simulation(NamedTuple):
    """A finished, stopped or interrupted run."""

    state: RunState  # after the last round
    history: History | None  # of this call's rounds; None if none were left to do
    rounds_done: int  # of this call and of earlier ones
    interrupted: bool  # an interrupt ended the run, and rounds are missing
    compile_seconds: float  # of the segments' programs, also while something else ran
    run_seconds: float  # without compilation
    local_steps: int  # of this call, all replicas together
    record: Record  # context of the history
    stopped: bool = False  # ended early: a callback stopped it, or all replicas have diverged
    # Ctrl-C, SIGTERM or a callback asked for an interrupt, possibly in the last rounds.
    interrupt_requested: bool = False

    @property
    def batched(self) -> bool:
        """True if several replicas ran together, so that arrays have a leading axis."""
        return np.ndim(self.state.diverged_at) == 1

    def models(self) -> PyTree:
        """Returns the final models, leaves ``[n, ...]``, one per seed."""
        return self._by_seed(self.state.server.params)

    def rows(self) -> Iterator[tuple[Seed, int, int, str, Any]]:
        """Yields ``(seed, diverged_at, round, metric, value)`` by seed and round.

        With a directory, the rounds of earlier calls are included.  ``diverged_at`` is the first
        round whose server state was not finite, or 0.
        """
        names = list(self.record.seeds)
        diverged_at = np.atleast_1d(np.asarray(self.state.diverged_at)).tolist()
        known = dict(zip(names, zip(seed_column(names), diverged_at, strict=True), strict=True))
        order = {name: i for i, name in enumerate(names)}
        entries = sorted(self._entries(), key=lambda entry: (order[entry[0]], entry[1]))
        for name, done, metric, value in entries:
            yield *known[name], done, metric, value

    def to_frame(self) -> pd.DataFrame:
        """Returns the tidy history: columns seed, diverged_at, round, metric, value."""
        pd = import_extra("pandas", "cli")

        frame = pd.DataFrame(self.rows(), columns=list(FRAME_COLUMNS))
        return frame.astype({"value": float})

    def per_client(self) -> pd.DataFrame:
        """Returns the clients' values: seed, round, client, split, num_examples and metrics.

        If the data that are evaluated have ``client_ids``, a column ``name`` follows num_examples.
        With a directory, the rounds of earlier calls are included.  Values of rounds from a
        divergence on are NaN.  Requires an evaluation with
        ``client_evaluator(..., per_client=True)``; without one there are no rows.
        """
        pd = import_extra("pandas", "cli")

        if (folder := self.record.folder) is not None:
            frame = folder.clients() if folder.has_clients else pd.DataFrame()
        elif self.history is None:
            frame = pd.DataFrame()
        else:
            record = self.record
            frame = client_frame(self._by_seed(self.history), record.seeds, record.client_names)
        if frame.empty:
            return frame
        at = np.atleast_1d(np.asarray(self.state.diverged_at)).tolist()
        frame = of_finite_models(frame, dict(zip(self.record.seeds, at, strict=True)))
        return frame.assign(seed=seed_column(frame["seed"].tolist()))

    plot = views.plot

    def _summary(self) -> Summary:
        state = "interrupted" if self.interrupted else "stopped" if self.stopped else "finished"
        rows = dict(self.record.about)
        rows["seeds"] = listed(self.record.seeds)
        compiled = f"and {self.compile_seconds:.3g} s of compilation"
        rows["time"] = f"{self.run_seconds:.3g} s, {compiled}"
        title = f"Simulation, {state} after round {self.rounds_done}"
        return Summary(title, rows, lambda form: views.table(self, form))

    def _by_seed(self, values: PyTree) -> PyTree:
        """Returns arrays on the host, with a leading axis of seeds."""
        arrays = jax.tree.map(np.asarray, values)
        return arrays if self.batched else jax.tree.map(lambda x: x[None], arrays)

    def _entries(self) -> Iterator[tuple[str, int, str, Any]]:
        record = self.record
        if record.folder is not None:
            yield from record.folder.entries()
        elif self.history is not None:
            last, probes = self.rounds_done, record.client_probes
            whole = complete(self._by_seed(self.history), record.clock, probes, last=last)
            for r, name in enumerate(record.seeds):
                for done, metric, value in melted(jax.tree.map(lambda x, r=r: x[r], whole), last):
                    yield name, done, metric, float(str(value))  # as it is written to a file
