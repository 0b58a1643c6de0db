"""Metrics of events: their direction; the runs that events belong to."""

from typing import Literal, TypeAlias

import numpy as np

from fedjax_sim.engine import direction
from fedjax_sim.runs.events import Event

Mode: TypeAlias = Literal["min", "max"] | None
Run: TypeAlias = tuple[str, tuple[str, ...]]  # algorithm and seeds, among those of a comparison


def sign(metric: str, mode: Mode) -> int:
    """Returns 1 if larger values are better, by the mode or by the metric's name, else -1."""
    if mode not in (None, "min", "max"):
        raise ValueError(f"mode is {mode!r}; expected 'min', 'max' or None")
    if mode is None:
        mode = direction(metric)
        if mode is None:
            raise ValueError(
                f"mode is None; expected 'min' or 'max', since the name of metric {metric!r} does "
                "not say whether smaller or larger values are better"
            )
    return 1 if mode == "max" else -1


def run_of(event: Event) -> Run:
    """Returns the run of an event."""
    return event.name, tuple(event.seeds)


class Runs:
    """The runs whose events an object has received, perhaps several of one algorithm and seeds."""

    def __init__(self) -> None:
        self._last: dict[Run, Event] = {}

    def received(self, event: Event) -> bool:
        """Records an event; returns True for the first one of its run."""
        last = self._last.get(run_of(event))
        self._last[run_of(event)] = event._replace(metrics={}, params=None)
        if last is None or event.round <= last.round:
            return True
        return (event.num_rounds, event.folder) != (last.num_rounds, last.folder)


def better(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Returns True where a value is larger than an old one, or the old one is NaN."""
    return (new > old) | (np.isnan(old) & ~np.isnan(new))
