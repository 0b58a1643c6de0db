"""Callbacks of a run: functions that receive every evaluation and may end the run."""

import math
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import numpy as np

from fedjax_sim.engine import History, RunState
from fedjax_sim.simulation.history import Clock, Entry, complete, measured
from fedjax_sim.types import PyTree

# "stop" ends this run; "interrupt" ends everything, as Ctrl-C does, so that a later call goes on.
Action: TypeAlias = Literal["stop", "interrupt"] | None
Callback: TypeAlias = Callable[["Event"], Action]


class Event(NamedTuple):
    """Argument of a callback: one evaluation of a run with n seeds.

    When a run is resumed, callbacks first receive the evaluations of earlier calls, as ``replayed``
    events.  Metrics of :func:`fedjax_sim.evaluation.at_rounds` are in the events of their rounds
    only; :meth:`measured` asks for one.

    Example:
        >>> metrics = {"loss": np.array([1, 3])}  # of two seeds
        >>> event = Event("FedAvg", ["0", "1"], 10, 50, metrics, None, False, None)
        >>> stop_early = lambda event: "stop" if event.mean("loss") < 2.5 else None  # a callback
        >>> stop_early(event)
        'stop'
    """

    name: str  # of the algorithm in a comparison, else empty
    seeds: Sequence[str]
    round: int
    num_rounds: int
    metrics: Mapping[str, np.ndarray]  # [n] of this round, with "time" and "local_steps"
    folder: pathlib.Path | None  # of the run
    replayed: bool
    params: PyTree | None  # models [n, ...] after the last evaluation of a segment, else None
    skipped: Collection[str] = ()  # metrics that other rounds have; unknown in replayed events
    # What makes two calls the same run, as in run.json, for callbacks with needs_identity = True.
    identity: Mapping[str, Any] | None = None

    def measured(self, metric: str) -> bool:
        """Returns False for a metric that only other rounds have.

        Raises:
            ValueError: there is no such metric.

        Example:
            >>> event = Event("", ["0"], 1, 9, {}, None, False, None, skipped=["slow/loss"])
            >>> event.measured("slow/loss")
            False
        """
        if metric not in (*self.metrics, *self.skipped) and not self.replayed:
            known = ", ".join([*self.metrics, *sorted(self.skipped)])
            raise ValueError(f"metric is {metric!r}; expected one of {known}")
        return metric in self.metrics

    def mean(self, metric: str) -> float:
        """Returns the mean of a metric over the seeds, NaN if only other rounds have it.

        Raises:
            ValueError: there is no such metric.

        Example:
            >>> Event("", ["0", "1"], 1, 9, {"loss": np.array([1, 3])}, None, False, None).mean(
            ...     "loss")
            2.0
        """
        return float(self.metrics[metric].mean()) if self.measured(metric) else math.nan


class Listeners:
    """The callbacks of one run."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        seeds: Sequence[str],
        num_rounds: int,
        folder: pathlib.Path | None,
        identity: Mapping[str, Any] | None = None,
    ):
        check_callbacks(callbacks)
        self._callbacks, self._folder, self._identity = callbacks, folder, identity
        self._seeds, self._num_rounds = seeds, num_rounds

    def replay(self, rows: Iterable[Entry], until: int) -> Action:
        """Passes on the evaluations of earlier calls from the history; returns the action."""
        action: Action = None
        for done, metrics in _evaluations(rows, until, self._seeds) if self._callbacks else ():
            action = self._pass_on(done, metrics, replayed=True) or action
        return action

    def new(self, history: History, clock: Clock, state: RunState) -> Action:
        """Passes on the evaluations of a segment; arrays have a leading axis of seeds."""
        action: Action = None
        if not self._callbacks:
            return action
        history = complete(history._replace(probes={}), clock)
        rounds = np.asarray(history.round)[0]
        params = state.server.params
        if np.ndim(state.diverged_at) == 0:
            params = jax.tree.map(lambda x: x[None], params)
        for i, done in enumerate(rounds):
            values = {k: np.asarray(v)[:, i] for k, v in history.metrics.items() if v.ndim == 2}
            metrics, skipped = measured(values)
            last = params if i == len(rounds) - 1 else None
            action = self._pass_on(int(done), metrics, params=last, skipped=skipped) or action
        return action

    def poll(self) -> Action:
        """Asks the callbacks with a method ``poll`` for an action, after every segment."""
        polls = [(callback, getattr(callback, "poll", None)) for callback in self._callbacks]
        return _strongest({_checked(callback, poll()) for callback, poll in polls if poll})

    def _pass_on(
        self,
        done: int,
        metrics: Mapping[str, np.ndarray],
        *,
        replayed: bool = False,
        params: PyTree | None = None,
        skipped: Collection[str] = (),
    ) -> Action:
        event = Event(
            "",
            self._seeds,
            done,
            self._num_rounds,
            metrics,
            self._folder,
            replayed,
            params,
            skipped,
            self._identity,
        )
        return act(self._callbacks, event)


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuses callbacks that cannot be called.

    Raises:
        ValueError: naming the callback.
    """
    for callback in callbacks:
        if not callable(callback):
            raise ValueError(f"callbacks has {callback!r}; expected functions of an Event")


def every_evaluation(callbacks: Sequence[Callback]) -> bool:
    """Returns True if a callback needs the model of every evaluation, or ends the run after one.

    Example:
        >>> import fedjax_sim as fs
        >>> every_evaluation([print, fs.callbacks.EarlyStopping("loss", patience=3)])
        True
    """
    return any(getattr(callback, "every_evaluation", False) for callback in callbacks)


def need_identity(callbacks: Iterable[Callback]) -> bool:
    """Returns True if a callback asks for the run's identity, which takes digests of its data.

    Example:
        >>> need_identity([print])
        False
    """
    return any(getattr(callback, "needs_identity", False) for callback in callbacks)


def act(callbacks: Sequence[Callback], event: Event) -> Action:
    """Calls all callbacks; returns the strongest of their actions.

    Raises:
        ValueError: a callback returned something else.
    """
    return _strongest({_checked(callback, callback(event)) for callback in callbacks})


def _strongest(actions: Collection[Action]) -> Action:
    return "interrupt" if "interrupt" in actions else "stop" if "stop" in actions else None


def _checked(callback: Callback, action: Action) -> Action:
    if action not in (None, "stop", "interrupt"):
        name = getattr(callback, "__qualname__", type(callback).__qualname__)
        raise ValueError(
            f"callbacks has {name}, which returned {action!r}; expected None, 'stop' or 'interrupt'"
        )
    return action


def _evaluations(
    rows: Iterable[Entry], until: int, seeds: Iterable[str]
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields round and metrics of the evaluations in a history."""
    order = {seed: i for i, seed in enumerate(seeds)}
    table: dict[int, dict[str, np.ndarray]] = {}
    for seed, done, metric, value in rows:
        if done <= until:
            values = table.setdefault(done, {})
            values.setdefault(metric, np.full(len(order), np.nan))[order[seed]] = value
    for done in sorted(table):
        if "time" in table[done]:  # not a round that has only probes
            yield done, table[done]
