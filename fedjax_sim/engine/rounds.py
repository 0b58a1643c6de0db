"""One round of a run, the state before the first one, and what evaluators receive."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import called, checked_oracle
from fedjax_sim.engine.evaluation.context import RunContext
from fedjax_sim.engine.execution import stacks
from fedjax_sim.engine.execution.broadcasts import empty_buffers, store_broadcast
from fedjax_sim.engine.execution.placement import WHOLE, Placement
from fedjax_sim.engine.execution.strategies import Execution
from fedjax_sim.engine.records import Probes, RunState, Update, Visit
from fedjax_sim.engine.returned import (
    called_part,
    check_precision,
    checked_arrays,
    checked_init,
    checked_state,
    checked_visit,
    checked_weights,
    probed,
)
from fedjax_sim.engine.selection import (
    Slots,
    after_visits,
    chosen_slots,
    first_selected,
    measured_model,
)
from fedjax_sim.tree import entries, fast, usual
from fedjax_sim.types import (
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    PyTree,
    Round,
    Setup,
    Stack,
    Task,
    Timeline,
    Weighting,
    Work,
    uniform_weights,
)

# Rounds that no run reaches: their branches of the key are those of the clients' streams and of
# evaluations.
_NO_ROUND = np.uint32(2**32 - 1)
_EVALUATION = np.uint32(2**32 - 2)


def first_state(algorithm: FedAlgorithm, setup: Setup) -> RunState:
    """Returns the state before the first round, of a setup that was checked."""
    task, timeline = setup.task, setup.timeline
    params = _strong(setup.params)
    server = _strong(checked_init(called_part(algorithm, "init", params)))
    where = placement_of(task)
    rows = where.num_rows(task.num_clients)
    client = called_part(algorithm, "init_client", params)
    client = _strong(checked_arrays("init_client", client))
    clients = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), client)
    round = Round(jnp.array(0), jnp.array(0), task.num_clients, jax.random.key(0))
    message = jax.eval_shape(
        lambda server: called_part(algorithm, "broadcast", server, round), server
    )
    past = empty_buffers(timeline, message)
    zero = jnp.array(0, jnp.int32)
    selected = first_selected(algorithm, task.num_clients)
    return RunState(zero, server, where.put(clients), past, zero, selected)


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
    where, now = placement_of(task), _in_32_bits(now)
    clients, mask = jnp.asarray(now.clients), jnp.asarray(now.mask)
    stream_keys = client_stream(key, clients)
    key = jax.random.fold_in(fast(key), state.round)
    visit_keys = _visit_keys(key, clients)
    server_key = usual(jax.random.fold_in(key, task.num_clients))  # a number that no client has
    arrived = jnp.asarray(now.arrived)
    selector, selected, total = algorithm.selection, state.selection, None
    announced = arrived.sum()
    if selector is not None and selector.size is not None:
        announced = jnp.minimum(announced, selector.size)
    works = works_of(task, now, state.round, usual(_branch(visit_keys, 1)))

    def share(weights: Array) -> Array | None:
        return share_of(algorithm, task, weighting, weights, now.max_steps)

    weights = weights_of(weighting, works, arrived)
    round = Round(state.round, announced, task.num_clients, server_key, share=share(weights))
    message = called_part(algorithm, "broadcast", state.server, round)
    past, buffers = store_broadcast(state.past, message, state.round, now)

    resumes = task.resumable and now.first_step is not None
    draws = (stream_keys, now.first_step) if resumes else usual(_branch(visit_keys, 0))

    def oracle_of(task: Task, work: Work, draw: PyTree) -> Oracle:
        given = "(client, key, max_steps" + (", first_step)" if resumes else ")")
        stream = (draw[0], work.max_steps, draw[1]) if resumes else (draw, work.max_steps)
        expected = "a function that returns the client's fs.Oracle"
        oracle = called("task.oracle", given, expected, task.oracle, work.client, *stream)
        return checked_oracle("task.oracle", oracle)

    factors = None
    if selector is not None:
        candidates = Slots(works, draws, mask, arrived)
        own_key = jax.random.fold_in(key, task.num_clients + 1)
        kept, factors, selected = chosen_slots(
            algorithm, candidates, weights, selected, (task, measured_model(state.server)),
            round._replace(key=usual(own_key)), execution, oracle_of,
        )  # fmt: skip
        works, draws, mask, arrived = kept
        clients, total = works.client, weights.sum()
        weights = weights_of(weighting, works, arrived)
        round = round.counting(arrived.sum(), share(weights))

    reports = selector is not None and selector.report is not None

    def local(shared: tuple[Task, Message, Params | None], slot: tuple):
        (task, received, model), (fields, draw, buffer, old) = shared, slot
        work = Work(*fields, max_steps=now.max_steps)
        if buffer is not None:
            received = tree.take(received, buffer)
        oracle = oracle_of(task, work, draw)
        result = called_part(algorithm, "local", received, old, oracle, work)
        upload, new = checked_visit(result, old, averaged=algorithm.aggregation is None)
        check_precision("local", new, old, state.server.params)
        visit = Visit(received, upload, old, new, oracle, work)
        report: PyTree = ()
        if reports:
            report = called_part(algorithm, "selection.report", model, oracle, work)
            checked_arrays("selection.report", report)
        return upload, (new, probed("client", probes.client, visit), report)

    if factors is not None:
        weights = weights * factors
    model = measured_model(state.server) if reports else None
    shared = (task, message if buffers is None else past, model)
    visits, local_weights, mask, rows = where.own(
        ((works[:-1], draws, buffers), weights, mask, where.rows(clients))
    )
    old = tree.take(state.clients, rows)
    visit, inputs = stacks.received(algorithm, state.server, local, shared)
    mean, (new, measured, received) = execution(visit, inputs, (*visits, old), local_weights)
    if selector is not None:
        known = called_part(
            algorithm, "selection.learn", selected.state, clients, received, arrived
        )
        known = checked_state("selection.learn", known, state.selection.state)
        selected = after_visits(selected, known, state.selection, mask.any())
        if selector.unbiased and total is not None:
            mean = tree.scale(weights.sum() / jnp.where(total > 0, total, 1), mean)
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
    updated = called_part(algorithm, "update", state.server, mean, round)
    updated = checked_state("update", updated, state.server)
    check_precision("update", updated, state.server, state.server.params)
    server = tree.where(weights.sum() <= 0, state.server, updated)
    finite = tree.all_finite(server)
    done = state.round + 1
    diverged_at = jnp.where((state.diverged_at == 0) & ~finite, done, state.diverged_at)
    update = Update(state.server, server, mean, round)
    measured |= probed("server", probes.server, update)
    new_state = RunState(done, server, new_clients, past, diverged_at, selected)
    return new_state, measured | probed("run", probes.run, new_state)


def _in_32_bits(now: Timeline) -> Timeline:
    """Returns a round whose integers are those of 32 bits that the engine counts in.

    In double precision NumPy's integers, which lists become, have 64.
    """
    names = ("clients", "version", "num_steps", "first_step", "write_buffer", "read_buffer")
    known = {name: getattr(now, name) for name in names}
    cast = {n: jnp.asarray(x).astype(jnp.int32) for n, x in known.items() if x is not None}
    return dataclasses.replace(now, **cast)


def works_of(task: Task, now: Timeline, round: Array, keys: Array) -> Work:
    """Returns the visits of a round; ``now`` is its part of the timeline, with leaves ``[S]``."""
    now = _in_32_bits(now)
    clients = jnp.asarray(now.clients)
    return Work(
        round=jnp.broadcast_to(round, clients.shape),
        client=clients,
        # Empty slots do no steps.
        num_steps=jnp.where(jnp.asarray(now.mask), now.num_steps, 0),
        num_examples=entries(task.num_examples, clients),
        staleness=round - now.version,
        key=keys,
        max_steps=now.max_steps,
    )


def weights_of(weighting: Weighting, works: Work, arrived: Array) -> Array:
    """Returns the weights of a round's uploads, 0 for slots without one."""
    expected = f"a function that returns weights [{arrived.shape[0]}]"
    weights = called("weighting", "the round's visits", expected, weighting, works)
    weights = checked_weights(weights, arrived.shape[0])
    # The mean leaves out uploads of weight 0: its divisor must not have a derivative there alone.
    return jnp.where(arrived & (weights != 0), weights, 0)


