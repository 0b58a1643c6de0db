"""Compiled functions of algorithms, kept for later calls."""

import pathlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.engine import (
    Execution,
    History,
    Probes,
    RunState,
    Span,
    advance_by,
    auto,
    counted,
    evaluate,
    evaluation_context,
    everywhere,
    first_state,
    has_kernels,
    is_ragged,
    offload,
    platform_of,
)
from fedjax_sim.runs.storage.functions import SealedJit, sealed
from fedjax_sim.runs.storage.run_functions import RunTraces, trace_run
from fedjax_sim.runs.storage.store import RunFolder
from fedjax_sim.types import EvalFn, FedAlgorithm, Params, Same, Setup, Task, Timeline, Weighting

Numbers = list[Any]  # leaves of a spec: Python's numbers, or arrays
Build = Callable[[Numbers], FedAlgorithm]
Ahead = Callable[[Executor], None]  # begins to compile in a pool of threads


class Parts(NamedTuple):
    """Functions that programs close over."""

    build: Build
    execution: Execution
    weighting: Weighting
    probes: Probes


class Functions:
    """Jitted functions of algorithms that differ by numbers, which are their first argument.

    They are compiled once per shape and placement of arguments.  The number of rounds is an
    argument, too, so segments of all lengths have the same bits.

    Attributes:
        traces: of the run's functions.
        parts: those of the latest call.  All calls had equal ones, but earlier objects may have
            been changed in place since.
    """

    def __init__(
        self, setup: Setup, parts: Parts, traces: RunTraces, *, batched: bool, in_turn: bool
    ):
        in_timeline = 0 if setup.timeline.clients.ndim == 3 else None
        put = everywhere(setup.task)
        eval_every = setup.eval_every  # no data in the closures
        self.traces, self.parts = traces, parts

        def initial(numbers: Numbers, task: Task, params: Params, timeline: Timeline) -> RunState:
            return first_state(self.parts.build(numbers), Setup(task, timeline, params))

        def segment(numbers, task, eval_fn, timeline, state, key, span) -> tuple[RunState, History]:
            build, execution, weighting, probes = self.parts
            part = Setup(task, timeline, None, eval_fn, eval_every, weighting)
            return advance_by(
                build(numbers), part, state, key, span, execution=execution, probes=probes
            )

        def one_after_the_other(
            numbers, task, eval_fn, timeline, state, key, span
        ) -> tuple[RunState, History]:
            def one(states: RunState, replica: tuple) -> tuple[RunState, History]:
                i, key, part = replica
                part = timeline if in_timeline is None else part
                state = tree.take(states, i)
                state, history = segment(numbers, task, eval_fn, part, state, key, span)
                # The carried states are updated in place; a map would copy all of them.
                return jax.tree.map(lambda x, y: x.at[i].set(y), states, state), history

            count = jnp.arange(key.shape[0])
            parts = None if in_timeline is None else timeline
            return jax.lax.scan(one, state, (count, key, parts))

        together = segment
        if batched:
            initial = jax.vmap(initial, (None, None, 0, in_timeline))
            together = jax.vmap(segment, (None, None, None, in_timeline, 0, 0, None))
        if in_turn:
            together = one_after_the_other

        def replicated(*arguments: Any) -> tuple[RunState, History]:
            state, history = together(*arguments)
            return state, put(history)  # recorded by the clients' devices, read by process 0

        def evaluation(
            numbers, task, eval_fn: EvalFn, timeline, state: RunState, key: Array
        ) -> History:
            algorithm = self.parts.build(numbers)
            context = evaluation_context(algorithm, task, timeline, state, key)
            metrics = evaluate(eval_fn, context) | counted(state)
            metrics = {k: jnp.asarray(v)[None] for k, v in metrics.items()}
            return put(History(state.round[None], metrics, {}))

        replicated.__name__ = "segment"
        self.eval_every = eval_every
        self.initial = SealedJit(initial, traces)
        if batched:
            evaluation = jax.vmap(evaluation, (None, None, None, in_timeline, 0, 0))
        self.evaluation = SealedJit(evaluation, traces)
        # The state is donated: client states are updated in place.
        self.segment = SealedJit(replicated, traces, donate_argnums=4)
        self._compiled: OrderedDict[Hashable, list[Any]] = OrderedDict()  # by arguments' shapes
        self.waited = 0.0  # seconds that a run waited for compilation
        self._compiling = 0.0  # seconds of compilation that no run has reported

    def compiled(self, *arguments: Any) -> Any:
        """Returns the segment's program for these arguments; task and evaluation are sealed."""
        leaves, structure = jax.tree.flatten(arguments)
        candidates = self._candidates(arguments)
        began, ahead = time.perf_counter(), any(isinstance(x, Future) for x in candidates)
        candidates[:] = [x.result() if isinstance(x, Future) else x for x in candidates]
        shardings = [structure.flatten_up_to(x.input_shardings[0]) for x in candidates]
        accepting = [_accepts(places, leaves) for places in shardings]
        known = candidates[accepting.index(True)] if True in accepting else None
        if known is None:
            candidates.append(self._compile(self.segment.lower(*arguments)))
        if known is None or ahead:
            self.waited += time.perf_counter() - began
        return candidates[-1] if known is None else known

    def compile_ahead(self, pool: Executor, *arguments: Any) -> None:
        """Begins to compile the segment's program for these shapes, unless there is one.

        It is lowered at once, since the precision of products and the like belong to this thread.
        """
        arguments = sealed(arguments, self.traces)
        candidates = self._candidates(arguments)
        if not candidates:
            candidates.append(pool.submit(self._compile, self.segment.lower(*arguments)))

    def take_seconds(self) -> float:
        """Returns the seconds of compilation since the last call, each of them once."""
        seconds, self._compiling = self._compiling, 0.0
        return seconds

    def _compile(self, lowered: Any) -> Any:
        began = time.perf_counter()
        compiled = lowered.compile()
        self._compiling += time.perf_counter() - began
        return compiled

    def _candidates(self, arguments: tuple) -> list[Any]:
        """Returns the programs for arguments of these shapes, those for other places included."""
        leaves, structure = jax.tree.flatten(arguments)
        shapes = structure, *map(_shape, leaves)
        candidates = self._compiled.setdefault(shapes, [])
        # An interrupted call cancels what it has not begun to compile.
        candidates[:] = [x for x in candidates if not (isinstance(x, Future) and _failed(x))]
        self._compiled.move_to_end(shapes)
        while len(self._compiled) > _MOST_SHAPES:
            self._compiled.popitem(last=False)
        return candidates


