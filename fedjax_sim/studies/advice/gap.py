"""The gap between theory and practice: bounds, prescribed settings and a tuned sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.diagnostics import Bound, Overlay, overlay
from fedjax_sim.engine import History
from fedjax_sim.runs import Sweep
from fedjax_sim.studies.advice.conditions import Sizes
from fedjax_sim.studies.advice.measurement import Measurement
from fedjax_sim.studies.advice.predictions import Setting
from fedjax_sim.studies.advice.theorems import GRADIENT, LOSS, Measure, Theorem
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.types import Summary, shown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

COLUMNS = ["run", "quantity", "seed", "round", "metric", "value"]
MODEL = "model"


@shown
class SettingRun(NamedTuple):
    """Runs of a prescribed setting.

    Example:
        >>> from fedjax_sim.studies.advice import THEOREMS
        >>> history = History(np.array([[1, 5], [1, 5]]), {}, {})  # of two seeds
        >>> setting = Setting(local_steps=2, rounds=9, lr=0.25, bound=0.5)
        >>> SettingRun(THEOREMS[0], setting, Sizes(4, 4, 2, 5), history).rounds
        5
    """

    theorem: Theorem
    setting: Setting
    sizes: Sizes  # of the setup
    history: History  # NumPy, seeds first

    @property
    def rounds(self) -> int:
        """Rounds that were run, at most those of the setting."""
        return int(self.history.round[0, -1])


@shown
class Gap(NamedTuple):
    """Runs of prescribed settings and of a sweep on one setup.

    Example:
        >>> import jax
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: 0.5 * (batch["x"] - w) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(20, 2, num_steps=1), np.float32(0))
        >>> advice = fs.advise(setup, target=0.5, local_steps=[1])
        >>> keys = jax.random.split(jax.random.key(0), 1)
        >>> gap = advice.compare(
        ...     keys, theorems=["FedAvg, convex"], grid={"lr": [0.5, 1.0], "local_steps": [1]})
        >>> gap.summary()["measured_rounds"].tolist()
        [9, 1]
    """

    runs: list[SettingRun]
    sweep: Sweep
    targets: dict[Measure, float | None]
    measurement: Measurement

    @property
    def measures(self) -> list[Measure]:
        """Measures of the theorems whose settings were run."""
        return list(dict.fromkeys(run.theorem.measure for run in self.runs))

    def to_frame(self) -> pd.DataFrame:
        """Returns tidy rows of the prescribed settings and of the best setting of the sweep.

        Returns:
            columns: ``run`` (theorem or tuned setting), ``quantity`` (``model``, the mean over
            shadow iterates so far, or the value at their weighted mean), ``seed``, ``round``,
            ``metric`` (``F - F*`` or ``squared gradient norm``), ``value``.
        """
        import pandas as pd  # slow to import

        rows = [row for run in self.runs for row in self._rows(run)]
        for measure in self.measures:
            configuration, best = self.tuned(measure)
            name, least = _tuned_name(configuration), self._least(measure)
            rows += [
                (name, MODEL, row["seed"], row["round"], measure, row["value"] - least)
                for row in best.to_dict(orient="records")
            ]
        return pd.DataFrame(rows, columns=COLUMNS)

    def tuned(self, measure: Measure) -> tuple[dict[str, Any], pd.DataFrame]:
        """Returns the best configuration of the sweep, and its rows.

        The best one reaches the target in the fewest rounds, the mean over seeds; without a target,
        or if none reaches it with all seeds, the best one has the smallest value at the end.
        """
        from fedjax_sim.reports import (
            best,
            configuration_columns,
            rounds_to_target,
            rows_with,
            scores,
        )

        frame, metric, target = self.sweep.to_frame(), _metric(measure), self.targets[measure]
        table = scores(frame, metric, mode="min")
        row = best(table, mode="min").to_dict(orient="records")[0]
        if target is not None:
            counts = rounds_to_target(frame, metric, target + self._least(measure), mode="min")
            first = best(counts, mode="min").to_dict(orient="records")[0]
            # Means of infinity are equal: the best of them would be the first of the grid.
            row = first if np.isfinite(first["mean"]) else row
        rows = frame.loc[frame["metric"] == metric, :]
        configuration = {name: row[name] for name in configuration_columns(table)}
        for name, value in configuration.items():
            rows = rows_with(rows, name, value)
        return configuration, rows

    def summary(self) -> pd.DataFrame:
        """Returns a row per run: settings, predicted and measured values, and their ratios.

        Measured values are means over seeds of the theorem's quantity, where runs record it, and
        of the model for theorems about means of the server's models (Theorem 4.3, Lemma G.18).  The
        weights of Theorem 2.19 are those for ``rounds_run``.
        NaN: the setting is tuned and has no bound, there is no target, or it was not reached.

        Returns:
            columns: ``run``, ``metric``, ``local_steps``, ``lr``, ``rounds_run``, ``bound`` and
            ``measured`` (both after these rounds), ``bound_over_measured``, ``predicted_rounds``,
            ``measured_rounds``, ``rounds_ratio``.
        """
        import pandas as pd  # slow to import

        frame, rows = self.to_frame(), []
        settings = {run.theorem.name: run for run in self.runs}
        pairs = frame[["run", "metric"]].drop_duplicates().itertuples(index=False)
        for name, measure in pairs:
            part = frame.loc[(frame["run"] == name) & (frame["metric"] == measure), :]
            quantity = part["quantity"].iloc[-1]
            groups = part.loc[part["quantity"] == quantity, :].groupby("round")["value"]
            means = groups.agg(lambda x: x.to_numpy().mean())  # NaN with a seed that diverged
            target = self.targets[measure]
            below = [] if target is None else means.index[np.asarray(means) <= target].tolist()
            row = {
                "run": name,
                "metric": measure,
                "rounds_run": int(means.index[-1]),
                "measured": float(means.iloc[-1]),
                "measured_rounds": min(below, default=np.nan),
            }
            if (run := settings.get(name)) is None:
                row |= self.tuned(measure)[0]
            else:
                values = self._bounds(run, [row["rounds_run"]]).rows
                row |= {"local_steps": run.setting.local_steps, "lr": run.setting.lr}
                row |= {"bound": values[0].value if values else np.nan}
                row |= {"predicted_rounds": np.nan if target is None else run.setting.rounds}
            rows.append(row)
        table = pd.DataFrame(rows)
        measured = table["measured"].where(table["measured"] > 0)  # F - F* may round to below 0
        table["bound_over_measured"] = table["bound"] / measured
        table["rounds_ratio"] = table["predicted_rounds"] / table["measured_rounds"]
        columns = [
            "run", "metric", "local_steps", "lr", "rounds_run", "bound", "measured",
            "bound_over_measured", "predicted_rounds", "measured_rounds", "rounds_ratio",
        ]  # fmt: skip
        return table.reindex(columns=columns)

    def plot(self, measure: Measure | None = None) -> Figure:
        """Returns measured curves, with the bounds of the prescribed settings over them.

        Args:
            measure: ``F - F*`` or ``squared gradient norm``; default the first that was run.

        Raises:
            ValueError: a measure of none of the theorems whose settings were run.
        """
        from fedjax_sim.reports.figures import gap_figure  # slow to import

        measure = self.measures[0] if measure is None else measure
        if measure not in self.measures:
            raise ValueError(f"measure is {measure!r}; expected one of {self.measures}")
        runs = [run for run in self.runs if run.theorem.measure == measure]
        overlays = [self._bounds(run, run.history.round[0]) for run in runs]
        bounds = Overlay([row for lines in overlays for row in lines.rows], {})
        return gap_figure(self.to_frame(), measure, bounds, self.targets[measure])

    def _summary(self) -> Summary:
        from fedjax_sim.reports import render

        title = f"Prescribed settings of {len(self.runs)} theorems beside a tuned sweep"
        return Summary(title, {}, lambda form: render(self.summary(), form))

    def _least(self, measure: Measure) -> float:
        """F*, which is subtracted from F; 0 for gradients."""
        if measure == GRADIENT:
            return 0.0
        assert self.measurement.optimum is not None
        return self.measurement.optimum.value

    def _rows(self, run: SettingRun) -> list[tuple[Any, ...]]:
        """Tidy rows of a prescribed setting: the algorithm's model, then means over steps."""
        measure, least = run.theorem.measure, self._least(run.theorem.measure)
        rounds = run.history.round[0]
        values = {run.theorem.output: np.asarray(run.history.metrics[_metric(measure)], float)}
        if "shadow_loss" in run.history.probes:
            sums = np.cumsum(np.asarray(run.history.probes["shadow_loss"], float), axis=1)
            values["mean over shadow iterates"] = sums[:, rounds - 1] / rounds
        return [
            (run.theorem.name, quantity, seed, int(r), measure, float(value) - least)
            for quantity, lines in values.items()
            for seed, line in enumerate(lines)
            for r, value in zip(rounds, line, strict=True)
        ]

    def _bounds(self, run: SettingRun, rounds: Any) -> Overlay:
        """The theorem's bound at numbers of rounds, for the setting's rate."""
        theorem, setting, sizes = run.theorem, run.setting, run.sizes

        def formula(
            constants: ProblemConstants, *, lr: Any, local_steps: Any, rounds: Any, clients: Any
        ) -> Array:
            numbers = {**setting.numbers, "lr": lr, "local_steps": local_steps, "rounds": rounds}
            counts = {"clients": clients, "cohort_size": sizes.cohort_size}
            return theorem.bound(constants, **numbers, **counts)

        return overlay(
            History(jnp.asarray(rounds), {}, {}),
            self.measurement.constants,
            lr=setting.lr,
            local_steps=setting.local_steps,
            clients=sizes.clients,
            bounds=[Bound(theorem.name, formula, theorem.quantity, homogeneous=False)],
        )


def _metric(measure: Measure) -> str:
    return GRADIENT if measure == GRADIENT else LOSS


def _tuned_name(configuration: dict[str, Any]) -> str:
    texts = [
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in configuration.items()
    ]
    return f"tuned: {', '.join(texts)}"
