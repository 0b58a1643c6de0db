"""Engine: one pure function runs a whole federated training run.

:func:`run` is :func:`init` followed by :func:`advance`, a scan of rounds.

Randomness: round t uses ``fold_in(key, t)``, client i's visit in that round ``fold_in(., i)``, and
the oracle and the algorithm use separate branches of that key.  Minibatch streams that continue
over visits use another branch, with one key per client.  So a client's draws depend neither on the
other clients of the cohort nor on the execution, and two algorithms with one key see the same
minibatches.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from fedjax_sim import tree
from fedjax_sim.checks.setups import check_key
from fedjax_sim.engine.contract import (
    check_execution,
    check_options,
    check_precision,
    check_run,
    check_staleness,
    checked_arrays,
    checked_init,
    checked_state,
    checked_visit,
    checked_weights,
)
from fedjax_sim.engine.evaluation.state import RunContext, check_names, evaluate
from fedjax_sim.engine.execution import stacks
from fedjax_sim.engine.execution.broadcasts import empty_buffers, store_broadcast
from fedjax_sim.engine.execution.placement import WHOLE, Placement
from fedjax_sim.engine.execution.strategies import Execution, auto, is_ragged
from fedjax_sim.tree.keys import fast, usual
from fedjax_sim.tree.repeated import entries
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    PyTree,
    Round,
    ServerState,
    Setup,
    Stack,
    Task,
    Timeline,
    Upload,
    Weighting,
    Work,
    uniform_weights,
)

# Rounds that no run reaches: their branches of the key are those of the clients' streams and of
# evaluations.
_NO_ROUND = np.uint32(2**32 - 1)
_EVALUATION = np.uint32(2**32 - 2)


class RunState(NamedTuple):
    """State from which a run continues."""

    round: Array  # int    server updates done
    server: ServerState
    clients: ClientState  # [M, ...]
    past: Message  # [buffers, ...] past broadcasts; () when synchronous
    diverged_at: Array  # int    first server update that is not finite, counted from 1; 0: none


class History(NamedTuple):
    """Records of a run: E evaluations, T rounds, S slots."""

    round: Array  # [E] int    server updates done at each evaluation
    metrics: dict[str, Array]  # [E, ...] of eval_fn
    probes: dict[str, Array]  # [T, S, ...] of client probes, [T, ...] of the others


class Visit(NamedTuple):
    """Argument of a client probe: one client's visit.

    Example:
        >>> length = lambda visit: jnp.abs(visit.upload - visit.message)
        >>> visit = Visit(jnp.array(1.0), jnp.array(3.0), (), (), None, None)
        >>> float(length(visit))  # a client probe: Probes(client={"length": length})
        2.0
    """

    message: Message
    upload: Upload
    state: ClientState
    new_state: ClientState
    oracle: Oracle
    work: Work


class Update(NamedTuple):
    """Argument of a server probe: one server update.

    Example:
        >>> step = lambda update: update.new_state.params - update.state.params
        >>> State = NamedTuple("State", [("params", float)])
        >>> step(Update(State(1.0), State(0.5), mean=0.5, round=None))
        -0.5
    """

    state: ServerState
    new_state: ServerState
    mean: Upload  # or the Stack of all uploads, for an algorithm with such an aggregation
    round: Round


class Probes(NamedTuple):
    """Diagnostics evaluated inside every round and recorded in the history.

    Values of client probes in empty slots have no meaning: apply the timeline's mask.  A run probe
    receives the state after the round, with the states of all clients.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda params, examples, key: (params - examples["x"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(num_steps=1))
        >>> setup = fs.Setup(task, fs.timelines.full(2, 2, task.num_steps), jnp.array(0.0))
        >>> probes = Probes(client={"upload": lambda visit: visit.upload})
        >>> _, history = run(fs.fedavg(0.25), setup, jax.random.key(0), probes=probes)
        >>> history.probes["upload"].tolist()  # [T, S]
        [[-0.5, -1.5], [0.0, -1.0]]
    """

    client: Mapping[str, Callable[[Visit], Array]] = {}
    server: Mapping[str, Callable[[Update], Array]] = {}
    run: Mapping[str, Callable[[RunState], Array]] = {}


NO_PROBES = Probes()


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


def first_state(algorithm: FedAlgorithm, setup: Setup) -> RunState:
    """Returns the state before the first round, of a setup that was checked."""
    task, timeline = setup.task, setup.timeline
    params = _strong(setup.params)
    server = _strong(checked_init(algorithm.init(params)))
    where = _placement(task)
    rows = where.num_rows(task.num_clients)
    client = _strong(checked_arrays("init_client", algorithm.init_client(params)))
    clients = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), client)
    round = Round(jnp.array(0), jnp.array(0), task.num_clients, jax.random.key(0))
    message = jax.eval_shape(lambda server: algorithm.broadcast(server, round), server)
    past = empty_buffers(timeline, message)
    zero = jnp.array(0, jnp.int32)
    return RunState(zero, server, where.put(clients), past, zero)


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

    Raises:
        ValueError: what only tracing shows: values that the algorithm's functions return, names of
            metrics and probes, ``probes.run`` with clients' states divided over devices.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda params, examples, key: (params - examples["x"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(4, 2, task.num_steps), jnp.zeros(()))
        >>> algorithm, key = fs.fedavg(0.25), jax.random.key(0)
        >>> state = init(algorithm, setup)
        >>> state, history = advance_by(algorithm, setup, state, key, Span(0, 3, 0, 4))
        >>> int(state.round), float(state.server.params), history.round[:3].tolist()
        (3, 1.75, [1, 2, 3])
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
    """Returns the most evaluations among consecutive rounds of a run, with its last one.

    Example:
        >>> most_evaluations(10, 5)  # rounds 4 to 13 of 13: after 5, 10 and 13
        3
    """
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
        place = jnp.arange(record.shape[0]).reshape(-1, *(1,) * (record.ndim - 1))
        return jnp.where(place == index, value, record)

    return jax.tree.map(select, records, values)


def _scanned(
    one_round: Callable, task: Task, state: RunState, part: Timeline, key: Array
) -> tuple[RunState, dict[str, Array]]:
    return jax.lax.scan(lambda state, now: one_round(task, state, now, key), state, part)


def _functions(
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    execution: Execution | None,
    probes: Probes,
) -> tuple[Callable, Callable, Callable]:
    """Returns a round, an evaluation, and the division of several rounds over the devices.

    ``one_round(task, state, now, key)`` returns the state and the probes; ``measure(state, part)``
    the metrics; ``spread(rounds)`` a function of task, state, timeline and key, with ``buffers``
    also of numbers and of buffers for probes.

    Raises:
        ValueError: as :func:`advance`.
    """
    task, timeline, eval_fn = setup.task, setup.timeline, setup.eval_fn
    where = _placement(task)
    if probes.run and where.axis is not None:
        raise ValueError(
            f"probes.run is {sorted(probes.run)}; expected none, since the clients' states are "
            "divided over devices"
        )
    execution = stacks.strategy(
        algorithm.aggregation, execution or auto(ragged=is_ragged(timeline))
    )
    execution = where.mean_of_all(execution)

    def of_state(task: Task, state: RunState, now: Timeline, key: Array):
        return one_round(algorithm, task, now, state, key, execution, setup.weighting, probes)

    def measure(state: RunState, part: Timeline) -> dict[str, Array]:
        context = evaluation_context(algorithm, task, part, state, key)
        metrics = {} if eval_fn is None else evaluate(eval_fn, context)
        check_names(metrics, (*probes.client, *probes.server, *probes.run))
        return {name: jnp.asarray(value) for name, value in metrics.items()}

    every, table = PartitionSpec(), PartitionSpec(where.axis)
    states = RunState(every, every, table, every, every)  # pyright: ignore
    probed = dict.fromkeys((*probes.server, *probes.run), every)
    probed |= {name: PartitionSpec(None, where.axis) for name in probes.client}

    def spread(rounds: Callable, *, buffers: bool = False) -> Callable:
        further = (every, probed) if buffers else ()
        return where.spread(rounds, (states, every, every, *further), (states, probed))

    return of_state, measure, spread


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


def evaluation_context(
    algorithm: FedAlgorithm, task: Task, timeline: Timeline, state: RunState, key: Array
) -> RunContext:
    """Returns the argument of a run's evaluators, from the rounds before and the run's key."""
    branch = jax.random.fold_in(key, _EVALUATION)
    return RunContext(state, algorithm, task, timeline.max_steps, branch, timeline)


def one_round(
    algorithm: FedAlgorithm,
    task: Task,
    now: Timeline,
    state: RunState,
    key: Array,
    execution: Execution,
    weighting: Weighting,
    probes: Probes,
) -> tuple[RunState, dict[str, Array]]:
    """Runs one round; ``now`` is its part of the timeline, with leaves ``[S]``."""
    where = _placement(task)
    clients, mask = jnp.asarray(now.clients), jnp.asarray(now.mask)
    stream_keys = client_stream(key, clients)
    key = jax.random.fold_in(fast(key), state.round)
    visit_keys = _visit_keys(key, clients)
    server_key = usual(jax.random.fold_in(key, task.num_clients))  # a number that no client has
    arrived = jnp.asarray(now.arrived)
    round = Round(state.round, arrived.sum(), task.num_clients, server_key)
    message = algorithm.broadcast(state.server, round)
    past, buffers = store_broadcast(state.past, message, state.round, now)

    works = Work(
        round=jnp.broadcast_to(state.round, clients.shape),
        client=clients,
        # Empty slots do no steps.
        num_steps=jnp.where(mask, now.num_steps, 0),
        num_examples=entries(task.num_examples, clients),
        staleness=state.round - now.version,
        key=usual(_branch(visit_keys, 1)),
        max_steps=now.max_steps,
    )
    resumes = task.resumable and now.first_step is not None
    draws = (stream_keys, now.first_step) if resumes else usual(_branch(visit_keys, 0))

    def local(shared: tuple[Task, Message], slot: tuple):
        (task, received), (fields, draw, buffer, old) = shared, slot
        work = Work(*fields, max_steps=now.max_steps)
        if buffer is not None:
            received = tree.take(received, buffer)
        if resumes:
            stream_key, first_step = draw
            oracle = task.oracle(work.client, stream_key, work.max_steps, first_step)
        else:
            oracle = task.oracle(work.client, draw, work.max_steps)
        upload, new = checked_visit(algorithm.local(received, old, oracle, work), old)
        check_precision("local", new, old, state.server.params)
        visit = Visit(received, upload, old, new, oracle, work)
        return upload, (new, {name: probe(visit) for name, probe in probes.client.items()})

    weights = jnp.where(arrived, checked_weights(weighting(works), clients.shape[0]), 0)
    shared = (task, message if buffers is None else past)
    visits, local_weights, mask, rows = where.own(
        ((works[:-1], draws, buffers), weights, mask, where.rows(clients))
    )
    old = tree.take(state.clients, rows)
    visit, inputs = stacks.received(algorithm.aggregation, state.server, local, shared)
    mean, (new, probed) = execution(visit, inputs, (*visits, old), local_weights)
    if stacks.is_stacked(algorithm.aggregation):
        equal = weighting is uniform_weights
        mean = Stack(mean, None if equal else weights, arrived, clients)

    # Rows of empty slots are distinct and out of bounds, so they are dropped.
    absent = where.num_rows(task.num_clients) + jnp.arange(mask.shape[0], dtype=jnp.int32)
    rows = jnp.where(mask, rows, absent)
    new_clients = jax.tree.map(
        lambda x, y: x.at[rows].set(y, mode="drop", unique_indices=True), state.clients, new
    )
    # A round in which nobody reports changes nothing; NaN and negative weights make the model NaN.
    updated = checked_state("update", algorithm.update(state.server, mean, round), state.server)
    check_precision("update", updated, state.server, state.server.params)
    server = tree.where(weights.sum() <= 0, state.server, updated)
    finite = tree.all_finite(server)
    done = state.round + 1
    diverged_at = jnp.where((state.diverged_at == 0) & ~finite, done, state.diverged_at)
    update = Update(state.server, server, mean, round)
    probed |= {name: probe(update) for name, probe in probes.server.items()}
    new_state = RunState(done, server, new_clients, past, diverged_at)
    probed |= {name: probe(new_state) for name, probe in probes.run.items()}
    return new_state, probed


def _placement(task: Task) -> Placement:
    return WHOLE if task.placement is None else task.placement


def client_stream(key: Array, clients: Array) -> Array:
    """Returns the keys of the clients' minibatch streams, from the run's key."""
    return usual(_visit_keys(jax.random.fold_in(fast(key), _NO_ROUND), clients))


def _visit_keys(key: Array, clients: Array) -> Array:
    return jax.vmap(lambda client: jax.random.fold_in(key, client))(clients)


def _branch(keys: Array, number: int) -> Array:
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)


def _strong(x: Any) -> PyTree:
    """Removes weak types, which a scan does not carry."""
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.result_type(leaf)), x)