def _failed(compiling: Future) -> bool:
    return compiling.done() and (compiling.cancelled() or compiling.exception() is not None)


def _shape(leaf: Any) -> tuple[Any, ...]:
    aval = jax.typeof(leaf)
    return aval.shape, str(aval.dtype), getattr(aval, "weak_type", False)


class Given(NamedTuple):
    """A jitted or compiled function whose first argument is given."""

    function: Any
    first: Any

    def __call__(self, *arguments: Any) -> Any:
        return self.function(self.first, *arguments)

    def compile(self, *arguments: Any) -> "Given":
        """Returns the jitted function's program for these arguments, or their shapes."""
        return Given(self.function.lower(self.first, *arguments).compile(), self.first)

    def trace(self, *arguments: Any) -> Any:
        return self.function.trace(self.first, *arguments)

    @property
    def shardings(self) -> Any:
        """Shardings of a compiled program's other arguments."""
        return self.function.input_shardings[0][1:]


class Programs(NamedTuple):
    """Compiled functions of one algorithm.

    ``initial(task, params, timeline)`` returns the first state; ``segment(task, eval_fn, timeline,
    state, key, span)`` runs the rounds of ``span``, for several replicas together with several
    keys; ``evaluation(task, eval_fn, any part of the timeline, state, key)`` returns a history of
    one evaluation.
    """

    functions: Functions
    numbers: Numbers

    @property
    def initial(self) -> Given:
        return Given(self.functions.initial, self.numbers)

    @property
    def segment(self) -> Given:
        return Given(self.functions.segment, self.numbers)

    @property
    def evaluation(self) -> Given:
        return Given(self.functions.evaluation, self.numbers)

    @property
    def traces(self) -> RunTraces:
        return self.functions.traces

    def compiled(self, *arguments: Any) -> Given:
        """Returns the segment's program for these arguments; task and evaluation are sealed."""
        return Given(self.functions.compiled(self.numbers, *arguments), self.numbers)

    def compile_ahead(self, pool: Executor, *arguments: Any) -> None:
        """Begins to compile the segment's program for these shapes, unless there is one."""
        self.functions.compile_ahead(pool, self.numbers, *arguments)

    def evaluations(self, first: int, last: int, num_rounds: int) -> int:
        """Returns the number of evaluations after the rounds ``first + 1, ..., last`` of a run."""
        every = self.functions.eval_every
        extra = last == num_rounds and last % every != 0
        return last // every - first // every + extra


