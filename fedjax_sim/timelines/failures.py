r"""Failures of communication: uploads that are lost, and visits that start from an old model.

Both functions transform any timeline.  Whether the report of client i in round t fails is decided
by a uniform number :math:`U_{ti}` that depends on the key, t and i only: it fails if
:math:`U_{ti} < p_i`.  So the same reports fail in every timeline that has them, and the failures
at a probability contain the failures at every smaller one.  A comparison over probabilities, for
example a sweep whose ``make_setup`` takes the probability, has common random numbers.

Uploads that arrive with wrong values are :func:`fedjax_sim.wrappers.robust.attacks.corrupted`.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.checks import check_key, check_one_timeline, has_real_numbers
from fedjax_sim.timelines.buffers import check_delay, delayed
from fedjax_sim.timelines.coins import occurs
from fedjax_sim.timelines.rules import thinned
from fedjax_sim.tree import fast
from fedjax_sim.types import Scalar, Timeline, plain_integers


def lose_uploads(key: Array, timeline: Timeline, probability: Scalar | np.ndarray) -> Timeline:
    r"""Loses each upload independently with the given probability.

    The client downloads the model and does its work, and its state moves as if the upload had
    arrived, since it receives no confirmation.  The server computes the mean over the uploads that
    arrive, and counts these only.  A round whose uploads are all lost does not change the server.
    A client that does no work at all belongs to :func:`~fedjax_sim.timelines.dropout`.

    For an algorithm without client state, a lost upload and a dropout give the same models.

    Args:
        key: decides which uploads are lost.
        timeline: any timeline ``[T, S]``; uploads that it loses already stay lost.
        probability: one number, or one per client ``[M]``; may be traced.

    Raises:
        ValueError: a probability outside [0, 1], or a vector with fewer entries than clients.

    Example:
        >>> import fedjax_sim as fs
        >>> rounds = fs.timelines.full(200, 5, num_steps=1)
        >>> lossy = lose_uploads(jax.random.key(0), rounds, np.array([0, 0, 0.3, 0.3, 1]))
        >>> share = lossy.lost.mean(axis=0)
        >>> float(share[0]), bool(0.2 < share[2] < 0.4), float(share[4])
        (0.0, True, 1.0)
    """
    fails = _fails(key, timeline, probability)
    lost = fails if timeline.lost is None else fails | jnp.asarray(timeline.lost)
    sampling = None
    if not isinstance(probability, np.ndarray) and np.ndim(probability) == 0:
        sampling = thinned(timeline.sampling, 1 - probability)
    return dataclasses.replace(timeline, lost=lost, sampling=sampling)


@plain_integers
def delay_uploads(
    key: Array, timeline: Timeline, probability: Scalar | np.ndarray, delay: int = 1
) -> Timeline:
    r"""Makes each report a late one, independently with the given probability.

    A late report in round t comes from a visit that began ``delay`` rounds earlier than in the
    given timeline: its ``version`` is smaller by ``delay``, and at least 0.  The cohorts and the
    number of reports per round do not change.  In a real system, where an upload arrives ``delay``
    rounds after its round, that number fluctuates; the law of a single report is the same if
    cohorts are drawn independently per round.

    Two calls add up: with delays 1 and 2, reports are 0, 1, 2 or 3 rounds late.

    Args:
        key: decides which reports are late.
        timeline: any timeline ``[T, S]`` whose clients start from a broadcast.
        probability: one number, or one per client ``[M]``; may be traced.
        delay: number of rounds d.  ``max_staleness`` grows by d for every probability, 0 included,
            so that the setups of a sweep over the probability share one program.

    Raises:
        ValueError: a probability outside [0, 1], a vector with fewer entries than clients, a delay
            below 1, or a timeline whose clients start from their own models.

    Example:
        >>> import fedjax_sim as fs
        >>> rounds = fs.timelines.full(4, 2, num_steps=1)
        >>> late = delay_uploads(jax.random.key(0), rounds, np.array([0.0, 1.0]), delay=2)
        >>> late.version.tolist(), late.max_staleness
        ([[0, 0], [1, 0], [2, 0], [3, 1]], 2)
    """
    check_delay(timeline, delay)
    late = _fails(key, timeline, probability)
    version = jnp.asarray(timeline.version)
    # An older version in the same slot: a report that moves to a later round would collide with the
    # client's next one.
    return delayed(timeline, jnp.where(late, jnp.maximum(version - delay, 0), version), delay)


def _fails(key: Array, timeline: Timeline, probability: Scalar | np.ndarray) -> Array:
    """Returns True, with the given probability, for every slot ``[T, S]``."""
    clients = jnp.asarray(timeline.clients)
    check_key(key)
    check_one_timeline(clients)
    _check_probability(probability, timeline)
    each = jnp.asarray(probability)
    return occurs(_words(key, clients), each[clients] if each.ndim else each)


@jax.jit
def _words(key: Array, clients: Array) -> Array:
    """Returns a random 32-bit word per round and client, for clients ``[T, S]``."""

    def draw(number: Array, client: Array) -> Array:
        of_round = jax.random.fold_in(fast(key), number)
        return jax.random.bits(jax.random.fold_in(of_round, client), (), jnp.uint32)

    rounds = jnp.arange(clients.shape[0], dtype=jnp.int32)
    return jax.vmap(jax.vmap(draw, (None, 0)))(rounds, clients)


def _check_probability(probability: Scalar | np.ndarray, timeline: Timeline) -> None:
    shape = np.shape(probability)
    if len(shape) > 1:
        raise ValueError(f"probability has shape {shape}; expected one number or [M]")
    if shape and not isinstance(timeline.clients, Tracer):
        last = int(np.asarray(timeline.clients).max())
        if last >= shape[0]:
            raise ValueError(
                f"probability has {shape[0]} entries; expected one per client, and the timeline "
                f"has client {last}"
            )
    if isinstance(probability, Tracer):
        return
    values = np.asarray(probability)
    if not (has_real_numbers(values) and ((values >= 0) & (values <= 1)).all()):
        raise ValueError(f"probability is {probability}; expected numbers in [0, 1]")
