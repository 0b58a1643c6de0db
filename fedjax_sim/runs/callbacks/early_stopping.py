"""``EarlyStopping``: ends a run whose metric no longer improves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedjax_sim.checks import check_at_least, check_count
from fedjax_sim.runs.callbacks.direction import Mode, Run, Runs, better, run_of, sign
from fedjax_sim.runs.events import Action, Event


class _Progress(NamedTuple):
    best: float
    waited: int  # evaluations without an improvement


class EarlyStopping:
    """Ends a run after ``patience`` evaluations without an improvement of a metric.

    The metric's mean over the seeds counts, since all seeds of a run share one program.  A resumed
    run counts the evaluations of earlier calls.  Rounds that do not measure the metric do not
    count.

    Args:
        metric: name of the metric, best of a validation part.
        patience: evaluations.
        mode: "min" or "max"; may be left out for losses, errors, accuracies and the like, whose
            names say it.
        min_delta: least change that counts as an improvement.

    Raises:
        ValueError: a patience that is no integer of at least 1, a negative
            ``min_delta``, another mode, or none where the name does not say it; during the run,
            an unknown metric.

    Example:
        >>> stop = EarlyStopping("loss", patience=2)
        >>> for round, loss in enumerate([3.0, 1.0, 2.0, 1.0], start=1):
        ...     metrics = {"loss": np.array([loss])}
        ...     print(stop(Event("", ["0"], round, 9, metrics, None, False, None)))
        None
        None
        None
        stop
    """

    every_evaluation = True

    def __init__(
        self, metric: str, patience: int, *, mode: Mode = None, min_delta: float = 0.0
    ) -> None:
        check_count(1, patience=patience)
        check_at_least(0, min_delta=min_delta)
        self._metric, self._patience, self._min_delta = metric, patience, min_delta
        self._sign = sign(metric, mode)
        self._runs, self._progress = Runs(), dict[Run, _Progress]()

    def __call__(self, event: Event) -> Action:
        if not event.measured(self._metric):
            return None
        value = self._sign * event.mean(self._metric)
        run = run_of(event)
        if self._runs.received(event):
            self._progress[run] = _Progress(np.nan, 0)
        progress = self._progress[run]
        if better(np.array(value), np.array(progress.best + self._min_delta)):
            progress = _Progress(value, 0)
        else:
            progress = progress._replace(waited=progress.waited + 1)
        self._progress[run] = progress
        return "stop" if progress.waited >= self._patience else None
