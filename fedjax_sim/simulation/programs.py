"""The rounds of a segment, compiled and run, with examples at hand or loaded as they are needed."""

import dataclasses
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jax import Array

from fedjax_sim.engine import History, Probes, RunState, advance, init
from fedjax_sim.execution import offload
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.types import EvalFn, FedAlgorithm, Params, PyTree, Setup, Task, Timeline

Put = Callable[[PyTree], PyTree]


def programs(
    algorithm: FedAlgorithm,
    setup: Setup,
    *,
    batched: bool,
    execution: Execution | None,
    probes: Probes,
) -> tuple[Callable, Callable]:
    """``initial(params, timeline)`` and ``segment(task, eval_fn, timeline, state, key)`` to be
    jitted; of several runs together if ``batched``."""
    in_timeline = 0 if setup.timeline.clients.ndim == 3 else None

    def initial(params: Params, timeline: Timeline) -> RunState:
        return init(algorithm, dataclasses.replace(setup, timeline=timeline, params=params))

    def segment(task, eval_fn, timeline, state, key) -> tuple[RunState, History]:
        part = dataclasses.replace(
            setup, task=task, timeline=timeline, params=None, eval_fn=eval_fn
        )
        return advance(algorithm, part, state, key, execution=execution, probes=probes)

    if batched:
        initial = jax.vmap(initial, (0, in_timeline))
        segment = jax.vmap(segment, (None, None, in_timeline, 0, 0))
    return initial, segment


def stride(rounds: int, eval_every: int, evals_per_segment: int | None = None) -> int:
    """Rounds of a dispatch: by default a twentieth of the run, from evaluation to evaluation."""
    return eval_every * (evals_per_segment or max(-(-rounds // eval_every) // 20, 1))


class Compiled:
    """A jitted ``segment(task, eval_fn, timeline, state, key)``, compiled once per shape, timed."""

    def __init__(self, rounds: Callable, put: Put):
        def segment(*arguments: Any) -> tuple[RunState, History]:
            state, history = rounds(*arguments)
            return state, put(history)  # what clients' devices recorded, for the first process

        # The state is donated: client states are updated in place.
        self._jit = jax.jit(segment, donate_argnums=3)
        self._programs: dict[tuple[int, bool], Any] = {}
        self.seconds = 0.0

    def program(self, task, eval_fn, part: Timeline, state: RunState, key: Array) -> Any:
        """For parts of this length, with or without evaluations."""
        kind = part.num_rounds, eval_fn is None
        if kind not in self._programs:
            began = time.perf_counter()
            self._programs[kind] = self._jit.lower(task, eval_fn, part, state, key).compile()
            self.seconds += time.perf_counter() - began
        return self._programs[kind]


class Resident:
    """Runs rounds of a task that is on the device, or spread over several."""

    def __init__(
        self,
        compiled: Compiled,
        task: Task,
        eval_fn: EvalFn | None,
        timeline: Timeline,
        key: Array,
        put: Put,
    ):
        self._compiled, self._timeline, self._put = compiled, timeline, put
        self._key = put(key)
        self._constant: tuple[Any, Any] = task, put(eval_fn)
        self._copied: set[int] = set()

    def __enter__(self) -> "Resident":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, first: int, last: int, state: RunState) -> tuple[RunState, History]:
        part = self._put(self._timeline[first:last])
        task, eval_fn = self._constant
        program = self._compiled.program(task, eval_fn, part, state, self._key)
        if id(program) not in self._copied:
            # On several devices, copied to them once and not in every segment.
            self._constant = jax.device_put(self._constant, tuple(program.input_shardings[0][:2]))
            self._copied.add(id(program))
        return program(*self._constant, part, state, self._key)


class Streamed:
    """Runs rounds of a task on the host: load by load, the next one on its way."""

    def __init__(
        self,
        compiled: Compiled,
        task: Task,
        eval_fn: EvalFn | None,
        timeline: Timeline,
        key: Array,
        plan: offload.Plan,
    ):
        self._compiled, self._eval_fn, self._timeline = compiled, eval_fn, timeline
        self._key, self._feed = key, offload.Feed(task, timeline, plan)
        self._where: offload.OnHost = task.placement
        self._width = plan.clients

    def __enter__(self) -> "Streamed":
        self._feed.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._feed.__exit__(kind, error, trace)

    def __call__(self, first: int, last: int, state: RunState) -> tuple[RunState, History]:
        evaluated, probed = [], []
        table, axis = state.clients, self._key.ndim
        for load, ids, task in self._feed.loads(first, last):
            if self._where.states:
                here = offload.send(table, ids, self._width, axis)
                data: Any = task.oracle  # a Partial of what is at hand
                present = offload.PresentStates(data.args[0].ids)
                state, task = (
                    state._replace(clients=here),
                    dataclasses.replace(task, placement=present),
                )
            eval_fn = self._eval_fn if load.evaluate else None
            part = self._timeline[load.first : load.last]
            program = self._compiled.program(task, eval_fn, part, state, self._key)
            state, history = program(task, eval_fn, part, state, self._key)
            self._feed.started(history)
            if self._where.states:
                offload.receive(table, ids, state.clients, axis)
            probed.append(history.probes)
            if load.evaluate:
                evaluated.append(history)

        def joined(parts: list) -> PyTree:
            return jax.tree.map(lambda *x: np.concatenate([np.asarray(y) for y in x], axis), *parts)

        if self._where.states:
            state = state._replace(clients=table)
        history = joined([part._replace(probes={}) for part in evaluated])
        return state, history._replace(probes=joined(probed))
