"""Callbacks of ``fedjax-sim run``: logs, best models, early stopping and a time limit."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from fedjax_sim import callbacks
from fedjax_sim.callbacks import Callback
from fedjax_sim.checks import did_you_mean
from fedjax_sim.evaluation.state import takes_state
from fedjax_sim.types import Setup

_LOGS: dict[str, tuple[str, Callable[[str], Callback]]] = {
    "csv": ("FILE", callbacks.CsvLog),
    "mlflow": ("EXPERIMENT", callbacks.MLflow),
    "tensorboard": ("DIRECTORY", callbacks.TensorBoard),
    "wandb": ("PROJECT", callbacks.WandB),
}


class Watching(NamedTuple):
    """Options of a run that do not change its results up to the round in which it ends."""

    log: Sequence[str] = ()
    keep_best: str | None = None
    stop_early: str | None = None
    time_limit: float | None = None

    def callbacks(self, setup: Setup) -> list[Callback]:
        """Returns the callbacks for a setup of n seeds.

        Raises:
            ValueError: an option of another form, or an unknown metric.
            ImportError: the package of a log is not installed.

        Example:
            >>> import numpy as np
            >>> setup = Setup(None, None, np.zeros(2), lambda w: {"test/loss": w**2})
            >>> [type(f).__name__ for f in Watching(stop_early="test/loss:5").callbacks(setup)]
            ['EarlyStopping']
            >>> Watching(keep_best="test/los").callbacks(setup)
            Traceback (most recent call last):
            ValueError: keep_best is 'test/los'; expected one of test/loss; did you mean test/loss?
        """
        result = [_log(text) for text in self.log]
        if self.keep_best is not None:
            _check_metric("keep_best", self.keep_best, self.keep_best, setup)
            result.append(callbacks.BestModel(self.keep_best))
        if self.stop_early is not None:
            metric, colon, patience = self.stop_early.rpartition(":")
            if not (colon and metric and patience.isdecimal() and int(patience)):
                raise ValueError(
                    f"stop_early is {self.stop_early!r}; expected METRIC:PATIENCE, as "
                    "valid/loss:10 for 10 evaluations"
                )
            _check_metric("stop_early", self.stop_early, metric, setup)
            result.append(callbacks.EarlyStopping(metric, int(patience)))
        if self.time_limit is not None:
            if not self.time_limit > 0:
                raise ValueError(f"time_limit is {self.time_limit}; expected a positive number")
            result.append(callbacks.TimeLimit(self.time_limit))
        return result


def _log(text: str) -> Callback:
    kind, colon, target = text.partition(":")
    if kind not in _LOGS or not (colon and target):
        expected = ", ".join(f"{name}:{what}" for name, (what, _) in _LOGS.items())
        raise ValueError(f"log has {text!r}; expected {expected}")
    try:
        return _LOGS[kind][1](target)
    except ImportError as error:
        need = f"needs {error.name}; pip install 'fedjax_sim[tracking]'"
        raise ImportError(f"log has {text!r}, which {need}") from error


def _check_metric(option: str, value: str, metric: str, setup: Setup) -> None:
    """Refuses a metric that the evaluation does not have, before anything is compiled."""
    names = _metrics(setup)
    if names and metric not in names:
        raise ValueError(
            f"{option} is {value!r}; expected one of {', '.join(names)}"
            f"{did_you_mean(metric, names)}"
        )


def _metrics(setup: Setup) -> list[str]:
    """Returns the names of the evaluation's scalar metrics; none if they need a run's state."""
    if setup.eval_fn is None or takes_state(setup.eval_fn):
        return []
    params: Any = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], setup.params))
    shapes = jax.eval_shape(setup.eval_fn, params)
    return [name for name, value in shapes.items() if value.shape == ()]
