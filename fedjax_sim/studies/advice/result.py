"""Result of :func:`fedjax_sim.advise`: constants, theorems, prescribed settings."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax import Array

from fedjax_sim.runs import DEFAULT_OPTIONS, Callback, Options, Storage
from fedjax_sim.studies.advice.comparison import compare_with_practice
from fedjax_sim.studies.advice.conditions import Sizes
from fedjax_sim.studies.advice.gap import Gap
from fedjax_sim.studies.advice.measurement import Measurement
from fedjax_sim.studies.advice.predictions import Prediction
from fedjax_sim.studies.advice.sources import NAMES, Source, models, value_of
from fedjax_sim.studies.advice.theorems import GAP
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.types import Setup, Summary, shown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@shown
class Advice(NamedTuple):
    """Constants of a setup, and the theorems on it."""

    setup: Setup
    measurement: Measurement
    sizes: Sizes
    predictions: tuple[Prediction, ...]  # one per theorem

    @property
    def constants(self) -> ProblemConstants:
        """Constants that the bounds use."""
        return self.measurement.constants

    @property
    def sources(self) -> dict[str, Source]:
        """Sources of the constants, by name."""
        return self.measurement.sources

    def prediction(self, name: str) -> Prediction:
        """Returns what a theorem says.

        Args:
            name: of the theorem, as in :meth:`to_frame`.

        Raises:
            ValueError: another name.
        """
        every = {prediction.theorem.name: prediction for prediction in self.predictions}
        if name not in every:
            raise ValueError(f"name is {name!r}; expected one of {list(every)}")
        return every[name]

    def constants_frame(self) -> pd.DataFrame:
        """Returns a row per constant: ``constant``, ``value``, ``kind``, ``note``.

        The kinds are those of :class:`~fedjax_sim.studies.advice.Source`.
        """
        import pandas as pd  # slow to import

        columns = {
            "constant": NAMES,
            "value": np.array([value_of(self.constants, name) for name in NAMES], float),
            "kind": [self.sources[name].kind for name in NAMES],
            "note": [self.sources[name].note for name in NAMES],
        }
        return pd.DataFrame(columns)

    def to_frame(self) -> pd.DataFrame:
        """Returns a row per theorem.

        Returns:
            columns: ``theorem``, ``source``, ``quantity`` (that it bounds), ``applies``,
            ``failed`` and ``undecided`` (conditions with reasons), ``lr`` and ``bound`` (at the
            setup's local steps, after its rounds), and the prescribed setting: ``local_steps``,
            ``prescribed_lr``, ``rounds``, ``prescribed_bound``.  NaN where there is none.
        """
        import pandas as pd  # slow to import

        return pd.DataFrame([_row(prediction) for prediction in self.predictions])

    def compare(
        self,
        keys: Array,
        *,
        theorems: Collection[str] | None = None,
        grid: Mapping[str, Sequence[Any]] | None = None,
        callbacks: Sequence[Callback] = (),
        storage: Storage | str | pathlib.Path | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> Gap:
        """Runs the prescribed settings beside a tuned sweep, with the same keys.

        Prescribed settings run for their rounds, at most those of the setup's timeline.  F and
        ``||grad F||^2`` are evaluated over all clients' data every ``setup.eval_every`` rounds;
        for theorems on means over FedAvg's shadow iterates, also at all of these, which keeps
        ``local_steps + 1`` models per client.

        Args:
            keys: one per run, ``[n]``.
            theorems: names of the theorems whose settings run; default all that prescribe one.
            grid: hyper-parameters of the sweep, ``local_steps`` and those of FedAvg; default nine
                rates from ``2 / L`` down to ``1 / (128 L)``, and one local step, those of the
                setup and those that are prescribed.
            callbacks, storage: of the sweep, as in :func:`fedjax_sim.sweep`.
            options: as in :func:`fedjax_sim.sweep`; the prescribed settings take the execution.

        Raises:
            ValueError: an unknown theorem, none that prescribes a setting, F* unknown for theorems
                on ``F - F*``, or as :func:`fedjax_sim.sweep`.
        """
        chosen = self.predictions
        if theorems is not None:
            chosen = tuple(self.prediction(name) for name in theorems)
        return compare_with_practice(
            self.setup,
            self.measurement,
            chosen,
            keys,
            grid=grid,
            callbacks=callbacks,
            storage=storage,
            options=options,
        )

    def plot(self) -> Figure:
        """Returns the bounds after the setup's rounds against the number of local steps.

        One line per theorem that applies, at the rates that it prescribes; a ring marks the
        setup's number of local steps.  With theorems on ``F - F*`` and on gradients there is a
        panel for each.

        Raises:
            ValueError: no theorem applies.
        """
        import pandas as pd  # slow to import

        from fedjax_sim.reports.figures import local_steps_figure

        rows = [
            (
                prediction.theorem.name,
                prediction.theorem.measure,
                setting.local_steps,
                setting.bound,
            )
            for prediction in self.predictions
            for setting in prediction.by_local_steps
        ]
        frame = pd.DataFrame(rows, columns=["theorem", "metric", "local_steps", "bound"])
        frame = frame.sort_values("local_steps", kind="stable")
        return local_steps_figure(frame, self.sizes.rounds, self.sizes.local_steps)

    def _summary(self) -> Summary:
        rows = {}
        for name in NAMES:
            value, source = value_of(self.constants, name), self.sources[name]
            text = "" if value is None else f"{value:<10.4g}"
            rows[name] = f"{text} {source.kind} {source.note}".strip()
        return Summary(self._title(), rows, self._table)

    def _table(self, form: str) -> str:
        """Theorems, as a text or as a table."""
        if form == "text":
            delta = value_of(self.constants, "Delta")
            parts = (["", *_lines(one, self.sizes, delta)] for one in self.predictions)
            return "\n".join(line for part in parts for line in part)
        from fedjax_sim.reports import render

        table = self.to_frame().drop(columns=["source"])
        for name in ("failed", "undecided"):
            table[name] = ["; ".join(texts) for texts in table[name]]
        return render(table, "html")

    def _title(self) -> str:
        sizes = self.sizes
        return (
            f"{sizes.clients} clients, {sizes.cohort_size} uploads per round, "
            f"{sizes.local_steps} local steps, {sizes.rounds} rounds. "
            f"Constants measured at {models(self.measurement.num_points)}."
        )


def _row(prediction: Prediction) -> dict[str, Any]:
    theorem, here, best = prediction.theorem, prediction.here, prediction.prescribed
    return {
        "theorem": theorem.name,
        "source": theorem.source,
        "quantity": theorem.quantity,
        "applies": prediction.applies,
        "failed": prediction.failed,
        "undecided": prediction.undecided,
        "lr": np.nan if here is None else here.lr,
        "bound": np.nan if here is None else here.bound,
        "local_steps": np.nan if best is None else best.local_steps,
        "prescribed_lr": np.nan if best is None else best.lr,
        "rounds": np.nan if best is None else best.rounds,
        "prescribed_bound": np.nan if best is None else best.bound,
    }


def _lines(prediction: Prediction, sizes: Sizes, start: float | None) -> list[str]:
    """Lines of the text about one theorem; ``start`` is F(x_0) - F*."""
    theorem, here, best = prediction.theorem, prediction.here, prediction.prescribed
    lines = [f"{theorem.name} ({theorem.source})"]
    if not prediction.applies:
        return [
            *lines,
            "  does not apply, since these conditions fail:",
            *(f"    {text}" for text in prediction.failed),
        ]
    at = f"{theorem.quantity}: after {sizes.rounds} rounds"
    if here is None:
        lines.append(f"  {at} no bound at {sizes.local_steps} local steps")
    else:
        lines.append(f"  {at} at most {here.bound:.3g}, at rate {here.lr:.3g}")
        if theorem.measure == GAP and start is not None and here.bound >= start:
            lines.append(f"  which says nothing: F(x_0) - F* is {start:.3g}")
    aim = "" if prediction.target is None else f", for at most {prediction.target:.3g}"
    if best is None:
        lines.append(f"  prescribes no setting{aim}: no number of rounds suffices")
    else:
        steps = f"{best.local_steps} local step{'s' if best.local_steps > 1 else ''}"
        rounds = f"{best.rounds} round{'s' if best.rounds > 1 else ''}"
        lines.append(f"  prescribes {steps}, rate {best.lr:.3g}, {rounds}{aim}")
    return [*lines, *(f"  provided that {text}" for text in prediction.undecided)]
