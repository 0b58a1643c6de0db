r"""Noise of DP-FTRL by tree aggregation.

References:
    Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, "Practical and Private (Deep) Learning without
        Sampling or Shuffling", 2021, https://arxiv.org/abs/2103.00039.
    Honaker, "Efficient Use of Differentially Private Binary Trees", 2015 (efficient estimates).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_count, import_extra
from fedjax_sim.types import Timeline, Upload, specified
from fedjax_sim.wrappers.privacy.events import Mechanism
from fedjax_sim.wrappers.privacy.noise import NoiseLaw, normal
from fedjax_sim.wrappers.privacy.participation import (
    check_independent_of_data,
    num_draws,
    repeated_client,
)

_FIXED_CLIP = "a node's noise counts in several rounds, whose uploads must have the same bound"


class TreeState(NamedTuple):
    words: Array  # [2] uint32: seed of all nodes, from the key of the first round
    step: Array  # int    draws so far
    nodes: Upload  # efficient estimates: noise of the last complete node per level, [depth, ...]


@specified
def tree_aggregation(num_rounds: int, *, efficient: bool = False) -> NoiseLaw:
    r"""Noise whose sum over the first t rounds is that of few nodes of a binary tree.

    The node (l, j) covers the rounds :math:`j 2^l + 1, \ldots, (j + 1) 2^l` and has independent
    noise :math:`N(0, z^2 C^2 I)`.  The sum :math:`N_t` of the noise of the first t rounds is that
    of the nodes in the binary expansion of t, so its variance is popcount(t) times
    :math:`z^2 C^2` and not t times; round t adds :math:`y_t = N_t - N_{t - 1}`.  A client that
    takes part once changes the :math:`\lfloor \log_2 T \rfloor + 1` nodes above its round.

    Rounds in which nobody reports do not count.  After T rounds a fresh tree begins, so a client
    may take part once per tree (once per pass over the clients).

    Args:
        num_rounds: T, rounds of one tree.
        efficient: estimate each node from its own noise and from its descendants' as well
            (Honaker): the variance of a node of level l falls to :math:`1 / (2 - 2^{-l})`, at the
            same privacy.  The state has one model per level; without, there is none.

    Raises:
        ValueError: no rounds.

    Example:
        >>> from fedjax_sim.timelines import cyclic
        >>> timeline = cyclic(8, num_clients=16, cohort_size=2, num_steps=1)
        >>> noise = tree_aggregation(num_rounds=8)
        >>> mechanism = noise.mechanism(2.0, timeline, num_clients=16)
        >>> mechanism.event.event.step_counts, mechanism.event.count
        (8, 1)
    """
    check_count(1, num_rounds=num_rounds)
    depth = int(num_rounds).bit_length()

    def init(like: Upload) -> TreeState:
        zero = jnp.zeros((), jnp.int32)
        levels = jax.tree.map(lambda x: jnp.zeros((depth, *x.shape), x.dtype), like)
        return TreeState(jnp.zeros(2, jnp.uint32), zero, levels if efficient else ())

    def draw(
        key: Array, state: TreeState, std: Array | float, number: Array, like: Upload
    ) -> tuple[Upload, TreeState]:
        # Kept in the state, since the round's key differs between rounds and no function has the
        # run's.
        words = jnp.where(state.step == 0, jax.random.bits(key, (2,), jnp.uint32), state.words)
        seed = jax.random.fold_in(jax.random.key(words[0]), words[1])
        seed = jax.random.fold_in(seed, state.step // num_rounds)  # a fresh tree per pass
        t = state.step % num_rounds + 1
        if efficient:
            unit, nodes = _efficient(seed, t, state.nodes, like)
        else:
            unit, nodes = _difference(seed, t, like), ()
        return tree.scale(std, unit), TreeState(words, state.step + 1, nodes)

    def check(timeline: Timeline, num_clients: int) -> None:
        _check(timeline, num_rounds)

    def mechanism(noise_multiplier: float, timeline: Timeline, num_clients: int) -> Mechanism:
        check(timeline, num_clients)
        return _mechanism(noise_multiplier, timeline, num_rounds)

    return NoiseLaw(init, draw, mechanism, _FIXED_CLIP, check)


def _node(seed: Array, level: Array, position: Array, like: Upload) -> Upload:
    """Returns the unit noise of a node: the ``position``-th one of its level."""
    return normal(jax.random.fold_in(jax.random.fold_in(seed, level), position), 1.0, like)


def _completed(t: Array) -> Array:
    """Returns the level of the largest node that round t completes, the trailing zeros of t."""
    return jax.lax.population_count((t & -t) - 1)


def _difference(seed: Array, t: Array, like: Upload) -> Upload:
    """Returns N_t - N_(t - 1): the node that t completes, minus the nodes that it replaces."""
    top = _completed(t)

    def subtract(level: Array, total: Upload) -> Upload:
        return tree.sub(total, _node(seed, level, ((t - 1) >> level) - 1, like))

    return jax.lax.fori_loop(0, top, subtract, _node(seed, top, (t >> top) - 1, like))


def _efficient(seed: Array, t: Array, nodes: Upload, like: Upload) -> tuple[Upload, Upload]:
    """Returns N_t - N_(t - 1) of efficient estimates, and the nodes after round t."""
    top = _completed(t)

    def climb(level: Array, carry: tuple[Upload, Upload]) -> tuple[Upload, Upload]:
        estimate, replaced = carry
        left = tree.take(nodes, level - 1)
        below = tree.add(left, estimate)
        # Weights by inverse variances; the variance of level l is 1 / (2 - 2^-l).
        share = 1 / (2 - jnp.exp2(-level.astype(jnp.float32)))
        above = _node(seed, level, (t >> level) - 1, like)
        estimate = tree.add(tree.scale(share, above), tree.scale(1 - share, below))
        return estimate, tree.add(replaced, left)

    leaf = _node(seed, jnp.zeros((), jnp.int32), t - 1, like)
    start = leaf, tree.zeros_like(leaf)
    estimate, replaced = jax.lax.fori_loop(1, top + 1, climb, start)
    nodes = jax.tree.map(lambda x, y: x.at[top].set(y), nodes, estimate)
    return tree.sub(estimate, replaced), nodes


def _check(timeline: Timeline, num_rounds: int) -> None:
    check_independent_of_data(timeline)
    repeated = repeated_client(timeline, num_rounds)
    if repeated is not None:
        client, number = repeated
        raise ValueError(
            f"timeline has client {client} more than once in tree {number} of {num_rounds} rounds; "
            "expected each client at most once per tree, as the accounting requires"
        )


def _mechanism(noise_multiplier: float, timeline: Timeline, num_rounds: int) -> Mechanism:
    """Returns the mechanism: one tree per pass, each client at most once per tree."""
    dp = import_extra("dp_accounting", "privacy")
    trees, rest = divmod(num_draws(timeline), num_rounds)
    event = dp.SelfComposedDpEvent(
        dp.SingleEpochTreeAggregationDpEvent(noise_multiplier, num_rounds), trees
    )
    if rest:
        last = dp.SingleEpochTreeAggregationDpEvent(noise_multiplier, rest)
        event = dp.ComposedDpEvent([event, last]) if trees else last
    words = f"each client at most once per tree of {num_rounds} rounds, no amplification"
    return Mechanism(event, "zero_out", words)
