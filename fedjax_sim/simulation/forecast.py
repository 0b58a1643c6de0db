"""Forecast of a run: parameters, memory by part, arithmetic, time."""

import dataclasses
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_batch, check_setup
from fedjax_sim.engine import NO_PROBES, Probes, RunState, check_algorithm
from fedjax_sim.execution import offload
from fedjax_sim.execution.devices import memory_limit, program_bytes
from fedjax_sim.execution.placement import everywhere
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.simulation import measuring, outcome
from fedjax_sim.simulation.programs import programs, stride
from fedjax_sim.types import FedAlgorithm, PyTree, Setup, Task, Timeline

# Options that reduce the memory of a part.
KNOBS = {
    "examples": "load them before they are needed (offload.on_host, --examples-memory) or "
    "divide them over devices (placement.by_client, --num-strata)",
    "client states": "keep them on the host (--states host) or divide them over devices "
    "(placement.by_client, --num-strata)",
    "server": "models with fewer parameters or in bfloat16, fewer seeds at once (--seeds), less "
    "staleness in asynchronous timelines",
    "evaluation": "evaluate on fewer examples",
    "stored states": "more levels of recomputation (checkpoint='log'), or derivatives of the last "
    "rounds only (last_rounds)",
    "uploads": "fewer clients per round, or a rule that is a mean of clipped uploads "
    "(robust.centred_clipping with one iteration)",
    "temporaries": "fewer clients at once (execution.chunked, --execution chunked --chunk-size), "
    "smaller batches, fewer seeds at once (--seeds), or bfloat16 (--precision)",
}


class Seconds(NamedTuple):
    """Times of a run on this machine; NaN: not measured."""

    compile: float  # of the rounds and of the evaluation
    per_round: float
    per_evaluation: float  # mean over the run's evaluations


class Forecast(NamedTuple):
    """Forecast of one run, or of a batch of runs together; bytes are those of one device.

    Attributes:
        parameters: parameters of one model.
        client_bytes: state of one client between rounds, of all runs together.
        upload_bytes: upload of one client per round, of all runs together.
        parts: bytes on the device at the peak, by part; ``uploads`` are those of a round that a
            robust rule has in memory together, ``temporaries`` the rest by XLA's analysis of the
            compiled round, or of an evaluation with clients' local work, which may need more.
        memory: bytes that may be used.
        flops_per_round: XLA's count for one step of one client, times the steps of a mean round.
        rounds: rounds of the whole run.
        evaluations: evaluations of the whole run.
        seconds: measured times.
        flops_per_evaluation: XLA's count for an evaluation of which all parts are due, with local
            work, Hessian-vector products and all batches, of all runs together.

    Example:
        >>> one = Forecast(650, 0, 2600, {}, 10**9, 4e6, 100, 50, Seconds(3.0, 0.01, 0.2))
        >>> one.seconds_of_rounds, one.seconds_of_evaluations, one.total_seconds
        (1.0, 10.0, 14.0)
    """

    parameters: int
    client_bytes: int
    upload_bytes: int
    parts: dict[str, int]
    memory: int
    flops_per_round: float
    rounds: int
    evaluations: int
    seconds: Seconds
    flops_per_evaluation: float = 0.0

    @property
    def seconds_of_rounds(self) -> float:
        """Time of all rounds; NaN: not measured."""
        return self.rounds * self.seconds.per_round

    @property
    def seconds_of_evaluations(self) -> float:
        """Time of all evaluations; NaN: not measured."""
        return self.evaluations * self.seconds.per_evaluation if self.evaluations else 0.0

    @property
    def total_seconds(self) -> float:
        """Time of the whole run; NaN: not measured."""
        return self.seconds.compile + self.seconds_of_rounds + self.seconds_of_evaluations

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return sum(self.parts.values())

    def check(self) -> None:
        """Refuses a run that does not fit.

        Raises:
            ValueError: the run does not fit; the message has the numbers and the options to change.
        """
        if self.peak <= self.memory:
            return
        largest = max(self.parts, key=self.parts.__getitem__)
        sizes = ", ".join(f"{name} {size / 1e9:.3g}" for name, size in self.parts.items())
        raise ValueError(
            f"memory of a device is {self.memory / 1e9:.3g} GB; expected at least "
            f"{self.peak / 1e9:.3g} ({sizes}); the largest part is {largest}: {KNOBS[largest]}"
        )


