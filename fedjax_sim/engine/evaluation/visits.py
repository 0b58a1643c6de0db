"""Visits of clients in evaluations: the local work of a round that changes nothing."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedjax_sim.engine.evaluation.context import OUTPUTS, RunContext
from fedjax_sim.engine.execution.offload import PresentData
from fedjax_sim.tree import entries, leaves
from fedjax_sim.types import Message, Oracle, Params, PyTree, Round, Task, Work

MOST_MODELS = 16  # of clients, in an evaluation of a function of one model
_SERVER = np.uint32(2**31)  # a number that no client has, also none that never trains


class Broadcast(NamedTuple):
    """Message of the next round, and the key of the visits that follow it."""

    message: Message
    key: Array


def current_broadcast(context: RunContext) -> Broadcast:
    """Returns the message that clients would receive now."""
    algorithm, task = context.algorithm, context.task
    if algorithm is None or task is None or context.key is None:
        raise ValueError(
            "the evaluator receives a state without its algorithm and task; expected "
            "evaluate(evaluator, RunContext(...))"
        )
    key = jax.random.fold_in(context.key, context.state.round)
    own = jax.random.fold_in(key, _SERVER)
    round = Round(context.state.round, jnp.array(0, jnp.int32), task.num_clients, own)
    return Broadcast(algorithm.broadcast(context.state.server, round), key)


def visits(
    task: Task, max_steps: int, round: Array, key: Array, first: int = 0
) -> Callable[[Array], tuple[Oracle, Work]]:
    """Returns the function from a client's number to the oracle and the work of one visit.

    ``first`` is the number that the task's client 0 has in its work: of clients that never train
    one beyond those of the run, so that an algorithm does not take them for these.
    """
    if _is_placed(task):
        raise ValueError(
            "task has a placement, so the training data of all clients are not on one device; "
            "expected a task without one, since the evaluation lets clients do local work"
        )
    if isinstance(task.num_steps, tuple):
        raise ValueError("task.num_steps is empty; expected the local steps of every client")

    def visit(client: Array) -> tuple[Oracle, Work]:
        own = jax.random.fold_in(key, client)
        work = Work(
            round=round,
            client=client + jnp.asarray(first, client.dtype),
            num_steps=jnp.minimum(entries(task.num_steps, client), max_steps).astype(jnp.int32),
            num_examples=entries(task.num_examples, client),
            staleness=jnp.zeros_like(round),
            key=jax.random.fold_in(own, 1),
            max_steps=max_steps,
        )
        return task.oracle(client, jax.random.fold_in(own, 0), max_steps), work

    return visit


def _is_placed(task: Task) -> bool:
    loaded = any(isinstance(part, PresentData) for part in getattr(task.oracle, "args", ()))
    return task.placement is not None or loaded


def keeps_statistics(context: RunContext) -> bool:
    """Returns True for runs whose clients keep their running statistics, all on one device."""
    algorithm, task = context.algorithm, context.task
    if algorithm is None or task is None or context.key is None:
        return False
    statistics = algorithm.requires.statistics
    keeps = statistics is not None and not statistics.uploaded and algorithm.personal is not None
    return keeps and not _is_placed(task) and not isinstance(task.num_steps, tuple)


def mean_over_models(
    evaluate: Callable[[Params], Mapping[str, Any]], context: RunContext
) -> dict[str, Array]:
    """Returns the means of metrics over the models of clients, at most :data:`MOST_MODELS`.

    A model is the server's with the statistics of the client, or the client's personal model.  The
    clients are all, or as many with numbers at equal distances, since every model costs an
    evaluation.
    """
    server, run = context.state.server.params, context.outer or context
    algorithm, task = run.algorithm, run.task
    assert algorithm is not None
    assert task is not None
    assert algorithm.personal is not None
    assert algorithm.requires.statistics is not None
    kept = algorithm.requires.statistics
    if kept.personal and run is not context:
        raise ValueError(
            "evaluation.inner receives an algorithm with personal models, whose clients keep their "
            "running statistics; expected an evaluation without it, of the personal models"
        )
    compute, clients = algorithm.personal, run.state.clients
    message, key = current_broadcast(run)
    visit = visits(task, run.max_steps, run.state.round, key)
    check_states(clients, task.num_clients)
    chosen = np.linspace(0, task.num_clients - 1, min(task.num_clients, MOST_MODELS))

    def of_client(client: Array) -> dict[str, Array]:
        model = compute(message, client_row(clients, client), *visit(client))
        if not kept.personal:
            # The server's model may be another than the one that it sends: a mean over rounds.
            statistics, _ = leaves.split(model, kept.where)
            _, others = leaves.split(server, kept.where)
            model = leaves.join(statistics, others)
        return {name: jnp.asarray(value) for name, value in evaluate(model).items()}

    values = lax.map(of_client, jnp.asarray(chosen.round(), jnp.int32))
    if any(f"/{name}".endswith(f"/{OUTPUTS}") for name in values):
        raise ValueError(
            "setup.eval_fn has scores of pooled examples, and the clients keep their running "
            "statistics, so there is no model of the server; expected personal_evaluator(...), or "
            "running_statistics(..., combine='averaged')"
        )
    # Counts of examples stay integers.
    means = {name: value.mean(0) for name, value in values.items()}
    whole = {name: jnp.issubdtype(value.dtype, jnp.integer) for name, value in values.items()}
    return {
        name: mean.astype(values[name].dtype) if whole[name] else mean
        for name, mean in means.items()
    }


def client_row(table: PyTree, client: Array) -> PyTree:
    """Returns the state of one client from the table of all, or of several from an array."""
    return jax.tree.map(lambda x: jnp.asarray(x)[client], table)


def check_states(clients: PyTree, num_clients: int) -> None:
    """Refuses states that are not those of all clients."""
    rows = {leaf.shape[0] for leaf in jax.tree.leaves(clients)}
    if rows != {num_clients}:
        raise ValueError(
            f"the algorithm keeps states of {sorted(rows)} clients on the device; expected "
            f"{num_clients}, those of the evaluated data: personal models and local work require "
            "client states that are stored on one device"
        )
