"""``BestModel``: keeps the best model of every seed."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_sim.engine import distributed
from fedjax_sim.runs.callbacks.direction import Mode, Run, Runs, better, run_of, sign
from fedjax_sim.runs.events import Action, Event
from fedjax_sim.runs.storage.model_files import Models, joined, named_leaves
from fedjax_sim.runs.storage.store import RunFolder
from fedjax_sim.types import PyTree


class BestModel:
    """Keeps, for every seed, the finite model with the best value of a metric so far.

    With a directory the models are in ``best.npz`` beside the run's history, where
    ``fs.load(directory).models(which="best")`` reads them; without one they are in :attr:`models`.
    The run then has a segment per evaluation.  Rounds that do not measure the metric do not count,
    and neither do those of earlier calls without it, whose models are gone: a warning says so.
    A sweep refuses it, since a sweep has the final models only.

    Args:
        metric: name of the metric, best of a validation part.
        mode: "min" or "max"; may be left out for losses, errors, accuracies and the like, whose
            names say it.

    Raises:
        ValueError: another mode, or none where the name does not say it; during the run, an
            unknown metric, or a ``best.npz`` of another metric or mode.

    Example:
        >>> best = BestModel("accuracy")
        >>> for round, accuracy in enumerate([0.5, 0.9, 0.7], start=1):
        ...     metrics, params = {"accuracy": np.array([accuracy])}, np.array([10.0 * round])
        ...     best(Event("FedAvg", ["0"], round, 3, metrics, None, False, params))
        >>> best.models["FedAvg"].params, best.models["FedAvg"].rounds
        (array([20.]), [2])
    """

    every_evaluation = True
    needs_models = True

    def __init__(self, metric: str, *, mode: Mode = None) -> None:
        self._metric, self._sign = metric, sign(metric, mode)
        self._mode = "max" if self._sign > 0 else "min"
        self._best: dict[Run, Models] = {}
        self._missed: dict[Run, int] = {}  # last round of earlier calls, whose models are gone
        self._runs = Runs()

    @property
    def models(self) -> dict[str, Models]:
        """The best models by algorithm, also of seeds that run one after the other."""
        parts: dict[str, list[Models]] = {}
        for (name, _), models in self._best.items():
            parts.setdefault(name, []).append(models)
        return {name: joined(of_name) for name, of_name in parts.items()}

    def __call__(self, event: Event) -> Action:
        measured = event.measured(self._metric)  # refuses an unknown metric
        run = run_of(event)
        if self._runs.received(event):
            for other in [run for run in self._best if _replaces(event, run)]:
                del self._best[other]
            self._missed.pop(run, None)
        folder = None if event.folder is None else RunFolder(event.folder)
        if event.replayed and folder is not None and folder.has_models("best"):
            # A file of a later round, which a kill left, has the models that the run finds there.
            self._best.setdefault(run, self._read(folder))
        if event.replayed and measured and run not in self._best:
            self._missed[run] = event.round
        if event.replayed or event.params is None or not measured:
            return None
        if run in self._missed:
            warnings.warn(
                f"BestModel keeps the best of the rounds after {self._missed.pop(run)}: the run "
                "was without it before, and the models of those rounds are gone",
                stacklevel=2,
            )
        values = np.asarray(event.metrics[self._metric], float)
        models = self._merged(self._best.get(run), event, values)
        if models is not None:
            if run not in self._best and folder is not None and folder.has_models("best"):
                self._read(folder)  # refuses the file of another BestModel of the same run
            self._best[run] = models
            if folder is not None and distributed.is_first():
                folder.write_models(models, "best")
        return None

    def _read(self, folder: RunFolder) -> Models:
        models = folder.models("best")
        if self._metric not in models.metrics:
            raise ValueError(
                f"metric is {self._metric!r}; expected {', '.join(models.metrics)}, the metric of "
                f"best.npz in {folder.path}: delete that file to keep the best models of another "
                "metric"
            )
        if models.mode not in (None, self._mode):
            raise ValueError(
                f"mode is {self._mode!r}; expected {models.mode!r}, that of best.npz in "
                f"{folder.path}: delete that file to keep the best models of another mode"
            )
        return models

    def _merged(self, old: Models | None, event: Event, values: np.ndarray) -> Models | None:
        """Returns the best models with those of this evaluation; None if no seed improved."""
        kept = [np.nan] * len(values) if old is None else old.metrics[self._metric]
        improved = better(self._sign * values, self._sign * np.array(kept))
        if not improved.any():
            return None
        new = jax.tree.map(np.asarray, event.params)
        # The metric of a model of NaN may be the best one, such as a gap between clients of 0.
        improved &= _finite(new, len(values))
        if not improved.any():
            return None
        before = new if old is None else _with_structure(old.params, new)

        def chosen(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return np.where(improved.reshape(-1, *[1] * (x.ndim - 1)), x, y)

        rounds = [0] * len(values) if old is None else old.rounds
        metrics = {self._metric: np.where(improved, values, kept).tolist()}
        rounds = np.where(improved, event.round, rounds).tolist()
        params = jax.tree.map(chosen, new, before)
        return Models(params, list(event.seeds), rounds, metrics, self._mode)


def _finite(params: PyTree, count: int) -> np.ndarray:
    """Returns True for the seeds whose models are finite, ``[n]``."""
    leaves = [x for x in jax.tree.leaves(params) if jnp.issubdtype(x.dtype, jnp.inexact)]
    finite = [np.isfinite(x).reshape(count, -1).all(axis=1) for x in leaves]
    return np.logical_and.reduce(finite, axis=0, initial=True)


def _replaces(event: Event, run: Run) -> bool:
    """Returns True for a run that begins and has seeds of an earlier run of the same name."""
    name, seeds = run
    return name == event.name and not set(seeds).isdisjoint(event.seeds)


def _with_structure(params: PyTree, like: PyTree) -> PyTree:
    """Returns models that were read from a file in the containers that the run has."""
    arrays = named_leaves(params)
    leaves = [arrays[name] for name in named_leaves(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
