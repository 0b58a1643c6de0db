"""Updates and models of single clients: visits from a run's state whose uploads are discarded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_key
from fedjax_sim.engine import (
    Broadcast,
    Execution,
    RunContext,
    RunState,
    auto,
    client_row,
    current_broadcast,
    evaluation_context,
    visits,
)
from fedjax_sim.tree import entries
from fedjax_sim.types import FedAlgorithm, Params, Setup, Task, Upload
from fedjax_sim.wrappers import received_model

__all__ = ["client_models"]


class Slots(NamedTuple):
    """Clients that are measured, n of them."""

    client: Array  # [n]
    present: Array  # [n] bool; the others count nowhere
    num_steps: Array  # [n] local steps of the visit
    state: Any  # [n, ...] client states


class Shared(NamedTuple):
    """Values that the visits of all clients share."""

    task: Task
    broadcast: Broadcast
    params: Params  # the server's model
    start: Params  # the model that clients receive; FedACG sends another one than the server's


def shared_of(context: RunContext) -> Shared:
    """Returns the values that visits from a state share."""
    broadcast = current_broadcast(context)
    assert context.task is not None
    params = context.state.server.params
    received = received_model(broadcast.message)
    start = received if _form(received) == _form(params) else params
    return Shared(context.task, broadcast, params, start)


def slots_of(context: RunContext, clients: Array) -> Slots:
    """Returns the slots of some clients; those without examples are not present."""
    task: Any = context.task
    present = entries(task.num_examples, clients) > 0
    steps = jnp.minimum(entries(task.num_steps, clients), context.max_steps).astype(jnp.int32)
    return Slots(clients, present, steps, client_row(context.state.clients, clients))


def update_of_visit(context: RunContext) -> Callable[[Shared, Slots], Params]:
    """Returns the function from a slot of one client to its update: received minus local model."""
    algorithm: Any = context.algorithm
    round, max_steps = context.state.round, context.max_steps

    def update(shared: Shared, slot: Slots) -> Params:
        message, key = shared.broadcast
        oracle, work = visits(shared.task, max_steps, round, key)(slot.client)
        work = work._replace(num_steps=jnp.where(slot.present, slot.num_steps, 0))
        upload, _ = algorithm.local(message, slot.state, oracle, work)
        return model_change(algorithm, shared.start, upload)

    return update


def client_models(
    algorithm: FedAlgorithm,
    setup: Setup,
    state: RunState,
    key: Array,
    clients: Sequence[int] | None = None,
    *,
    execution: Execution | None = None,
) -> Params:
    """Returns the models of clients after one visit from a run's state, leaves ``[n, ...]``.

    A model is the received one minus the upload, so after a wrapper that encodes, clips or attacks
    uploads it is what the server receives of it.

    Args:
        algorithm, setup: those of the run.
        state: state of one run, such as ``fs.tree.take(result.state, 0)`` of the first of several
            seeds.
        key: determines the minibatches.
        clients: n numbers; default all.
        execution: strategy over the clients; default :func:`~fedjax_sim.engine.execution.auto` on
            one device.

    Raises:
        ValueError: clients that do not exist; uploads of another form or that are no changes of the
            model (``requires.other_uploads``), such as gradients; examples or states that are
            not on one device.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: (w - batch["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), jnp.array(0.0))
        >>> state, _ = fs.run(fs.fedavg(0.5), setup, jax.random.key(0))  # to 1
        >>> client_models(fs.fedavg(0.5), setup, state, jax.random.key(1)).tolist()
        [1.0, 2.0]
    """
    check_key(key)
    count = setup.task.num_clients
    chosen = np.arange(count) if clients is None else np.asarray(clients)
    valid = chosen.ndim == 1 and chosen.dtype.kind in "iu" and len(chosen) > 0
    if not valid or chosen.min() < 0 or chosen.max() >= count:
        raise ValueError(
            f"clients is {chosen.tolist()}; expected numbers of clients, 0 .. {count - 1}"
        )
    execute = execution or auto(devices=())

    @jax.jit
    def models(task: Task, state: RunState, key: Array) -> Params:
        context = evaluation_context(algorithm, task, setup.timeline, state, key)
        update, shared = update_of_visit(context), shared_of(context)

        def one(shared: Shared, slot: Slots) -> tuple[Upload, Params]:
            return (), tree.sub(shared.start, update(shared, slot))

        slots = slots_of(context, jnp.asarray(chosen, jnp.int32))
        return execute(one, shared, slots, jnp.ones(len(chosen)))[1]

    return models(setup.task, state, key)


def model_change(algorithm: FedAlgorithm, params: Params, upload: Upload) -> Params:
    """Returns the received model minus the local model, from an upload."""
    requires = algorithm.requires
    if (other := requires.other_uploads or requires.kinds_of_uploads) is not None:
        raise ValueError(
            f"algorithm has uploads that do not show a client's model: {other}; expected one whose "
            "uploads are changes of the model, as those of fedavg"
        )
    form = _form(params)
    for part in (upload, *(upload[:1] if isinstance(upload, tuple) else ())):
        if _form(part) == form:
            return tree.sub(params, part) if requires.uploads_models else part
    raise ValueError(
        f"upload has the shapes {jax.tree.map(jnp.shape, upload)}; expected the form of the model, "
        "or this form as its first part"
    )


def _form(x: Any) -> tuple:
    leaves, structure = jax.tree.flatten(x)
    return structure, *map(jnp.shape, leaves)
