"""Measurements behind a forecast: seconds of rounds and evaluations, operations of a step."""

import functools
import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.sharding import PartitionSpec

from fedjax_sim.engine import (
    WHOLE,
    RunState,
    Scorers,
    evaluate,
    evaluation_context,
    everywhere,
    first_state,
    inner_programs,
    is_mark,
    periods,
    program_bytes,
    takes_state,
)
from fedjax_sim.runs.programs import Given
from fedjax_sim.runs.storage.functions import sealed
from fedjax_sim.types import EvalFn, FedAlgorithm, Params, Same, Setup, Task, Timeline


def operations(function: Callable[..., Any], *arguments: Any) -> float:
    """Returns XLA's count before optimization, times the lengths of loops.

    XLA counts the body of a loop once.  Here it counts as often as it runs, if that is known before
    the run (``scan``, ``map``, ``fori_loop`` with concrete bounds); other loops count once.  Of
    branches the longest one counts.

    Example:
        >>> import jax.numpy as jnp
        >>> square = lambda x: jax.lax.scan(lambda y, _: (y @ x, None), x, length=5)[0]
        >>> round(operations(square, jnp.ones((10, 10))), -1)  # 5 products of 2 * 10^3
        10000.0
    """
    # A function of its own, since JAX keeps weak references, which NamedTuples do not have.
    program = jax.make_jaxpr(lambda *arguments: function(*arguments))(*arguments)
    return _once(program) + _repeated(program.jaxpr)


def _once(program: ClosedJaxpr) -> float:
    """Returns XLA's count, with the bodies of loops once."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.in_avals]
    analysis = jax.jit(jaxpr_as_fun(program)).lower(*shapes).cost_analysis()
    return max(float((analysis or {}).get("flops", 0.0)), 0.0)


def _repeated(program: Jaxpr) -> float:
    """Returns the operations of all runs of loop bodies but the first."""
    total = 0.0
    for eqn in program.eqns:
        if eqn.primitive.name == "scan":
            body = eqn.params["jaxpr"]
            once = _once(body)
            total += eqn.params["length"] * (once + _repeated(body.jaxpr)) - once
            continue
        inner = [
            _repeated(part.jaxpr if isinstance(part, ClosedJaxpr) else part)
            for part in inner_programs(eqn.params)
        ]
        total += max(inner, default=0.0) if eqn.primitive.name == "cond" else sum(inner)
    return total


_MOST = 3  # calls; the fastest counts
_SECONDS = 1.0  # after which no further call is measured


class Timed(NamedTuple):
    """Seconds to compile a program and to run it."""

    compile: float
    run: float


def shortest(
    call: Callable[[int], object],
    count: int = _MOST,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns the shortest time of a few calls ``call(0)``, ``call(1)``, ...: one if it is long."""
    seconds: list[float] = []
    while len(seconds) < min(count, _MOST) and sum(seconds) < _SECONDS:
        began = clock()
        call(len(seconds))
        seconds.append(round(clock() - began, 9))
    return min(seconds)


class Evaluations(NamedTuple):
    """Number of evaluations of a run: with and without the parts of :func:`at_rounds`."""

    whole: int
    partial: int


def count_evaluations(setup: Setup) -> Evaluations:
    """Returns the evaluations of a run; the last round always has one."""
    if setup.eval_fn is None:
        return Evaluations(0, 0)
    rounds = setup.timeline.num_rounds
    evaluated = {*range(setup.eval_every, rounds, setup.eval_every), rounds}
    every = periods(setup.eval_fn)
    due = sum(not every or any(t % period == 0 for period in every) for t in evaluated)
    return Evaluations(due, len(evaluated) - due)


