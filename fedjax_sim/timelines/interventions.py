"""Interventions on a timeline: some clients are removed, delayed, or lose their uploads.

Every function returns a timeline with the same cohorts and the same draws, so that a comparison
with the unchanged timeline has common random numbers.  Random failures are in
:mod:`fedjax_sim.timelines.failures`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.timelines.buffers import check_delay, delayed
from fedjax_sim.types import Timeline, plain_integers

_ALL = slice(None)


@plain_integers
def remove_clients(
    timeline: Timeline, clients: int | Sequence[int] | np.ndarray, rounds: slice = _ALL
) -> Timeline:
    """Empties the slots of some clients: they do no work, and nobody replaces them.

    Args:
        timeline: ``[T, S]`` or a batch ``[n, T, S]``.
        clients: a client's number, or several.
        rounds: rounds of the timeline in which they are absent; default: all.

    Raises:
        ValueError: numbers that are not integers from 0 on.

    Example:
        >>> import fedjax_sim as fs
        >>> rounds = fs.timelines.full(3, 3, num_steps=1)
        >>> remove_clients(rounds, 1, slice(1, None)).mask.astype(int).tolist()
        [[1, 1, 1], [1, 0, 1], [1, 0, 1]]
    """
    # Filling the slots would change the draws of the other clients.
    slots = _slots(timeline, clients, rounds)
    return dataclasses.replace(timeline, mask=timeline.mask & ~slots, sampling=None)


@plain_integers
def lose_uploads_of(
    timeline: Timeline, clients: int | Sequence[int] | np.ndarray, rounds: slice = _ALL
) -> Timeline:
    """Loses the uploads of some clients.

    They do their work and their states move; the server never sees the result.

    Args:
        timeline, clients, rounds: as in :func:`remove_clients`.

    Raises:
        ValueError: as :func:`remove_clients`.

    Example:
        >>> import fedjax_sim as fs
        >>> rounds = fs.timelines.full(2, 3, num_steps=1)
        >>> lose_uploads_of(rounds, [0, 2]).arrived.astype(int).tolist()
        [[0, 1, 0], [0, 1, 0]]
    """
    slots = _slots(timeline, clients, rounds)
    lost = slots if timeline.lost is None else timeline.lost | slots
    return dataclasses.replace(timeline, lost=lost, sampling=None)


@plain_integers
def delay_clients(
    timeline: Timeline, clients: int | Sequence[int] | np.ndarray, delay: int, rounds: slice = _ALL
) -> Timeline:
    """Makes some clients slow: their reports come from visits that began ``delay`` rounds earlier.

    Their ``version`` is smaller by ``delay``, and at least the timeline's smallest version, so that
    a timeline that begins at a later round needs no earlier broadcast.

    Args:
        timeline, clients, rounds: as in :func:`remove_clients`.
        delay: number of rounds; ``max_staleness`` grows by it.

    Raises:
        ValueError: as :func:`remove_clients`; a delay that is no integer or below 1; clients that
            start from their own models; a part of a timeline with allocated buffers.

    Example:
        >>> import fedjax_sim as fs
        >>> late = delay_clients(fs.timelines.full(4, 2, num_steps=1), 1, delay=2)
        >>> late.version.tolist(), late.max_staleness
        ([[0, 0], [1, 0], [2, 0], [3, 1]], 2)
    """
    check_delay(timeline, delay)
    version = timeline.version
    earliest = version.min()
    if timeline.num_buffers and earliest > 0:
        raise ValueError(
            f"timeline begins after broadcast {earliest} and has allocated buffers; expected a "
            "whole timeline, or a part of one without staleness"
        )
    xp = jnp if isinstance(version, Tracer) else np
    slots = _slots(timeline, clients, rounds)
    older = xp.where(slots, xp.maximum(version - delay, earliest), version)
    return delayed(timeline, older, delay)


def _slots(
    timeline: Timeline, clients: int | Sequence[int] | np.ndarray, rounds: slice
) -> np.ndarray | Array:
    """Returns True for the slots of the clients in the rounds, as ``timeline.clients``."""
    numbers = np.atleast_1d(np.asarray(clients))
    if numbers.dtype.kind not in "iu" or (numbers < 0).any():
        raise ValueError(f"clients is {clients}; expected numbers of clients, 0, 1, ...")
    there = np.zeros((timeline.num_rounds, 1), bool)
    there[rounds] = True
    if isinstance(timeline.clients, Tracer):
        return jnp.isin(timeline.clients, numbers) & there
    return np.isin(np.asarray(timeline.clients), numbers) & there