def programs_of(
    algorithm: FedAlgorithm,
    setup: Setup,
    *,
    batched: bool,
    execution: Execution | None,
    probes: Probes,
) -> Programs:
    """Returns the programs of an algorithm, those of an earlier call if it had equal arguments.

    Functions are compared by what they trace to (:func:`trace_run`), so a loop over seeds that
    calls ``fedavg(0.1)`` each time compiles once, and a value that was changed in place has another
    program.
    """
    task, timeline = setup.task, setup.timeline
    # The whole timeline decides, not a segment. Replicas that are batched with different timelines
    # would compute all steps of the longest visit, so on a CPU they run one after the other, and so
    # do replicas of models with convolutions.
    ragged, platform = is_ragged(timeline), platform_of((task, setup.params))
    in_turn = (
        batched
        and execution is None
        and task.placement is None
        and platform == "cpu"
        and (has_kernels(_one_model(setup.params)) or (ragged and timeline.clients.ndim == 3))
    )
    build, numbers = _numbers_apart(algorithm)
    traces = trace_run(
        build, setup, batched=batched, execution=execution, probes=probes, numbers=numbers
    )
    key = (
        traces, setup.eval_every, batched, timeline.clients.ndim, ragged, in_turn, platform,
        Same(task.placement),
    )  # fmt: skip
    chosen = execution or auto(
        num_clients=task.num_clients,
        ragged=ragged and (timeline.clients.ndim == 2 or in_turn),
        platform=platform,
    )
    parts = Parts(build, chosen, setup.weighting, probes)
    if key not in _functions:
        _functions[key] = Functions(setup, parts, traces, batched=batched, in_turn=in_turn)
    _functions[key].parts = parts
    _functions.move_to_end(key)
    while len(_functions) > _MOST_FUNCTIONS:
        _functions.popitem(last=False)
    return Programs(_functions[key], numbers)


def _numbers_apart(algorithm: FedAlgorithm) -> tuple[Build, Numbers]:
    """Returns how an algorithm is built from its numbers, and these.

    An algorithm without a spec has no numbers apart from its functions.
    """
    if algorithm.spec is None:
        return lambda numbers: algorithm, []
    numbers, structure = jax.tree.flatten(algorithm.spec)
    return lambda numbers: jax.tree.unflatten(structure, numbers).build(), numbers


def _one_model(params: Params) -> Params:
    """Returns the shapes of one of several models."""
    return jax.eval_shape(lambda stack: jax.tree.map(lambda x: jnp.asarray(x)[0], stack), params)


_functions: OrderedDict[Hashable, Functions] = OrderedDict()
# A program of a small model takes 18 MB.
_MOST_FUNCTIONS, _MOST_SHAPES = 16, 8


def _accepts(shardings: list[Any], leaves: list[Any]) -> bool:
    """Returns True if a program with these shardings takes arguments that are where they are.

    The state that a segment returns may be replicated over several devices, where the first one was
    on the default device and could go anywhere; both are arguments of one program.
    """
    return all(
        expected is None  # the program does not use it
        or not (isinstance(leaf, Array) and leaf.committed)  # it can be anywhere
        or leaf.sharding.is_equivalent_to(expected, leaf.ndim)
        for leaf, expected in zip(leaves, shardings, strict=True)
    )


def trace_first(
    compiled: Programs, setup: Setup, keys: Array, rounds: int, folder: pathlib.Path | None
) -> Ahead | None:
    """Traces the first segment of a run, so that its errors come before the run's folder exists.

    Compilation reuses what was traced.  Does nothing for a run that has a folder, and for examples
    on the host, whose segments are those of a load.

    Returns:
        A function that begins to compile the segment in a pool of threads.
    """
    task = setup.task
    begun = folder is not None and RunFolder(folder).exists
    if begun or isinstance(task.placement, offload.OnHost):
        return None
    timeline = jax.tree.map(np.asarray, setup.timeline)
    state = jax.eval_shape(compiled.initial, task, setup.params, timeline)
    span = Span(*map(np.int32, (0, 0, 0, 0)))  # Python's numbers have another type
    arguments = task, setup.eval_fn, timeline[:rounds], state, keys, span
    compiled.segment.trace(*arguments)
    if task.placement is not None:  # whose programs are for the devices of the values
        return None
    return lambda pool: compiled.compile_ahead(pool, *arguments)