def metric_shapes(algorithm: FedAlgorithm, setup: Setup) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a setup's metrics by name, without computing them.

    Raises:
        ValueError: an evaluation that does not fit the algorithm or the task.
    """
    batched = np.ndim(setup.timeline.clients) == 3

    def metrics(setup: Setup, key: Array) -> dict[str, Array]:
        params = jax.tree.map(lambda x: jnp.asarray(x)[0], setup.params)
        timeline = setup.timeline
        if batched:
            timeline = jax.tree.map(lambda x: x[0], timeline)
        state = first_state(algorithm, Setup(setup.task, timeline, params))
        context = evaluation_context(algorithm, setup.task, timeline, state, key)
        return jax.tree.map(jnp.asarray, evaluate(cast(EvalFn, setup.eval_fn), context))

    return jax.eval_shape(metrics, setup, jax.random.key(0))


def names_of_numbers(eval_fn: Any, shapes: Mapping[str, Any]) -> list[str]:
    """Returns the names of the metrics, and of the scores on the host, that are one number."""
    zeros = {name: np.zeros((1, *x.shape), x.dtype) for name, x in shapes.items()}
    metrics = Scorers(eval_fn)(zeros, (1,))
    return [name for name, x in metrics.items() if np.ndim(x) == 1 and not is_mark(name)]


class _Model(NamedTuple):
    """Server state of which an evaluator reads the model only."""

    params: Params


class EvaluationProgram(NamedTuple):
    """Program of one evaluation of an algorithm."""

    jitted: Given  # (task, eval_fn, part of a timeline, state, key) -> History
    compiled: Any  # None: the evaluation reads the server's model only
    seconds: float  # to compile
    num_bytes: int  # temporaries of the compiled program
    flops: float


def evaluation_program(
    jitted: Given, setup: Setup, state: RunState, key: Array
) -> EvaluationProgram:
    """Counts the operations of an evaluation, and compiles it if it takes more than the model."""
    eval_fn: Any = setup.eval_fn
    if eval_fn is None:
        return EvaluationProgram(jitted, None, 0.0, 0, 0.0)
    arguments = setup.task, eval_fn, setup.timeline, state, key
    flops = operations(jitted, *arguments)
    if not takes_state(eval_fn):
        return EvaluationProgram(jitted, None, 0.0, 0, flops)
    began = time.perf_counter()
    compiled = jitted.compile(*arguments).function
    seconds = time.perf_counter() - began
    return EvaluationProgram(
        jitted, compiled, seconds, program_bytes(compiled, arguments=False), flops
    )


def evaluation(
    of_run: EvaluationProgram,
    setup: Setup,
    state: RunState,
    key: Array,
    counts: Evaluations,
    *,
    batched: bool,
) -> Timed:
    """Measures a run's mean evaluation of a state.

    Equal evaluations of the server's model are measured once; those that take more, once per
    algorithm.
    """
    eval_fn = setup.eval_fn
    if eval_fn is None:
        return Timed(0.0, math.nan)
    if takes_state(eval_fn):
        program: Any = of_run.jitted.function
        data = sealed((setup.task, eval_fn, setup.timeline), program.key)
        fixed, last = (of_run.jitted.first, *data), (key,)
        owner: Hashable = Same(program)
    else:
        program = _evaluate_batch if batched else _evaluate
        fixed, last, owner = (eval_fn,), (), None
        state = RunState(state.round, _Model(state.server.params), (), (), state.round)
    leaves, structure = jax.tree.flatten((eval_fn, state))
    shapes = tuple((np.shape(x), str(jax.dtypes.result_type(x))) for x in leaves)
    name = structure, shapes, counts, batched, owner
    if name not in _measured:
        compiled, compile_seconds = of_run.compiled, of_run.seconds
        if compiled is None:
            began = time.perf_counter()
            compiled = program.lower(*fixed, state, *last).compile()
            compile_seconds = time.perf_counter() - began
        total = 0.0
        for done, count in enumerate(counts):  # round 0 is a multiple of every period
            if count:
                now = state._replace(round=jnp.full_like(state.round, done))
                arguments = jax.device_put((*fixed, now, *last), compiled.input_shardings[0])
                run = functools.partial(compiled, *arguments)
                total += count * shortest(lambda _, run=run: jax.block_until_ready(run()))
        _measured[name] = Timed(compile_seconds, total / sum(counts))
    return _measured[name]


_measured: dict[Hashable, Timed] = {}
_evaluate = jax.jit(evaluate)
_evaluate_batch = jax.jit(jax.vmap(evaluate, (None, 0)))


def step_flops(task: Task, timeline: Timeline, params: Params) -> float:
    """Returns the operations of one client's local gradient, by XLA's count before optimization.

    XLA counts the body of a loop once, so the program has no loop over steps.
    """

    def step(task: Task, params: Params) -> Params:
        start = (jnp.array(0, jnp.int32),) if task.resumable else ()
        key, client = jax.random.key(0), jnp.array(0, jnp.int32)
        return task.oracle(client, key, timeline.max_steps, *start).grad(params, 0)

    where = WHOLE if task.placement is None else task.placement
    program = where.spread(step, (PartitionSpec(),), PartitionSpec())
    params = everywhere(task)(jax.tree.map(jnp.asarray, params))
    analysis = jax.jit(program).lower(task, params).cost_analysis()
    return float((analysis or {}).get("flops", 0.0))
