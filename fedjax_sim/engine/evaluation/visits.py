"""Visits of clients in evaluations: the local work of a round that changes nothing."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.engine.evaluation.state import RunContext
from fedjax_sim.engine.execution.offload import PresentData
from fedjax_sim.tree import entries
from fedjax_sim.types import Message, Oracle, PyTree, Round, Task, Work


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
    round = Round(context.state.round, jnp.array(0, jnp.int32), task.num_clients, key)
    return Broadcast(algorithm.broadcast(context.state.server, round), key)


def visits(
    task: Task, max_steps: int, round: Array, key: Array
) -> Callable[[Array], tuple[Oracle, Work]]:
    """Returns the function from a client's number to the oracle and the work of one visit."""
    loaded = any(isinstance(part, PresentData) for part in getattr(task.oracle, "args", ()))
    if task.placement is not None or loaded:
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
            client=client,
            num_steps=jnp.minimum(entries(task.num_steps, client), max_steps),
            num_examples=entries(task.num_examples, client),
            staleness=jnp.zeros_like(round),
            key=jax.random.fold_in(own, 1),
            max_steps=max_steps,
        )
        return task.oracle(client, jax.random.fold_in(own, 0), max_steps), work

    return visit


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
