"""Callbacks: early stopping, best models, time limits, logs, and what follows a divergence.

A callback is a function of an :class:`~fedjax_sim.runs.events.Event` that returns None,
"stop" (ends this run) or "interrupt" (ends everything, as Ctrl-C), or an object with some of the
methods that :mod:`fedjax_sim.runs.events` lists.  So any function is one::

    fs.compare(algorithms, setup, keys, callbacks=[lambda event: print(event.round)])
"""

from fedjax_sim.runs.callbacks.best_model import BestModel
from fedjax_sim.runs.callbacks.early_stopping import EarlyStopping
from fedjax_sim.runs.callbacks.log_csv import CsvLog
from fedjax_sim.runs.callbacks.time_limit import TimeLimit
from fedjax_sim.runs.callbacks.trackers import MLflow, TensorBoard, WandB
from fedjax_sim.runs.events import Action, Callback, Diverged, Divergence, DivergenceError, Event

__all__ = [
    "Action",
    "BestModel",
    "Callback",
    "CsvLog",
    "Diverged",
    "Divergence",
    "DivergenceError",
    "EarlyStopping",
    "Event",
    "MLflow",
    "TensorBoard",
    "TimeLimit",
    "WandB",
]
