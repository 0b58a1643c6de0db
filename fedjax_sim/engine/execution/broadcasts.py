"""Buffers of past broadcasts, for clients that start from an old model.

A timeline assigns buffers (:func:`~fedjax_sim.timelines.allocate_buffers`), or the last
``max_staleness + 1`` broadcasts are kept in a ring.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.types import Message, PyTree, Timeline


def num_buffers(timeline: Timeline) -> int:
    """Returns the number of buffers; 0 for a synchronous timeline."""
    return timeline.num_buffers or (timeline.max_staleness and timeline.max_staleness + 1)


def empty_buffers(timeline: Timeline, message: PyTree) -> Message:
    """Returns buffers for messages with the given shapes, leaves ``[buffers, ...]``.

    The values do not matter: a version is written before it is read.  ``()`` without buffers.
    """
    count = num_buffers(timeline)
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), message) if count else ()


def store_broadcast(
    past: Message, message: Message, round: Array, now: Timeline
) -> tuple[Message, Array | None]:
    """Writes a broadcast; returns the buffers and each slot's, ``[S]``, or None without buffers."""
    count = num_buffers(now)
    if not count:
        return past, None
    if now.num_buffers:
        write_to, read_from = jnp.asarray(now.write_buffer), jnp.asarray(now.read_buffer)
    else:
        write_to, read_from = round % count, now.version % count
    past = jax.tree.map(lambda p, m: p.at[write_to].set(m, mode="drop"), past, message)
    return past, jnp.asarray(read_from)
