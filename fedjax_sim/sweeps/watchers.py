"""Callbacks of a sweep: they receive the evaluations of runs that have finished."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_sim.simulation.events import Callback, Event, act
from fedjax_sim.simulation.history import measured
from fedjax_sim.sweeps.result import SweepRun


class Watchers:
    """The callbacks of one sweep; events have no folder, since runs have none of their own."""

    def __init__(self, callbacks: Sequence[Callback]):
        self._callbacks = callbacks
        self.interrupted = False

    def runs(self, runs: Collection[SweepRun]) -> None:
        """Passes on every evaluation of runs; the last one has the model, if the sweep keeps it."""
        for run in runs if self._callbacks else ():
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
                    name, [run.seed], done, rounds[-1], metrics, None, False, params, skipped
                )
                self.interrupted |= act(self._callbacks, event) == "interrupt"


def name_of(configuration: Mapping[str, Any]) -> str:
    """Returns a configuration in one line.

    Example:
        >>> name_of({"algorithm": "fedavg", "lr": 0.1})
        'algorithm=fedavg, lr=0.1'
    """
    return ", ".join(f"{name}={value}" for name, value in configuration.items())
