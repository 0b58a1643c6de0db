"""Timelines from others: rounds that are repeated, and random numbers of steps per round."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_count, check_key, check_one_timeline, check_probability
from fedjax_sim.tree import fast
from fedjax_sim.types import Timeline, plain_integers


@plain_integers
def repeat_rounds(timeline: Timeline, times: int) -> Timeline:
    """Timeline in which every cohort takes part in several rounds in a row.

    The repetitions of a round divide its simulated time evenly.

    Args:
        timeline: synchronous rounds ``[T, S]``.
        times: repetitions of each round.

    Raises:
        ValueError: fewer than one repetition, or a timeline that is not synchronous or a batch.

    Example:
        >>> import fedjax_sim as fs
        >>> timeline = repeat_rounds(fs.timelines.cyclic(2, 4, 2, num_steps=5), 2)
        >>> timeline.clients.tolist(), timeline.time.tolist()
        ([[0, 1], [0, 1], [2, 3], [2, 3]], [0.5, 1.0, 1.5, 2.0])
    """
    check_count(1, times=times)
    _check_synchronous(timeline)
    rounds = timeline.num_rounds * times
    ends = np.concatenate([[0.0], np.asarray(timeline.time)])
    names = ["clients", "num_steps", "mask"] + ["lost"] * (timeline.lost is not None)
    repeated = {
        name: jnp.repeat(jnp.asarray(getattr(timeline, name)), times, axis=0) for name in names
    }
    version = jnp.broadcast_to(
        jnp.arange(rounds, dtype=jnp.int32)[:, None], (rounds, timeline.cohort_size)
    )
    time = np.interp(np.arange(1, rounds + 1) / times, np.arange(len(ends)), ends)
    rule = timeline.sampling
    if rule is not None:
        rule = dataclasses.replace(rule, repeats=rule.repeats * times)
    return dataclasses.replace(timeline, **repeated, version=version, time=time, sampling=rule)


@plain_integers
def geometric_steps(key: Array, timeline: Timeline, probability: float, max_steps: int) -> Timeline:
    r"""Timeline whose rounds have random numbers of local steps, equal for all clients of a round.

    .. math:: P(K = k) = p (1 - p)^{k - 1}, \qquad k = 1, 2, \ldots

    cut at ``max_steps``: all clients communicate after a step with probability p.  Round t draws
    from ``fold_in(key, t)``.

    Args:
        key: decides the numbers of steps.
        timeline: synchronous rounds ``[T, S]``; its numbers of steps are replaced.
        probability: p, in (0, 1].
        max_steps: the largest number of steps, for example ``ceil(10 / p)``, which is cut in
            5 of 100,000 rounds.

    Raises:
        ValueError: a probability outside of (0, 1], fewer than one step, or a timeline that is not
            synchronous or a batch.

    Example:
        >>> import fedjax_sim as fs
        >>> rounds = fs.timelines.full(1000, 2, num_steps=1)
        >>> timeline = geometric_steps(jax.random.key(0), rounds, 0.25, 40)
        >>> bool((timeline.num_steps[:, 0] == timeline.num_steps[:, 1]).all())
        True
        >>> bool(abs(timeline.num_steps.mean() - 4) < 0.3)
        True
    """
    check_key(key)
    check_probability(probability=probability)
    check_count(1, max_steps=max_steps)
    _check_synchronous(timeline)
    rounds = jnp.arange(timeline.num_rounds, dtype=jnp.int32)
    keys = jax.vmap(lambda t: jax.random.fold_in(fast(key), t))(rounds)
    single = jnp.float32(probability)  # equal draws in either precision
    steps = jax.vmap(lambda key: jax.random.geometric(key, single, dtype=jnp.int32))(keys)
    steps = jnp.minimum(steps, max_steps)[:, None]
    shape = (timeline.num_rounds, timeline.cohort_size)
    return dataclasses.replace(
        timeline, num_steps=jnp.broadcast_to(steps, shape), max_steps=max_steps
    )


def _check_synchronous(timeline: Timeline) -> None:
    check_one_timeline(timeline.clients)
    if timeline.max_staleness or timeline.own_models or timeline.first_step is not None:
        raise ValueError(
            f"timeline has a staleness of up to {timeline.max_staleness}, or clients that continue "
            "earlier visits; expected synchronous rounds, as from timelines.uniform"
        )
