"""Callbacks of a sweep: they receive the evaluations of runs that have finished."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.runs.events import Callback, Event, act, check_callbacks, poll
from fedjax_sim.runs.history import measured
from fedjax_sim.runs.sweeps.result import SweepRun
from fedjax_sim.runs.sweeps.trial import RunIdentity


def check_watchers(callbacks: Sequence[Callback]) -> None:
    """Refuses callbacks that a sweep cannot call, or cannot obey.

    Raises:
        ValueError: naming the callback.
    """
    check_callbacks(callbacks)
    for callback in callbacks:
        if getattr(callback, "needs_models", False):
            raise ValueError(
                f"callbacks has {type(callback).__name__}, which needs the model of every "
                "evaluation; expected others, since a sweep has the final models only: run the "
                "best configuration again by fs.simulate with this callback"
            )
        if hasattr(callback, "diverged"):
            raise ValueError(
                f"callbacks has {type(callback).__name__}, which answers divergences; expected "
                "others, since a sweep records the round in which a run diverges"
            )


class Watchers:
    """The callbacks of one sweep; events have no folder, since runs have none of their own."""

    def __init__(self, callbacks: Sequence[Callback]):
        self._callbacks = callbacks
        self._listens = any(map(callable, callbacks))
        self._interrupted = False

    def interrupted(self) -> bool:
        """Returns True once a callback has ended the sweep."""
        self._interrupted |= poll(self._callbacks) == "interrupt"
        return self._interrupted

    def runs(self, runs: Collection[tuple[RunIdentity, SweepRun]]) -> None:
        """Passes on every evaluation of runs; the last one has the model, if the sweep keeps it."""
        for own, run in runs if self._listens else ():
            identity = {"config": dict(run.configuration), **own._asdict()}
            rounds = np.asarray(run.history.round).tolist()
            for i, done in enumerate(rounds):
                values = {
                    name: np.asarray(values)[i : i + 1]
                    for name, values in run.history.metrics.items()
                    if np.ndim(values) == 1
                }
                metrics, skipped = measured(values)
                last = done == rounds[-1] and run.model is not None
                params = jax.tree.map(lambda x: x[None], run.model) if last else None
                name = name_of(run.configuration)
                event = Event(
                    name, [run.seed], done, rounds[-1], metrics, None, False, params, skipped,
                    identity,
                )  # fmt: skip
                self._interrupted |= act(self._callbacks, event) == "interrupt"


def name_of(configuration: Mapping[str, Any]) -> str:
    """Returns a configuration in one line.

    Example:
        >>> name_of({"algorithm": "fedavg", "lr": 0.1})
        'algorithm=fedavg, lr=0.1'
    """
    return ", ".join(f"{name}={value}" for name, value in configuration.items())