def forecast(
    algorithm: FedAlgorithm,
    setup: Setup,
    keys: Array,
    *,
    execution: Execution | None = None,
    probes: Probes = NO_PROBES,
    memory: int | None = None,
    measure: bool = True,
) -> Forecast:
    """Returns the memory and time that a run needs; compiles and measures one round.

    It takes the time of one compilation, of one round and of one evaluation (up to three rounds if
    they are short); equal evaluations of several algorithms are measured once.

    Args:
        algorithm, setup, keys, execution, probes: as in :func:`~fedjax_sim.simulate`.
        memory: bytes per device; default :func:`~fedjax_sim.execution.devices.memory_limit`.
        measure: run the first rounds and an evaluation, if they fit.

    Raises:
        ValueError: contradictory arguments.  A run that does not fit is refused by
            :meth:`Forecast.check`, not here.

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
    batched = keys.ndim == 1
    replicas = keys.shape[0] if batched else 1
    check_setup(setup)
    check_batch(setup, replicas if batched else None)
    check_algorithm(algorithm, setup)
    task, params, key = setup.task, setup.params, keys
    eval_fn, eval_every = setup.eval_fn, setup.eval_every
    timeline = jax.tree.map(np.asarray, setup.timeline)
    program = programs(
        algorithm,
        dataclasses.replace(setup, eval_every=1),
        batched=batched,
        execution=execution,
        probes=probes,
    )
    put = everywhere(task)
    first, params, key = put(timeline[:1]), put(params), put(key)
    on_device = _on_device(task, timeline, eval_every)
    state = jax.eval_shape(program.initial, task, params, first)
    if on_device.rows is not None:
        state = state._replace(clients=_resized(state.clients, on_device.rows, key.ndim))
    elif task.placement is not None and task.placement.axis is not None:
        state = _spread(program.initial.lower(task, params, first).compile(), state)
    began = time.perf_counter()
    compiled = program.segment.lower(on_device.task, None, first, state, key).compile()
    compile_seconds = time.perf_counter() - began
    model = jax.tree.map(lambda x: x[0], params) if batched else params
    resident = dataclasses.replace(setup, task=on_device.task, timeline=timeline)
    _, upload, client = jax.eval_shape(lambda x: outcome.visit(algorithm, resident, x), model)
    steps = float(np.where(timeline.mask, timeline.num_steps, 0).sum() / timeline.num_rounds)
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
                max(program_bytes(compiled, arguments=False), evaluation.num_bytes),
                replicas * _stack_bytes(algorithm, upload, timeline.cohort_size),
            ),
        },
        memory=memory_limit(jax.local_devices()[0]) if memory is None else memory,
        flops_per_round=steps * measuring.step_flops(on_device.task, timeline, model),
        rounds=timeline.num_rounds,
        evaluations=sum(evaluations),
        seconds=Seconds(compile_seconds, math.nan, math.nan),
        flops_per_evaluation=evaluation.flops,
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
        arguments = on_device.task, None, part, current, key
        arguments = jax.device_put(arguments, compiled.input_shardings[0])
        current = jax.block_until_ready(compiled(*arguments))[0]

    per_round = measuring.shortest(one_round, timeline.num_rounds)
    timed = measuring.evaluation(evaluation, evaluated, current, key, evaluations, batched=batched)
    seconds = Seconds(compile_seconds + timed.compile, per_round, timed.run)
    return result._replace(seconds=seconds)


def _stack_bytes(algorithm: FedAlgorithm, upload: PyTree, num_slots: int) -> int:
    """Returns the bytes of the uploads that one run's server has in memory together."""
    aggregation = algorithm.aggregation
    return 0 if aggregation is None else aggregation.num_bytes(upload, num_slots)


def _temporaries(total: int, stack: int) -> dict[str, int]:
    """Returns XLA's temporaries, with the stack of uploads among them as a part of its own."""
    rest = {"temporaries": max(total - stack, 0)}
    return {"uploads": stack} | rest if stack else rest


class _OnDevice(NamedTuple):
    """Part of a task that is on the device in the first rounds."""

    task: Task
    examples: int  # bytes
    rows: int | None  # rows of the table of states; None: all clients


def _on_device(task: Task, timeline: Timeline, eval_every: int) -> _OnDevice:
    where = task.placement
    if not isinstance(where, offload.OnHost):
        return _OnDevice(task, _bytes(task), None)
    plan = offload.plan(task, timeline, 0, eval_every, stride(timeline.num_rounds, eval_every))
    with offload.Feed(task, timeline, plan) as feed:
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
