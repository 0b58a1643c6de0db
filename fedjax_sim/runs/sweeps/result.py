"""Results of sweeps."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.engine import ClientNames, History
from fedjax_sim.runs import views
from fedjax_sim.runs.history import melted
from fedjax_sim.runs.seeds import seed_column
from fedjax_sim.runs.storage.client_rows import client_frame, of_finite_models
from fedjax_sim.runs.sweeps.grid import Configuration
from fedjax_sim.types import (
    KEY_ROWS,
    Params,
    PyTree,
    Rows,
    Summary,
    counted,
    listed,
    shown,
    value_text,
)

if TYPE_CHECKING:
    import pandas as pd


@shown
class SweepRun(NamedTuple):
    """One finished run of a sweep: E evaluations, T rounds."""

    configuration: dict[str, Any]  # hyper-parameters by name
    seed: str  # name
    history: History  # metrics [E, ...], "time" and "local_steps" among them; probes [T, ...]
    diverged_at: int  # first round whose server state was not finite; 0: none
    model: Params | None = None  # the final model; None: not kept
    bits: tuple[int, ...] | None = None  # [E] sent until each evaluation; None: not recorded
    partial_model: bool = False  # metrics of the server's model mean nothing
    client_names: ClientNames | None = None  # of the clients that are evaluated, by split
    cut: bool = False  # by a rung of a tuning: it has fewer rounds than those that went on


@shown
class Sweep(NamedTuple):
    """A finished or interrupted sweep."""

    runs: list[SweepRun]  # finished runs in the order of the grid, seeds innermost
    interrupted: bool  # an interrupt ended it, and runs are missing
    resumed: int  # runs found on disk
    compilations: int  # programs compiled for rounds of training
    compile_seconds: float  # of these programs
    run_seconds: float  # without compilation
    missing: int = 0  # runs of the grid that are not finished: interrupted, or of other parts
    about: Rows = MappingProxyType({})  # setup as texts
    settings: tuple[str, ...] = ()  # names in configurations that the setup takes

    def rows(self) -> Iterator[tuple[Configuration, str, int, int, str, float]]:
        """Yields ``(configuration, seed, diverged_at, round, metric, value)``."""
        for run in self.runs:
            for done, name, value in melted(run.history):
                yield run.configuration, run.seed, run.diverged_at, done, name, value

    def to_frame(self) -> pd.DataFrame:
        """Returns the tidy history of all runs.

        Returns:
            columns: the names in the configurations, ``seed``, ``diverged_at``, ``round``,
            ``metric``, ``value``; NaN where a configuration lacks a name.  Lists are tuples.

        Example:
            >>> Sweep([], False, 0, 0, 0.0, 0.0).to_frame().columns.tolist()
            ['seed', 'diverged_at', 'round', 'metric', 'value']
        """
        pd = import_extra("pandas", "cli")

        names = self._names()
        seeds = [run.seed for run in self.runs]
        columns = dict(zip(seeds, seed_column(seeds), strict=True))
        rows = [
            (*(_hashable(configuration.get(name, np.nan)) for name in names), columns[seed], *rest)
            for configuration, seed, *rest in self.rows()
        ]
        tail = ["seed", "diverged_at", "round", "metric", "value"]
        return pd.DataFrame(rows, columns=[*names, *tail])

    def per_client(self) -> pd.DataFrame:
        """Returns the clients' values: a row per run, evaluated round, client and split.

        Values of rounds from a divergence on are NaN.  Requires an evaluation with
        ``per_client=True`` (:func:`~fedjax_sim.engine.evaluation.client_evaluator`,
        :func:`~fedjax_sim.engine.evaluation.personal_evaluator`).

        Returns:
            columns: the names in the configurations, ``seed``, ``round``, ``client``, ``split``,
            ``num_examples``, ``name`` if the clients' data have ``client_ids``, and the metrics; no
            rows without such an evaluation.

        Example:
            >>> Sweep([], False, 0, 0, 0.0, 0.0).per_client().empty
            True
        """
        pd = import_extra("pandas", "cli")

        names, parts = self._names(), []
        for run in self.runs:
            lead = run.history._replace(
                round=np.asarray(run.history.round)[None],
                metrics={key: np.asarray(x)[None] for key, x in run.history.metrics.items()},
            )
            part = client_frame(lead, [run.seed], run.client_names or {})
            part = of_finite_models(part, {run.seed: run.diverged_at})
            for i, name in enumerate(names):
                value = _hashable(run.configuration.get(name, np.nan))
                part.insert(i, name, pd.Series([value] * len(part), part.index))
            parts.append(part)
        parts = [part for part in parts if not part.empty]
        if not parts:
            return pd.DataFrame()
        frame = pd.concat(parts, ignore_index=True)
        return frame.assign(seed=seed_column([str(seed) for seed in frame["seed"]]))

    def whole(self) -> Sweep:
        """Returns the sweep of the runs that did all their rounds; a tuning cuts the others.

        Tables and figures have these runs only, since values after different numbers of rounds
        cannot be compared.
        """
        return self._replace(runs=[run for run in self.runs if not run.cut])

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for run in self.runs for name in run.configuration))

    @property
    def partial_models(self) -> frozenset[str]:
        """The algorithms whose server's model is no complete one; "" if the sweep has one."""
        names = (run.configuration.get("algorithm", "") for run in self.runs if run.partial_model)
        return frozenset(map(str, names))

    plot = views.plot

    def _summary(self) -> Summary:
        diverged = sum(run.diverged_at > 0 for run in self.runs)
        title = f"Sweep of {counted(len(self.runs), 'run')}, of which {diverged} diverged"
        if self.missing:
            verb = "is" if self.missing == 1 else "are"
            title += f", {counted(self.missing, 'run')} of the grid {verb} not finished"
        rows = {name: self.about[name] for name in KEY_ROWS if name in self.about}
        grid = {}
        for name in self._names():
            values = (run.configuration[name] for run in self.runs if name in run.configuration)
            grid[name] = f"{name} {listed(dict.fromkeys(map(value_text, values)))}"
        rows["grid"] = "; ".join(grid.values())
        rows["seeds"] = listed(dict.fromkeys(run.seed for run in self.runs))
        return Summary(title, rows, lambda form: views.table(self, form))

    def models(self) -> PyTree:
        """Returns the final models, leaves ``[runs, ...]`` in the order of ``runs``.

        Raises:
            ValueError: the sweep kept no models, or they have different shapes.
        """
        models = [run.model for run in self.runs if run.model is not None]
        if not models or len(models) < len(self.runs):
            raise ValueError(
                f"{len(models)} of {len(self.runs)} runs have a model; expected all: call sweep "
                "with storage=fs.Storage(folder, keep_models=True)"
            )
        forms = {str(jax.tree.map(np.shape, model)) for model in models}
        if len(forms) > 1:
            raise ValueError(
                f"runs have models of {len(forms)} forms; expected one: read run.model of every run"
            )
        return jax.tree.map(lambda *leaves: np.stack(leaves), *models)


def _hashable(value: Any) -> Any:
    """Returns a value of a configuration with tuples for lists, which frames cannot group by.

    Tuples become lists in the files of a sweep.  So do arrays become tuples.
    """
    if isinstance(value, (np.ndarray, jax.Array)) and value.ndim:
        value = np.asarray(value).tolist()
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
