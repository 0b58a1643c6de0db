"""Models of the clients in the middle of an asynchronous run.

Between two contacts a client's model depends only on the client, so a run computes it when the
client reports. The functions here compute the models of all clients from the broadcasts that a run
stores, at the moments that an :class:`~fedjax_sim.timelines.InFlight` describes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

import fedjax_sim as fs
from fedjax_sim.checks import check_key
from fedjax_sim.engine import client_stream
from fedjax_sim.types import Params, Scalar


def held_models(state: fs.RunState, timeline: fs.Timeline, version: Array) -> Params:
    """Last received model of each client, leaves ``[M, ...]``; ``version``: theirs, ``[M]``."""
    if timeline.write_buffer is None:
        raise ValueError(
            "timeline has no buffers; expected "
            "allocate_buffers(timeline, held_versions(timeline, num_clients))"
        )
    version = jnp.asarray(version, jnp.int32)
    buffers = jnp.asarray(timeline.write_buffer)[jnp.minimum(version, state.round - 1)]
    is_new = version == state.round

    def pick(past: Array, new: Array) -> Array:
        mask = jnp.expand_dims(is_new, tuple(range(1, past.ndim)))
        return jnp.where(mask, new, past.at[buffers].get(mode="clip"))

    return jax.tree.map(pick, state.past, state.server.params)


def advance_models(
    models: Params,
    task: fs.Task,
    key: Array,
    *,
    lr: Scalar,
    num_steps: Array,
    first_step: Array,
    max_steps: int,
) -> Params:
    """Models of the clients after their local SGD steps so far, leaves ``[M, ...]``.

    Clients are computed one after another, each with its ``num_steps`` from ``first_step`` on.
    """
    check_key(key)
    if not task.resumable:
        raise ValueError("task draws new minibatches in every visit; expected a stream of them")
    clients = jnp.arange(task.num_clients, dtype=jnp.int32)
    keys = client_stream(key, clients)

    def one(slot: tuple) -> Params:
        model, client, key, steps, first = slot
        oracle = task.oracle(client, key, max_steps, first)
        work = fs.Work(client, client, steps, client, client, key, max_steps)
        return fs.local.local_steps(fs.local.sgd(lr, oracle.grad), model, work)

    counts = (jnp.asarray(x, jnp.int32) for x in (num_steps, first_step))
    return jax.lax.map(one, (models, clients, keys, *counts))


def variance_probe(
    models: Callable[[fs.RunState, Array], Params], flight: fs.timelines.InFlight
) -> Callable[[fs.RunState], Array]:
    r"""Returns a run probe: ``sum_i ||w_i - w||^2`` at the flight's moments, NaN between them.

    Args:
        models: ``(state, moment) -> [M, ...]``, where ``moment`` is a number from 0; for instance
            ``lambda state, l: held_models(state, timeline, flight.version[l])``, or these models
            after :func:`advance_models` with ``flight.num_steps[l]``.
        flight: the moments.
    """
    moments = jnp.asarray(flight.round, jnp.int32)

    def probe(state: fs.RunState) -> Array:
        due = moments == state.round
        unknown = jnp.full((), jnp.nan, jnp.result_type(float))
        return jax.lax.cond(
            due.any(),
            lambda state: fs.diagnostics.potential.client_variance(
                state.server.params, models(state, jnp.argmax(due))
            ).astype(unknown.dtype),
            lambda state: unknown,
            state,
        )

    return probe
