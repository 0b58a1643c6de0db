"""Callbacks of ``fedjax-sim run``: logs, best models, early stopping and a time limit."""

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax

from fedjax_sim.checks import check_known, install_command
from fedjax_sim.engine import direction, takes_state
from fedjax_sim.runs import Callback, callbacks, metric_shapes, names_of_numbers
from fedjax_sim.studies.setups import Count, Positive, group
from fedjax_sim.types import FedAlgorithm, Setup


@group
class Watching:
    """Options of a run that do not change its results up to the round in which it ends."""

    log_csv: pathlib.Path | None = None
    """File for every evaluation; default: none."""
    log_tensorboard: pathlib.Path | None = None
    """Directory of TensorBoard for every evaluation; default: none."""
    log_wandb: str | None = None
    """Project of Weights & Biases for every evaluation; default: none."""
    log_mlflow: str | None = None
    """Experiment of MLflow for every evaluation; default: none."""
    keep_best: str | None = None
    """Metric, e.g. valid/accuracy, by which the best model of every seed is kept (best.npz);
    default: none."""
    stop_early: str | None = None
    """Metric, e.g. valid/loss: ends an algorithm when its mean over the seeds has not improved for
    --patience evaluations, or a seed where seeds run one after the other (--partition-per-seed, a
    study's own setup); default: none."""
    patience: Count = 10
    """With --stop-early: evaluations without an improvement."""
    mode: Literal["auto", "max", "min"] = "auto"
    """Better values of --keep-best and --stop-early: larger (max) or smaller (min); auto: as the
    metric's name says."""
    time_limit: Positive | None = None
    """Seconds after which the comparison is interrupted; the same command continues; default:
    none."""

    def callbacks(self, setup: Setup, algorithm: FedAlgorithm | None = None) -> list[Callback]:
        """Returns the callbacks for a setup of n seeds."""
        result = self._logs()
        needed = self.keep_best is not None or self.stop_early is not None
        names = _metrics(setup, algorithm) if needed else []
        if self.keep_best is not None:
            mode = self._mode("keep_best", self.keep_best, names)
            result.append(callbacks.BestModel(self.keep_best, mode=mode))
        if self.stop_early is not None:
            mode = self._mode("stop_early", self.stop_early, names)
            result.append(callbacks.EarlyStopping(self.stop_early, self.patience, mode=mode))
        if self.time_limit is not None:
            result.append(callbacks.TimeLimit(self.time_limit))
        return result

    def _logs(self) -> list[Callback]:
        kinds = {
            "log_csv": callbacks.CsvLog,
            "log_tensorboard": callbacks.TensorBoard,
            "log_wandb": callbacks.WandB,
            "log_mlflow": callbacks.MLflow,
        }
        result: list[Callback] = []
        for name, kind in kinds.items():
            target = getattr(self, name)
            if target is None:
                continue
            try:
                result.append(kind(str(target)))
            except ImportError as error:
                need = f"needs {error.name}; {install_command('tracking')}"
                raise ImportError(f"{name} is '{target}', which {need}") from error
        return result

    def _mode(self, option: str, metric: str, names: list[str]) -> Literal["max", "min"]:
        """Returns the better direction of a metric.

        Refuses a metric that the evaluation does not have, before anything is compiled.
        """
        if names:
            check_known(names, **{option: metric})
        mode = direction(metric) if self.mode == "auto" else self.mode
        if mode is None:
            raise ValueError(
                f"{option} is {metric!r}; expected --mode min or --mode max with it, since the "
                "name does not say whether smaller or larger values are better"
            )
        return mode


@contextlib.contextmanager
def closing(watching: Sequence[Callback]) -> Iterator[list[str]]:
    """Context after which the logs are whole, and say how the runs have ended.

    Its value takes "finished"; without it an error counts as "failed", anything else as
    "interrupted".
    """
    ended = list[str]()
    try:
        yield ended
    except Exception:
        ended.append("failed")
        raise
    finally:
        for log in watching:
            if (close := getattr(log, "close", None)) is not None:
                close(ended[-1] if ended else "interrupted")


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
    return names_of_numbers(setup.eval_fn, shapes)
