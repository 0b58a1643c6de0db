"""Callbacks: the one way to follow a run and to end it.

A callback is a function of an :class:`Event`, which is one evaluation, or an object with any of
these methods, or both (an object with ``__call__`` and some of them):

* ``begin(name)``: an algorithm, or the run, is about to begin;
* ``__call__(event) -> action``: one evaluation, an :class:`Event`;
* ``progress(progress)``: a segment has ended
  (:class:`~fedjax_sim.runs.result.Progress`,
  :class:`~fedjax_sim.runs.sweeps.sweep.SweepProgress`);
* ``diverged(divergence) -> action``: server states are no longer finite (:class:`Diverged`);
* ``poll() -> action``: asked after every segment, also without an evaluation;
* ``finished(name, simulation)``: a simulation has ended, or was interrupted;
* ``tried(tried)``: a configuration of a tuning has its score
  (:class:`~fedjax_sim.runs.sweeps.tuning.Tried`).

An action is None, "stop" (ends this run) or "interrupt" (ends everything, as Ctrl-C does, so that a
later call continues).  Attributes that are true ask for more: ``every_evaluation`` for a segment
per evaluation, whose event has the models; ``needs_models`` too, which a sweep refuses;
``needs_identity`` for ``event.identity``.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from fedjax_sim.checks import check_choice
from fedjax_sim.engine import History
from fedjax_sim.runs.history import Entry, as_written, measured
from fedjax_sim.types import PyTree, shown

Action: TypeAlias = Literal["stop", "interrupt"] | None
Callback: TypeAlias = Callable[["Event"], Action] | object  # an object with some of METHODS
METHODS = ("begin", "progress", "diverged", "poll", "finished", "tried")


class DivergenceError(FloatingPointError):
    """The server state of a run became infinite or NaN.

    Example:
        >>> str(DivergenceError("server state is not finite: replica 0 in round 3"))
        'server state is not finite: replica 0 in round 3'
    """


@shown
class Diverged(NamedTuple):
    """Argument of ``diverged``: server states of a run that are no longer finite.

    Example:
        >>> Diverged("FedAvg", ["0", "1"], np.array([0, 3]), DivergenceError()).all
        False
    """

    name: str  # of the algorithm in a comparison, else empty
    seeds: Sequence[str]
    rounds: np.ndarray  # [n] first round whose server state was not finite; 0: it is finite
    error: DivergenceError  # says which, and what was kept

    @property
    def all(self) -> bool:
        """True if all seeds have diverged."""
        return bool(self.rounds.all())


class Divergence:
    """Callback that says what follows when a server state is no longer finite.

    ``simulate`` raises and ``compare`` records, unless a callback has a method ``diverged``, as
    this one.  A run that diverged in an earlier call is not continued under "raise" and "stop".
    A sweep records divergences.

    Args:
        action: "raise" a DivergenceError, "stop" the run when all seeds have diverged, or "record"
            the round and continue.

    Raises:
        ValueError: another action.
        DivergenceError: during a run, with "raise".

    Example:
        >>> event = Diverged("FedAvg", ["0"], np.array([3]), DivergenceError())
        >>> Divergence("stop").diverged(event), Divergence("record").diverged(event)
        ('stop', None)
    """

    def __init__(self, action: Literal["raise", "stop", "record"]) -> None:
        check_choice(("raise", "stop", "record"), action=action)
        self._action = action

    def diverged(self, divergence: Diverged) -> Action:
        """Returns what the run does."""
        if self._action == "raise":
            raise divergence.error
        return "stop" if self._action == "stop" and divergence.all else None


@shown
class Event(NamedTuple):
    """Argument of a callback: one evaluation of a run with n seeds.

    When a run is resumed, callbacks first receive the evaluations of earlier calls, as ``replayed``
    events.  Metrics of :func:`fedjax_sim.engine.evaluation.at_rounds` are in the events of their
    rounds only; :meth:`measured` asks for one.

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
        if not self.measured(metric):
            return math.nan
        # A resumed run replays what is written, and has to take the same decisions.
        return float(as_written(self.metrics[metric]).mean())


