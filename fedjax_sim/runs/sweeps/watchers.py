"""Callbacks of a sweep: they receive the evaluations of runs that have finished."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.runs.events import Callback, Listeners, check_callbacks, poll
from fedjax_sim.runs.sweeps.result import SweepRun
from fedjax_sim.runs.sweeps.trial import RunDigests


def check_watchers(callbacks: Sequence[Callback]) -> None:
    """Refuses callbacks that a sweep cannot call, or cannot obey."""
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
        self._interrupted = False

    def interrupted(self) -> bool:
        """Returns True once a callback has ended the sweep."""
        self._interrupted |= poll(self._callbacks) == "interrupt"
        return self._interrupted

    def runs(self, runs: Collection[tuple[RunDigests, SweepRun]]) -> None:
        """Passes on every evaluation of runs; the last one has the model, if the sweep keeps it."""
        for own, run in runs:
            identity = {"config": dict(run.configuration), **own._asdict()}
            history, model = jax.tree.map(lambda x: np.asarray(x)[None], (run.history, run.model))
            name, last = name_of(run.configuration), int(history.round[0, -1])
            listeners = Listeners(self._callbacks, name, [run.seed], last, None, identity)
            self._interrupted |= listeners.new(history, model) == "interrupt"


def name_of(configuration: Mapping[str, Any]) -> str:
    """Returns a configuration in one line."""
    return ", ".join(f"{name}={value}" for name, value in configuration.items())
