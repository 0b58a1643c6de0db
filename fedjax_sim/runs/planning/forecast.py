"""Forecast of a run: parameters, memory by part, arithmetic, time, epsilon."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_count, check_keys, shapes_of_one
from fedjax_sim.engine import (
    RunState,
    Span,
    as_chosen,
    called_part,
    check_run,
    everywhere,
    memory_limit,
    offload,
    program_bytes,
)
from fedjax_sim.runs.options import DEFAULT_OPTIONS, Options, check_options_type
from fedjax_sim.runs.pace import stride
from fedjax_sim.runs.planning import measuring
from fedjax_sim.runs.planning.needs import Forecast, Seconds
from fedjax_sim.runs.programs import programs_of
from fedjax_sim.runs.storage import outcome
from fedjax_sim.runs.storage.functions import sealed
from fedjax_sim.types import FedAlgorithm, Params, PyTree, Setup, Task, Timeline
from fedjax_sim.wrappers import Guarantee, epsilon, is_private

_ONE_ROUND = Span(*map(np.int32, (0, 1, 0, 1)))


def forecast(
    algorithm: FedAlgorithm,
    setup: Setup,
    keys: Array,
    *,
    measure: bool = True,
    delta: float | None = 1e-5,
    options: Options = DEFAULT_OPTIONS,
) -> Forecast:
    """Returns what a run needs and costs: memory, time and privacy; compiles and runs one round.

    It takes the time of one compilation, of one round and of one evaluation (up to three rounds if
    they are short); equal evaluations of several algorithms are measured once.

    Args:
        algorithm, setup, keys: as in :func:`~fedjax_sim.simulate`.
        measure: run the first rounds and an evaluation, if they fit.
        delta: of the guarantee of a private algorithm; None: without it.
        options: as in :func:`~fedjax_sim.simulate`; the forecast depends on ``execution``,
            ``probes`` and ``memory``.

    Raises:
        ValueError: contradictory arguments, or as :func:`~fedjax_sim.wrappers.privacy.epsilon`.  A
            run that does not fit is refused by :meth:`Forecast.check`, not here.
        ImportError: a private algorithm, and dp-accounting is not installed.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.ones((6, 5), np.float32)}, np.array([0, 2, 6]))
        >>> loss = lambda w, batch, key: (batch["x"] @ w - 2) ** 2
        >>> task = fs.empirical_task(loss, data, fs.epochs(1, batch_size=2))
        >>> timeline = fs.timelines.full(30, 2, task.num_steps)
        >>> setup = fs.Setup(task, timeline, np.zeros(5, np.float32))
        >>> needs = forecast(fs.scaffold(0.1), setup, jax.random.key(0))
        >>> needs.parameters, needs.client_bytes, needs.parts["client states"]
        (5, 20, 40)
    """
    check_keys(keys)
    batched = keys.ndim == 1
    replicas = keys.shape[0] if batched else 1
    check_options_type(options)
    execution, probes, memory = options.strategy, options.probes, options.memory
    count = replicas if batched else None
    check_run(algorithm, setup, count, execution=execution, eval_initial=options.eval_initial)
    privacy = None if delta is None else _privacy(algorithm, setup, delta)
    task, params, key = setup.task, setup.params, keys
    eval_fn, eval_every = setup.eval_fn, setup.eval_every
    timeline = jax.tree.map(np.asarray, setup.timeline)
    program = programs_of(
        algorithm,
        dataclasses.replace(setup, eval_every=1),
        batched=batched,
        execution=execution,
        probes=probes,
    )
    put = everywhere(task)
    first, params, key = put(timeline[:1]), put(params), put(key)
    shapes = shapes_of_one(setup.params, batched=batched)
    on_device = _on_device(task, timeline, eval_every, shapes)
    state = jax.eval_shape(program.initial, task, params, first)
    if on_device.rows is not None:
        state = state._replace(clients=_resized(state.clients, on_device.rows, key.ndim))
    elif task.placement is not None and task.placement.axis is not None:
        state = _spread(program.initial.compile(task, params, first).function, state)
    began = time.perf_counter()
    present = sealed(on_device.task, program.traces)
    compiled = program.segment.compile(present, None, first, state, key, _ONE_ROUND)
    compile_seconds = time.perf_counter() - began
    model = jax.tree.map(lambda x: x[0], params) if batched else params
    resident = dataclasses.replace(setup, task=on_device.task, timeline=timeline)
    _, upload, client = jax.eval_shape(lambda x: outcome.visit(algorithm, resident, x), model)
    chosen = as_chosen(algorithm.selection, timeline)
    steps = float(np.where(chosen.mask, chosen.num_steps, 0).sum() / timeline.num_rounds)
    if timeline.clients.ndim == 2:  # the same in all runs
        steps *= replicas
    evaluations = measuring.count_evaluations(setup)
    evaluated = dataclasses.replace(setup, eval_fn=put(eval_fn), timeline=first)
    evaluation = measuring.evaluation_program(program.evaluation, evaluated, state, key)
    result = Forecast(
        parameters=sum(int(np.size(x)) for x in jax.tree.leaves(model)),
        client_bytes=replicas * _bytes(client),
        upload_bytes=replicas * _bytes(upload),
        parts={
            "examples": on_device.examples,
            "client states": _bytes(state.clients),
            "server": _bytes((state.server, state.past)),
            "evaluation": _bytes(eval_fn),
            **_temporaries(
                max(program_bytes(compiled.function, arguments=False), evaluation.num_bytes),
                replicas * _stack_bytes(algorithm, upload, timeline.cohort_size),
            ),
        },
        memory=memory_limit(jax.local_devices()[0]) if memory is None else memory,
        flops_per_round=steps * measuring.step_flops(on_device.task, timeline, model),
        rounds=timeline.num_rounds,
        evaluations=sum(evaluations),
        seconds=Seconds(compile_seconds, math.nan, math.nan),
        flops_per_evaluation=evaluation.flops,
        privacy=privacy,
    )
    if not measure or result.peak > result.memory:
        return result
    if on_device.rows is None:
        current = program.initial(task, params, first)
    else:  # without the table of all clients; the time does not depend on the states' values
        rest = jax.jit(lambda *x: program.initial(*x)._replace(clients=()))
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state.clients)
        current = rest(task, params, first)._replace(clients=zeros)

    def one_round(t: int) -> None:
        nonlocal current
        # Of examples on the host, only those of the first rounds are on the device.
        part = first if on_device.task is not task else put(timeline[t : t + 1])
        arguments = present, None, part, current, key, _ONE_ROUND
        arguments = jax.device_put(arguments, compiled.shardings)
        current = jax.block_until_ready(compiled(*arguments))[0]

    per_round = measuring.shortest(one_round, timeline.num_rounds)
    timed = measuring.evaluation(evaluation, evaluated, current, key, evaluations, batched=batched)
    seconds = Seconds(compile_seconds + timed.compile, per_round, timed.run)
    return result._replace(seconds=seconds)


def _privacy(algorithm: FedAlgorithm, setup: Setup, delta: float) -> Guarantee | None:
    """Returns the guarantee of the whole run; None for an algorithm that is not private."""
    return epsilon(algorithm, setup, delta) if is_private(algorithm) else None


def _stack_bytes(algorithm: FedAlgorithm, upload: PyTree, num_slots: int) -> int:
    """Returns the bytes of the uploads that one run's server has in memory together."""
    if algorithm.aggregation is None:
        return 0
    num_bytes = called_part(algorithm, "aggregation.num_bytes", upload, num_slots)
    check_count(0, **{"algorithm.aggregation.num_bytes": num_bytes})
    return num_bytes