class Listeners:
    """The callbacks of one run."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        name: str,
        seeds: Sequence[str],
        num_rounds: int,
        folder: pathlib.Path | None,
        identity: Mapping[str, Any] | None = None,
    ):
        self._callbacks, self._folder, self._identity = callbacks, folder, identity
        self._name, self._seeds, self._num_rounds = name, seeds, num_rounds
        self.listen = any(map(callable, callbacks))

    def replay(self, rows: Iterable[Entry], until: int) -> Action:
        """Passes on the evaluations of earlier calls from the history; returns the action."""
        evaluations = _evaluations(rows, until, self._seeds) if self.listen else ()
        return strongest(
            self._pass_on(done, metrics, replayed=True) for done, metrics in evaluations
        )

    def new(self, history: History, params: PyTree | None) -> Action:
        """Passes on the evaluations of a complete history; returns the action.

        Arrays have a leading axis of seeds.  The last evaluation is of the models ``params``.
        """

        def actions() -> Iterator[Action]:
            rounds = history.round[0]
            for i, done in enumerate(rounds):
                values = {k: np.asarray(v)[:, i] for k, v in history.metrics.items() if v.ndim == 2}
                metrics, skipped = measured(values)
                last = params if i == len(rounds) - 1 else None
                yield self._pass_on(int(done), metrics, params=last, skipped=skipped)

        return strongest(actions()) if self.listen else None

    def poll(self) -> Action:
        """Asks the callbacks with a method ``poll`` for an action, after every segment."""
        return poll(self._callbacks)

    def progress(self, progress: Any) -> None:
        """Passes on how far the run is."""
        notify(self._callbacks, "progress", progress)

    def diverged(self, rounds: np.ndarray, error: DivergenceError) -> Action:
        """Asks what follows from a divergence."""
        divergence = Diverged(self._name, self._seeds, rounds, error)
        return _asked(self._callbacks, "diverged", divergence)

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
            self._name,
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
        return _asked(self._callbacks, "__call__", event)


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Refuses callbacks that are neither functions nor have one of the methods."""
    for callback in callbacks:
        if not callable(callback) and not any(_method(callback, name) for name in METHODS):
            raise ValueError(
                f"callbacks has {callback!r}; expected functions of an Event, or objects with one "
                f"of the methods {', '.join(METHODS)}"
            )


def with_default(callbacks: Sequence[Callback], default: Divergence) -> list[Callback]:
    """Returns the callbacks with the call's own answer to a divergence, unless one has another."""
    check_callbacks(callbacks)
    answered = any(_method(callback, "diverged") for callback in callbacks)
    return [*callbacks] if answered else [*callbacks, default]


def notify(callbacks: Sequence[Callback], method: str, *arguments: Any) -> None:
    """Calls a method of the callbacks that have it."""
    for callback in callbacks:
        if function := _method(callback, method):
            function(*arguments)


def poll(callbacks: Sequence[Callback]) -> Action:
    """Asks the callbacks with a method ``poll``; returns the strongest action."""
    return _asked(callbacks, "poll")


def _method(callback: Callback, name: str) -> Callable[..., Any] | None:
    function = getattr(callback, name, None)
    return function if callable(function) else None


def _asked(callbacks: Sequence[Callback], method: str, *arguments: Any) -> Action:
    """Calls a method of all callbacks that have it; returns the strongest action."""
    asked = [(callback, _method(callback, method)) for callback in callbacks]
    return strongest(
        _checked(callback, function(*arguments)) for callback, function in asked if function
    )


def strongest(actions: Iterable[Action]) -> Action:
    """Returns the action of several that ends most: "interrupt", then "stop"."""
    taken = set(actions)
    return "interrupt" if "interrupt" in taken else "stop" if "stop" in taken else None


def every_evaluation(callbacks: Sequence[Callback]) -> bool:
    """Returns True if a callback needs the model of every evaluation, or ends the run after one."""
    return any(getattr(callback, "every_evaluation", False) for callback in callbacks)


def need_identity(callbacks: Iterable[Callback]) -> bool:
    """Returns True if a callback asks for the run's identity, which takes digests of its data."""
    return any(getattr(callback, "needs_identity", False) for callback in callbacks)


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
