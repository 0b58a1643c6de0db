"""Learning curves in a notebook while a run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedjax_sim.checks import check_choice
from fedjax_sim.engine import distributed
from fedjax_sim.reports.figures import Figure, result_curves
from fedjax_sim.reports.folders import default_metrics, divergences
from fedjax_sim.reports.frames import finite_part
from fedjax_sim.reports.labels import better, metric_label
from fedjax_sim.reports.selection import sign_of
from fedjax_sim.runs import Event, in_jupyter

MOST_METHODS = 10  # lines of a figure
_SECONDS = 0.5  # between two figures, at least
_SHARE = 0.1  # of the time that drawing may take


class LiveCurves:
    """Callback that draws the learning curves of a run in a notebook, updated in place.

    Pass an object among the ``callbacks`` of :func:`fedjax_sim.simulate`,
    :func:`fedjax_sim.compare` or :func:`fedjax_sim.sweep`, beside a
    :class:`~fedjax_sim.ProgressBar`; a call with the object of an earlier one begins a new figure.
    The figure is that of ``result.plot()``: means over seeds with a band, a panel per metric, a
    line per algorithm.  It stays when the run ends.  There are at most two figures per second, and
    drawing takes at most 10 % of the time, besides one figure at the end of every algorithm.  The
    compiled program is that of a run without it; the evaluations arrive segment by segment.
    Outside of a notebook nothing is drawn.

    A line ends where a loss of a seed is not finite, also of another metric.  Of seeds that run one
    after the other, the one in progress is drawn when it has ended, unless it is the first.  Of
    many methods, as the configurations of a sweep, the best ten are drawn.  An algorithm that an
    earlier call has finished has no new evaluations and is absent.

    Args:
        metrics: metrics, a panel each; default: test accuracy and training loss, else the first
            three.
        x: horizontal axis.
        yscale: of the vertical axes.
        clock: function that returns seconds.

    Raises:
        ValueError: another axis or scale; during the run, an unknown metric.

    Example:
        >>> import fedjax_sim as fs
        >>> live = fs.LiveCurves("test/accuracy")
        >>> setup = fs.presets.quickstart(seeds=1, rounds=2, model="softmax_regression")
        >>> result = fs.compare(
        ...     {"FedAvg": fs.fedavg(0.2)}, setup, fs.presets.keys(1), callbacks=[live]
        ... )
        >>> [line.get_label() for line in live.figure().axes[0].lines]
        ['FedAvg']
    """

    def __init__(
        self,
        metrics: str | Sequence[str] | None = None,
        *,
        x: Literal["round", "time", "local_steps"] = "round",
        yscale: Literal["linear", "log"] = "linear",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_choice(("round", "time", "local_steps"), x=x)
        check_choice(("linear", "log"), yscale=yscale)
        self._metrics = [metrics] if isinstance(metrics, str) else metrics
        self._x: Literal["round", "time", "local_steps"] = x
        self._yscale, self._clock = yscale, clock
        self._values: dict[tuple[str, str, int, str], float] = {}
        self._diverged: dict[tuple[str, str], int] = {}  # rounds, by algorithm and seed
        self._running: dict[str, Sequence[str]] = {}  # seeds in progress, by algorithm
        self._next = clock()  # time of the next figure
        self._handle: Any = None
        self._shows = in_jupyter() and distributed.is_first()

    def begin(self, name: str) -> None:
        """Forgets an earlier call, whose longer curves would go on behind those of this one."""
        if not name or any(name == known for known, *_ in self._values):
            for kept in (self._values, self._diverged, self._running):
                kept.clear()
            self._handle = None  # of the output of another cell

    def __call__(self, event: Event) -> None:
        """Keeps the values of an evaluation, and draws if it is time."""
        for name in self._metrics or ():
            event.measured(name)
        for name, values in event.metrics.items():
            if self._metrics is None or name in (*self._metrics, self._x):
                for seed, value in zip(event.seeds, values, strict=True):
                    self._values[event.name, seed, event.round, name] = float(value)
            pairs = zip(event.seeds, values, strict=True)
            entries = ((seed, event.round, name, float(value)) for seed, value in pairs)
            for seed, done in divergences(entries, None).items():
                self._diverged.setdefault((event.name, seed), done)
        if event.round < event.num_rounds:
            self._running[event.name] = event.seeds
        else:
            self._running.pop(event.name, None)
        if not event.replayed and self._clock() >= self._next:
            self._show()

    def progress(self, progress: Any) -> None:
        """Draws the end of an algorithm or of a sweep."""
        if progress.fraction >= 1:
            self._show()

    def finished(self, name: str, simulation: Any) -> None:
        """Draws the end of a simulation that was stopped or interrupted."""
        del simulation
        if self._running.pop(name, None) is not None:
            self._show()

    def figure(self) -> Figure:
        """Returns the curves of all evaluations so far.

        Raises:
            ValueError: there are no evaluations.

        Example:
            >>> LiveCurves().figure()
            Traceback (most recent call last):
            ...
            ValueError: the run has no evaluations yet; expected at least one
        """
        if not self._values:
            raise ValueError("the run has no evaluations yet; expected at least one")
        rows = [
            (*key, value, self._diverged.get(key[:2], 0)) for key, value in self._values.items()
        ]
        columns = ["algorithm", "seed", "round", "metric", "value", "diverged_at"]
        history = self._ended(pd.DataFrame(rows, columns=columns))
        metrics = list(self._metrics or default_metrics(history))
        history, caption = _best(history, metrics[0])
        by = "algorithm" if any(history["algorithm"]) else None
        return result_curves(
            history, metrics, x=self._x, by=by, yscale=self._yscale, caption=caption
        )

    def _ended(self, history: pd.DataFrame) -> pd.DataFrame:
        """Returns the history without seeds in progress where others have ended."""
        # A mean is over all seeds, and would shrink to the rounds of the newest one.
        algorithms, seeds = history["algorithm"].tolist(), history["seed"].tolist()
        ended = {
            name
            for name, seed in zip(algorithms, seeds, strict=True)
            if seed not in self._running.get(name, ())
        }
        kept = [
            name not in ended or seed not in self._running.get(name, ())
            for name, seed in zip(algorithms, seeds, strict=True)
        ]
        return history.loc[kept, :]

    def _show(self) -> None:
        if not self._shows or not self._values:
            return
        from IPython.display import display  # exists where Jupyter does

        began = self._clock()
        if self._handle is None:
            self._handle = display(self.figure(), display_id=True)
        else:
            self._handle.update(self.figure())
        ended = self._clock()
        self._next = ended + max(_SECONDS, (ended - began) * (1 / _SHARE - 1))


def _best(history: pd.DataFrame, metric: str) -> tuple[pd.DataFrame, str]:
    """Returns the history of the methods with the best last values, and a caption."""
    names = history["algorithm"].unique()
    if len(names) <= MOST_METHODS:
        return history, ""
    rows = finite_part(history.loc[history["metric"] == metric, :])
    rows = rows.sort_values("round", kind="stable")
    last = rows.groupby(["algorithm", "seed"], sort=False).tail(1)
    # A mean without the seeds that failed would reward a method for failing.
    means = last.groupby("algorithm", sort=False)["value"].agg(lambda x: x.to_numpy().mean())
    costs = np.asarray(means, np.float64) * sign_of(better(metric))
    order = np.argsort(np.where(np.isfinite(costs), costs, np.inf), kind="stable")
    best = [means.index[i] for i in order[:MOST_METHODS]]
    caption = f"The best {MOST_METHODS} of {len(names)} by {metric_label(metric)} so far."
    return history.loc[history["algorithm"].isin(best), :], caption
