"""Rounds of a run, segment by segment, with examples on the devices or on the host."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import Array

from fedjax_sim.engine import History, RunState, Span, offload
from fedjax_sim.runs.programs import Programs
from fedjax_sim.runs.storage.functions import sealed
from fedjax_sim.types import EvalFn, Params, PyTree, Task, Timeline

Put = Callable[[PyTree], PyTree]


class Resident:
    """Runs rounds of a task on one device or divided over several.

    Args:
        timeline: rounds of the run from round ``before`` on.
        most: rounds of the longest segment.
    """

    def __init__(
        self,
        programs: Programs,
        task: Task,
        eval_fn: EvalFn | None,
        timeline: Timeline,
        key: Array,
        put: Put,
        *,
        most: int,
        before: int = 0,
    ):
        self._programs, self._timeline, self._put = programs, timeline, put
        self._most, self._before = most, before
        self._key = put(key)
        self._constant: tuple[Any, Any] = sealed((task, put(eval_fn)), programs.traces)
        self._copied: set[int] = set()
        self.context = contextlib.nullcontext()  # in which rounds run

    def __call__(self, first: int, last: int, state: RunState) -> tuple[RunState, History]:
        part, span = _part(self._timeline, first, last, self._most, self._before)
        part, span = self._put((part, span))
        task, eval_fn = self._constant
        program = self._programs.compiled(task, eval_fn, part, state, self._key, span)
        if id(program.function) not in self._copied:
            # Copied to all devices once, not in every segment.
            self._constant = jax.device_put(self._constant, tuple(program.shardings[:2]))
            self._copied.add(id(program.function))
        state, history = program(*self._constant, part, state, self._key, span)
        return state, self._cut(history, first, last)

    def end(self, last: int) -> int:
        """Returns the round that ends a segment which shall end after round ``last``."""
        return last

    def _cut(self, history: History, first: int, last: int) -> History:
        number = self._programs.evaluations(
            self._before + first, self._before + last, self._before + self._timeline.num_rounds
        )
        return _cut(history, number, last - first, self._key.ndim)


def _part(
    timeline: Timeline, first: int, last: int, most: int, before: int = 0
) -> tuple[Timeline, Span]:
    """Returns a part of a timeline that has the shape of all parts, and the rounds to run."""
    start = max(min(first, timeline.num_rounds - most), 0)
    numbers = first - start, last - first, before + first, before + timeline.num_rounds
    return timeline[start : start + most], Span(*map(np.int32, numbers))


def _cut(history: History, evaluations: int, rounds: int, axis: int) -> History:
    """Returns the entries of a history that have a meaning, on the host."""
    kept = (slice(None),) * axis
    history = jax.tree.map(np.asarray, history)
    round, metrics = jax.tree.map(
        lambda x: x[*kept, :evaluations], (history.round, history.metrics)
    )
    return History(round, metrics, jax.tree.map(lambda x: x[*kept, :rounds], history.probes))


class Streamed:
    """Runs rounds of a task on the host, load by load."""

    def __init__(
        self,
        programs: Programs,
        task: Task,
        eval_fn: EvalFn | None,
        timeline: Timeline,
        key: Array,
        plan: offload.Plan,
        params: Params,
    ):
        self._programs, self._eval_fn, self._timeline = programs, eval_fn, timeline
        self._key, self._feed = key, offload.Feed(task, timeline, plan, params)
        self._where: offload.OnHost = task.placement
        self._plan = plan
        self.context = self._feed  # in which rounds run

    def __call__(self, first: int, last: int, state: RunState) -> tuple[RunState, History]:
        parts = []
        total = self._timeline.num_rounds
        table, axis = state.clients, self._key.ndim
        for load, ids, task in self._feed.loads(first, last):
            if self._where.states:
                rows = offload.send(table, ids, self._plan.clients, axis)
                data: Any = task.oracle  # a Partial of the load's examples
                present = offload.PresentStates(data.args[0].ids)
                state, task = (
                    state._replace(clients=rows),
                    dataclasses.replace(task, placement=present),
                )
            part, span = _part(self._timeline, load.first, load.last, self._plan.length)
            task, eval_fn = sealed((task, self._eval_fn), self._programs.traces)
            program = self._programs.compiled(task, eval_fn, part, state, self._key, span)
            state, history = program(task, eval_fn, part, state, self._key, span)
            self._feed.started(history)
            if self._where.states:
                table = offload.receive(table, ids, state.clients, axis)
            parts.append((load, history))
        if self._where.states:
            state = state._replace(clients=table)
        cut = []
        for load, history in parts:
            number = self._programs.evaluations(load.first, load.last, total)
            cut.append(_cut(history, number, load.last - load.first, axis))
        return state, jax.tree.map(lambda *x: np.concatenate(x, axis), *cut)

    def end(self, last: int) -> int:
        """Returns the round that ends a segment which shall end after round ``last``."""
        return next(load.last for load in self._plan.loads if load.last >= last)
