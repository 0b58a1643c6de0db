"""Sampling with replacement in proportion to the weights of the setup.

References:
    Li, Huang, Yang, Wang, Zhang, "On the Convergence of FedAvg on Non-IID Data", ICLR 2020,
        scheme I.
"""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_sim.checks import check_count
from fedjax_sim.types import Candidates, Choice, PyTree, Round, Selector, specified
from fedjax_sim.wrappers.selection.draws import uniforms

__all__ = ["multinomial"]


@specified
def multinomial(size: int) -> Selector:
    r"""Returns the selector of ``size`` draws with replacement, in proportion to the weights.

    With :math:`c_i` draws of client i, of weight :math:`w_i`, the server's mean is

    .. math:: \frac{1}{K} \sum_i c_i\, \Delta_i, \qquad
        E\Bigl[\,\cdot\,\Bigr] = \sum_i \frac{w_i}{\sum_j w_j} \Delta_i

    With :func:`~fedjax_sim.timelines.full` and ``weighting=fs.weight_by_examples`` it is scheme I.
    A client that is drawn twice does its work once and counts twice.

    Args:
        size: K, draws per round.

    Raises:
        ValueError: a size below 1.

    Example:
        >>> multinomial(10)
        multinomial(size=10)
    """
    check_count(1, size=size)

    def choose(state: PyTree, candidates: Candidates, round: Round) -> tuple[Choice, PyTree]:
        weights = candidates.weights
        total = weights.sum()
        order = jnp.argsort(candidates.clients)
        until = jnp.cumsum(weights[order])
        draws = uniforms(round.key, jnp.arange(size, dtype=jnp.int32), weights.dtype)
        places = jnp.searchsorted(until, draws * until[-1], side="right")
        counts = jnp.zeros_like(weights).at[order[places]].add(1, mode="drop")
        counts = jnp.where(candidates.present, counts, 0)
        share = size * weights / jnp.where(total > 0, total, 1)  # expected number of draws
        return Choice(counts > 0, counts / jnp.where(weights > 0, share, 1)), state

    return Selector(choose, size, unbiased=True)
