"""Loops over rounds: whole runs, and parts of runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from fedjax_sim.checks import check_key
from fedjax_sim.engine.contract import (
    check_execution,
    check_options,
    check_run,
    check_staleness,
)
from fedjax_sim.engine.evaluation.state import check_names, evaluate
from fedjax_sim.engine.execution import stacks
from fedjax_sim.engine.execution.strategies import Execution, auto, is_ragged
from fedjax_sim.engine.records import NO_PROBES, History, Probes, RunState
from fedjax_sim.engine.returned import check_recorded
from fedjax_sim.engine.rounds import evaluation_context, first_state, one_round, placement_of
from fedjax_sim.engine.selection import check_selection, counted
from fedjax_sim.types import FedAlgorithm, PyTree, Setup, Task, Timeline


def init(algorithm: FedAlgorithm, setup: Setup) -> RunState:
    """Returns the state before the first round.

    Raises:
        ValueError: as :func:`~fedjax_sim.engine.contract.check_run`.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda params, examples, key: (params - examples["x"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(4, 2, task.num_steps), jnp.zeros(()))
        >>> state = init(fs.fedavg(0.5), setup)
        >>> int(state.round), float(state.server.params)
        (0, 0.0)
    """
    check_run(algorithm, setup, None, compiled=False)
    return first_state(algorithm, setup)


def run(
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    *,
    execution: Execution | None = None,
    probes: Probes = NO_PROBES,
) -> tuple[RunState, History]:
    """Runs a whole training run as one pure function.

    It can be jitted, vmapped over hyper-parameters and keys, and differentiated.  Pass the setup
    as an argument of the function that you jit; do not close over it.  Inside ``jax.shard_map`` it
    requires ``check_vma=False``, since its loops begin with values that all devices share.

    Args:
        algorithm: for example ``fedavg(lr=0.1)``; hyper-parameters may be traced.
        setup: the clients' objectives, the timeline, the initial model and the evaluation.
        key: the only source of randomness.
        execution: execution strategy; default :func:`~fedjax_sim.engine.execution.auto`.
        probes: diagnostics inside every round.

    Returns:
        The final state (``state.server.params`` is the model) and the history.

    Raises:
        ValueError: arguments whose shapes contradict each other, or a function of the algorithm
            that takes or returns something else than :class:`~fedjax_sim.types.FedAlgorithm` says.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
        >>> data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.arange(0, 41, 5))  # 8 clients
        >>> loss = lambda w, batch, key: (batch["x"] @ w - batch["y"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.epochs(2, batch_size=2))
        >>> timeline = fs.timelines.uniform(jax.random.key(0), 20, 8, 4, task.num_steps)
        >>> @jax.jit
        ... def error(lr, setup):
        ...     state, _ = fs.run(fs.fedavg(lr), setup, jax.random.key(1))
        ...     return jnp.abs(state.server.params - 1).max()
        >>> setup = fs.Setup(task, timeline, jnp.zeros(3))
        >>> errors = jax.vmap(error, (0, None))(jnp.array([1e-3, 1e-1]), setup)
        >>> bool(errors[0] > 0.1), bool(errors[1] < 1e-3)
        (True, True)
    """
    check_key(key)
    check_options(execution, probes)
    check_run(algorithm, setup, None, execution=execution, compiled=False)
    state = first_state(algorithm, setup)
    return _advanced(algorithm, setup, state, key, execution, probes)


def advance(
    algorithm: FedAlgorithm,
    setup: Setup,
    state: RunState,
    key: Array,
    *,
    execution: Execution | None = None,
    probes: Probes = NO_PROBES,
) -> tuple[RunState, History]:
    """Continues a run.

    ``setup.timeline`` holds the rounds from ``state.round`` on, and no others; ``setup.params`` is
    not used.  The other arguments and the results are those of :func:`run`.

    Raises:
        ValueError: as :func:`init`; a timeline without rounds; ``probes.run`` with clients' states
            divided over devices; metrics or probes named ``time`` or ``local_steps``, or with equal
            names.

    Example:
        >>> import dataclasses
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda params, examples, key: (params - examples["x"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(4, 2, task.num_steps), jnp.zeros(()))
        >>> algorithm, key = fs.fedavg(0.25), jax.random.key(0)
        >>> state = init(algorithm, setup)
        >>> for part in (setup.timeline[:3], setup.timeline[3:]):
        ...     setup = dataclasses.replace(setup, timeline=part)
        ...     state, _ = advance(algorithm, setup, state, key)
        >>> int(state.round), float(state.server.params)
        (4, 1.875)
    """
    timeline = setup.timeline
    check_key(key)
    check_options(execution, probes)
    if not timeline.num_rounds:
        raise ValueError("setup.timeline has 0 rounds; expected at least 1")
    check_staleness(algorithm, timeline)
    check_selection(algorithm, setup)
    check_execution(algorithm, execution)
    return _advanced(algorithm, setup, state, key, execution, probes)


def _advanced(
    algorithm: FedAlgorithm,
    setup: Setup,
    state: RunState,
    key: Array,
    execution: Execution | None,
    probes: Probes,
) -> tuple[RunState, History]:
    task, timeline = setup.task, setup.timeline
    one_round, measure, spread = _functions(algorithm, setup, key, execution, probes)
    num_rounds = timeline.num_rounds
    eval_every = min(setup.eval_every, num_rounds)
    rounds = spread(functools.partial(_scanned, one_round))

    def segment(state: RunState, part: Timeline) -> tuple[RunState, History]:
        state, probed = rounds(task, state, part, key)
        metrics = measure(state, part)
        metrics = {name: value[None] for name, value in metrics.items()}
        return state, History(state.round[None], metrics, probed)

    whole = num_rounds // eval_every
    head = jax.tree.map(
        lambda x: x.reshape(whole, eval_every, *x.shape[1:]), timeline[: whole * eval_every]
    )
    state, history = jax.lax.scan(segment, state, head)
    history = jax.tree.map(lambda x: jax.lax.collapse(x, 0, 2), history)
    if num_rounds % eval_every:
        state, last = segment(state, timeline[whole * eval_every :])
        history = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), history, last)
    return state, history


class Span(NamedTuple):
    """Rounds of one call of :func:`advance_by`: numbers that the compiled program takes."""

    row: Any  # the first round's row in the timeline's part
    count: Any  # rounds
    done: Any  # rounds of the run before them
    total: Any  # rounds of the whole run


def advance_by(
    algorithm: FedAlgorithm,
    setup: Setup,
    state: RunState,
    key: Array,
    span: Span,
    *,
    execution: Execution | None = None,
    probes: Probes = NO_PROBES,
) -> tuple[RunState, History]:
    """Continues a run by a number of rounds that may be traced, so that one program serves all.

    ``setup.timeline`` holds N rounds of the run, among them those of ``span``, and
    ``setup.eval_every`` counts from the run's round 0.  Evaluators get the last round as the
    context's timeline.  The loops cannot be differentiated; :func:`advance` can.

    Returns:
        The state, and a history with room for :func:`most_evaluations` evaluations and N rounds, of
        which only the first entries, those of ``span``, have a meaning.

    The callers have checked the arguments.
    """
    task, timeline, every = setup.task, setup.timeline, setup.eval_every
    one_round, measure, spread = _functions(algorithm, setup, key, execution, probes)
    row, count, done, total = (jnp.asarray(number, jnp.int32) for number in span)
    end = row + count

    def rounds(
        task: Task, state: RunState, timeline: Timeline, key: Array, bounds: Any, probed: dict
    ) -> tuple[RunState, dict[str, Array]]:
        first, last, row = bounds

        def at(i: Array, carry: tuple) -> tuple[RunState, dict[str, Array]]:
            state, probed = carry
            now = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, 0, False), timeline)
            state, new = one_round(task, state, now, key)
            return state, _written(probed, new, i - row)

        return jax.lax.fori_loop(first, last, at, (state, probed))

    probed = {}
    if probes.client or probes.server or probes.run:
        one = spread(functools.partial(_scanned, one_round))
        _, shapes = jax.eval_shape(one, task, state, timeline[:1], key)
        check_recorded(shapes)
        probed = {
            name: jnp.zeros((timeline.num_rounds, *x.shape[1:]), x.dtype)
            for name, x in shapes.items()
        }
    rounds = spread(rounds, buffers=True)

    def interval(carry: tuple) -> tuple:
        i, e, state, records, probed = carry
        before = done + i - row
        stop = jnp.minimum(end, i + every - before % every)
        state, probed = rounds(task, state, timeline, key, (i, stop, row), probed)
        after = done + stop - row
        due = ((after % every == 0) | (after == total)).astype(jnp.int32)
        last = jax.tree.map(
            lambda x: jax.lax.dynamic_slice_in_dim(x, stop - 1, 1),
            jax.tree.map(jnp.asarray, timeline),
        )
        # A loop of one or no iteration instead of a condition: a GPU captures loops in a graph.
        records = jax.lax.fori_loop(
            0,
            due,
            lambda _, records: _selected(records, (state.round, measure(state, last)), e),
            records,
        )
        return stop, e + due, state, records, probed

    size = most_evaluations(timeline.num_rounds, every)
    shapes = jax.eval_shape(lambda state: (state.round, measure(state, timeline[:1])), state)
    records = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), shapes)
    carry = (row, jnp.array(0, jnp.int32), state, records, probed)
    carry = jax.lax.while_loop(lambda carry: carry[0] < end, interval, carry)
    _, _, state, (round, metrics), probed = carry
    return state, History(round, metrics, probed)


def most_evaluations(num_rounds: int, eval_every: int) -> int:
    """Returns the most evaluations among consecutive rounds of a run, with its last one."""
    return num_rounds // eval_every + 1


def _written(buffers: PyTree, values: PyTree, index: Array) -> PyTree:
    def write(buffer: Array, value: Any) -> Array:
        return jax.lax.dynamic_update_index_in_dim(
            buffer, jnp.asarray(value, buffer.dtype), index, 0
        )

    return jax.tree.map(write, buffers, values)


def _selected(records: PyTree, values: PyTree, index: Array) -> PyTree:
    """Few records with an entry replaced; under ``vmap`` an update at an index is a scatter."""

    def select(record: Array, value: Any) -> Array:
        place = jnp.arange(record.shape[0], dtype=index.dtype).reshape(
            -1, *(1,) * (record.ndim - 1)
        )
        return jnp.where(place == index, value, record)

    return jax.tree.map(select, records, values)


def _scanned(
    one_round: Callable, task: Task, state: RunState, part: Timeline, key: Array
) -> tuple[RunState, dict[str, Array]]:
    return jax.lax.scan(lambda state, now: one_round(task, state, now, key), state, part)


def _functions(
    algorithm: FedAlgorithm, setup: Setup, key: Array, execution: Execution | None, probes: Probes
) -> tuple[Callable, Callable, Callable]:
    """Returns a round, an evaluation, and the division of several rounds over the devices.

    ``one_round(task, state, now, key)`` returns the state and the probes; ``measure(state, part)``
    the metrics; ``spread(rounds)`` a function of task, state, timeline and key, with ``buffers``
    also of numbers and of buffers for probes.
    """
    task, timeline, eval_fn = setup.task, setup.timeline, setup.eval_fn
    where = placement_of(task)
    if probes.run and where.axis is not None:
        raise ValueError(
            f"probes.run is {sorted(probes.run)}; expected none, since the clients' states are "
            "divided over devices"
        )
    if probes.client and algorithm.selection is not None:
        raise ValueError(
            f"probes.client is {sorted(probes.client)}; expected none with a selection, since "
            "histories average over the timeline's clients"
        )
    execution = stacks.strategy(
        algorithm.aggregation,
        execution or auto(num_clients=task.num_clients, ragged=is_ragged(timeline)),
    )
    execution = where.mean_of_all(execution)

    def of_state(task: Task, state: RunState, now: Timeline, key: Array):
        return one_round(algorithm, task, now, state, key, execution, setup.weighting, probes)

    def measure(state: RunState, part: Timeline) -> dict[str, Array]:
        context = evaluation_context(algorithm, task, part, state, key)
        metrics = {} if eval_fn is None else evaluate(eval_fn, context)
        check_names(metrics, (*probes.client, *probes.server, *probes.run))
        metrics |= counted(state)
        return {name: jnp.asarray(value) for name, value in metrics.items()}

    every, table = PartitionSpec(), PartitionSpec(where.axis)
    states = RunState(every, every, table, every, every, every)  # pyright: ignore
    probed = dict.fromkeys((*probes.server, *probes.run), every)
    probed |= {name: PartitionSpec(None, where.axis) for name in probes.client}

    def spread(rounds: Callable, *, buffers: bool = False) -> Callable:
        further = (every, probed) if buffers else ()
        return where.spread(rounds, (states, every, every, *further), (states, probed))

    return of_state, measure, spread