def weights_of_clients(task: Task, weighting: Weighting, max_steps: int) -> Array:
    """Returns the clients' weights ``[M]``, in visits of the task's numbers of steps."""
    clients = jnp.arange(task.num_clients, dtype=jnp.int32)
    zeros = jnp.zeros_like(clients)
    keys = jnp.broadcast_to(jax.random.key(0), clients.shape)
    steps, examples = (entries(x, clients) for x in (task.num_steps, task.num_examples))
    works = Work(zeros, clients, steps.astype(jnp.int32), examples, zeros, keys, max_steps)
    return weights_of(weighting, works, jnp.ones(clients.shape, bool))


def share_of(
    algorithm: FedAlgorithm, task: Task, weighting: Weighting, weights: Array, max_steps: int
) -> Array | None:
    """Returns the part of all clients' weight that the weights of a round's uploads have.

    None: the clients' number counts, since the weights are equal or the algorithm has no mean over
    all clients.
    """
    if weighting is uniform_weights or algorithm.requires.mean_of_states is None:
        return None
    every = weights_of_clients(task, weighting, max_steps)
    real = jnp.result_type(float)
    return weights.astype(real).sum() / every.astype(real).sum()


def weights_by_round(task: Task, part: Timeline, weighting: Weighting, first: int = 0) -> Array:
    """Returns the weights ``[T, S]`` of rounds from ``first`` on, with keys that no run has."""
    num_rounds = part.num_rounds
    rounds = first + jnp.arange(num_rounds, dtype=jnp.int32)
    key = jax.random.fold_in(jax.random.key(0), first)

    def of_round(now: Timeline, round: Array, keys: Array) -> Array:
        return weights_of(weighting, works_of(task, now, round, keys), jnp.asarray(now.arrived))

    return jax.vmap(of_round)(part, rounds, jax.random.split(key, (num_rounds, part.cohort_size)))


def placement_of(task: Task) -> Placement:
    """Returns the placement of a task; without one all rows are together."""
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