def _temporaries(total: int, stack: int) -> dict[str, int]:
    """Returns XLA's temporaries, with the stack of uploads among them as a part of its own."""
    rest = {"temporaries": max(total - stack, 0)}
    return {"uploads": stack} | rest if stack else rest


class _OnDevice(NamedTuple):
    """Part of a task that is on the device in the first rounds."""

    task: Task
    examples: int  # bytes
    rows: int | None  # rows of the table of states; None: all clients


def _on_device(task: Task, timeline: Timeline, eval_every: int, model: Params) -> _OnDevice:
    where = task.placement
    if not isinstance(where, offload.OnHost):
        return _OnDevice(task, _bytes(task), None)
    plan = offload.plan(task, timeline, 0, eval_every, stride(timeline.num_rounds, eval_every))
    with offload.Feed(task, timeline, plan, model) as feed:
        _, _, loaded = next(feed.loads(0, 1))
    examples = 2 * _bytes(loaded.oracle)  # this load and the next one
    if not where.states:
        return _OnDevice(loaded, examples, None)
    data: Any = loaded.oracle  # a Partial of the load's examples
    present = offload.PresentStates(data.args[0].ids)
    return _OnDevice(dataclasses.replace(loaded, placement=present), examples, plan.clients)


def _spread(initial: Any, state: RunState) -> RunState:
    """Returns the state's shapes with the shardings of a compiled program."""
    return jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        state,
        initial.output_shardings,
    )


def _resized(states: PyTree, rows: int, axis: int) -> PyTree:
    """Returns the shapes of a table with another number of clients."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*x.shape[:axis], rows, *x.shape[axis + 1 :]), x.dtype),
        states,
    )


def _bytes(tree: PyTree) -> int:
    """Returns the bytes of the arrays on one device."""

    def size(x: Any) -> int:
        if not hasattr(x, "dtype"):  # a function
            return 0
        sharding = getattr(x, "sharding", None)
        shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
        return int(np.prod(shape)) * x.dtype.itemsize

    return sum(size(x) for x in jax.tree.leaves(tree))
