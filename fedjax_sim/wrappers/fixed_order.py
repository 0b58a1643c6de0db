"""Means whose order of summation does not depend on the execution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_is_algorithm
from fedjax_sim.tree import mean_from_sum, weighted
from fedjax_sim.types import Aggregation, FedAlgorithm, PyTree, Round, ServerState, Stack, specified
from fedjax_sim.wrappers.received import stack_bytes

__all__ = ["fixed_order"]


@specified
def fixed_order(algorithm: FedAlgorithm) -> FedAlgorithm:
    r"""Adds the uploads of a round pairwise over the clients' numbers, for every execution.

    The weighted mean :math:`\sum_i w_i u_i / \sum_i w_i` is the one of the algorithm; only its
    rounding changes.  Its sums are those of the tree

    .. math:: s[a, b) = s[a, m) + s[m, b), \qquad m = (a + b) / 2, \qquad b - a = 2^k

    over intervals of client numbers, where an interval without uploads adds nothing.  So neither
    the order of the slots, empty slots, chunks, nor devices change the order of the sums, and the
    relative error grows with the logarithm of the number of clients.

    The uploads of a round are in memory together, cohort x parameters, on every device.  A client's
    own computation is compiled with its surroundings, so it may still round differently under
    another execution; the documentation has a table of what is equal.

    Args:
        algorithm: any algorithm without an aggregation of its own.

    Raises:
        ValueError: the algorithm has an aggregation.

    Source: pairwise summation, Higham, "The Accuracy of Floating Point Summation", 1993.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.from_clients([{"x": np.float32([x])} for x in (1, 1e8, -1e8)])
        >>> loss = lambda w, batch, key: (w - batch["x"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 3, task.num_steps), np.float32(0))
        >>> state, _ = fs.run(fixed_order(fs.fedavg(1.0)), setup, jax.random.key(0))
        >>> float(state.server.params)  # (1 + 1e8) - 1e8 in single precision
        0.0
    """
    check_is_algorithm(algorithm)
    if algorithm.aggregation is not None:
        raise ValueError("algorithm has an aggregation already; expected one without")

    def update(state: ServerState, stack: Stack, round: Round) -> ServerState:
        weights = stack.mean_weights
        slots = jnp.arange(weights.shape[0], dtype=stack.clients.dtype)
        # Numbers that no client has: what did not arrive adds zeros, after all other sums.
        numbers = jnp.where(stack.arrived, stack.clients, round.num_clients + slots)
        total, weight = pairwise_sum((weighted(stack.uploads, weights), weights), numbers)
        return algorithm.update(state, mean_from_sum(total, weight, stack.uploads), round)

    return algorithm._replace(update=update, aggregation=Aggregation(num_bytes=stack_bytes))


def pairwise_sum(values: PyTree, numbers: Array) -> PyTree:
    """Returns sums over the first axis, in the order of a binary tree over distinct numbers."""
    order = jnp.argsort(numbers)
    values = jax.tree.map(lambda leaf: leaf[order], values)
    sorted_numbers = numbers[order]
    # Neighbours join at the level of the highest bit in which they differ: level[j] is that of the
    # rows up to j and those from j + 1 on.
    differing = (sorted_numbers[1:] ^ sorted_numbers[:-1]).astype(jnp.uint32)
    level = 31 - jax.lax.clz(differing).astype(jnp.int32)
    boundary = jnp.arange(level.shape[0], dtype=jnp.int32)
    # The left part begins after the last boundary before j that joins later.
    later = (boundary[None] < boundary[:, None]) & (level[None] > level[:, None])
    begin = jnp.where(later, boundary[None] + 1, 0).max(axis=1, initial=0)
    sequence = jnp.argsort(level)

    def join(i: Array, values: PyTree) -> PyTree:
        left, right = begin[sequence[i]], boundary[sequence[i]] + 1
        return jax.tree.map(lambda leaf: leaf.at[left].add(leaf[right]), values)

    values = jax.lax.fori_loop(0, level.shape[0], join, values)
    # Adding 0 turns -0, which an empty slot would have turned to 0, into 0.
    return jax.tree.map(lambda leaf: leaf[0] + jnp.zeros((), leaf.dtype), values)
