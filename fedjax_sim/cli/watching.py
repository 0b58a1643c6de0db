"""Callbacks of ``fedjax-sim run``: logs, best models, early stopping and a time limit."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from fedjax_sim.checks import did_you_mean
from fedjax_sim.engine import direction, is_mark, takes_state
from fedjax_sim.runs import Callback, Mode, callbacks, metric_shapes
from fedjax_sim.types import FedAlgorithm, Setup

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

    def callbacks(self, setup: Setup, algorithm: FedAlgorithm | None = None) -> list[Callback]:
        """Returns the callbacks for a setup of n seeds.

        Args:
            setup: of a comparison.
            algorithm: one of the comparison's; without one, the names of metrics that depend on the
                state of a run are not checked.

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
        needed = self.keep_best is not None or self.stop_early is not None
        names = _metrics(setup, algorithm) if needed else []
        if self.keep_best is not None:
            metric, mode = _with_mode("keep_best", self.keep_best, self.keep_best, names)
            result.append(callbacks.BestModel(metric, mode=mode))
        if self.stop_early is not None:
            text = self.stop_early.removesuffix(":min").removesuffix(":max")
            metric, colon, patience = text.rpartition(":")
            if not (colon and metric and patience.isdecimal() and int(patience)):
                raise ValueError(
                    f"stop_early is {self.stop_early!r}; expected METRIC:PATIENCE, as "
                    "valid/loss:10 for 10 evaluations"
                )
            metric += self.stop_early.removeprefix(text)
            metric, mode = _with_mode("stop_early", self.stop_early, metric, names)
            result.append(callbacks.EarlyStopping(metric, int(patience), mode=mode))
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


def _with_mode(option: str, value: str, text: str, names: list[str]) -> tuple[str, Mode]:
    """Returns the metric and the mode of METRIC[:MODE].

    Refuses a metric that the evaluation does not have, before anything is compiled, and one whose
    name does not say whether smaller or larger values are better, without a mode.
    """
    metric, _, word = text.rpartition(":")
    modes: dict[str, Mode] = {"min": "min", "max": "max"}
    mode = modes.get(word)
    metric = text if mode is None else metric
    if names and metric not in names:
        raise ValueError(
            f"{option} is {value!r}; expected one of {', '.join(names)}"
            f"{did_you_mean(metric, names)}"
        )
    if mode is None and direction(metric) is None:
        raise ValueError(
            f"{option} is {value!r}; expected {value}:min or {value}:max, since the name does not "
            "say whether smaller or larger values are better"
        )
    return metric, mode


def _metrics(setup: Setup, algorithm: FedAlgorithm | None) -> list[str]:
    """Returns the names of the evaluation's scalar metrics; none if they are not known."""
    if setup.eval_fn is None:
        return []
    if not takes_state(setup.eval_fn):
        params: Any = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], setup.params))
        shapes = jax.eval_shape(setup.eval_fn, params)
    elif algorithm is not None:
        shapes = metric_shapes(algorithm, setup)
    else:
        return []
    return [name for name, value in shapes.items() if value.shape == () and not is_mark(name)]
