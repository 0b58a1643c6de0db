"""Sampling in proportion to losses or norms, with unbiased weights.

References:
    Chen, Horvath, Richtarik, "Optimal Client Sampling for Federated Learning", TMLR 2022 (the
        probabilities).
    Madow, "On the Theory of Systematic Sampling, II", Annals of Mathematical Statistics 1949 (a
        sample of fixed size with given probabilities).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_count
from fedjax_sim.tree import fast, usual
from fedjax_sim.types import (
    Candidates,
    Choice,
    Oracle,
    Params,
    PyTree,
    Round,
    Selector,
    Work,
    specified,
)
from fedjax_sim.wrappers.selection.draws import uniforms
from fedjax_sim.wrappers.selection.scores import gradient_norm

__all__ = ["inclusion_probabilities", "proportional"]


@specified
def proportional(
    size: int, score: Callable[[Params, Oracle, Work], Array] = gradient_norm
) -> Selector:
    r"""Returns the selector of ``size`` candidates, drawn in proportion to scores.

    Candidate i, of weight :math:`w_i`, takes part with probability :math:`p_i`, proportional to
    :math:`w_i s_i` and at most 1, and the server's mean is

    .. math:: \frac{1}{\sum_{j} w_j} \sum_{i \in S} \frac{w_i}{p_i} \Delta_i, \qquad
        E\Bigl[\,\cdot\,\Bigr] = \frac{\sum_j w_j \Delta_j}{\sum_j w_j}

    over all candidates j.  With :math:`s_i = \lVert \nabla F_i(x)\rVert` and one full local step
    these are the probabilities of the least variance.  In every round exactly ``size`` candidates
    take part: they are drawn systematically, in a random order.  The paper draws independently,
    with the same probabilities.  Equal weighted scores give uniform sampling without replacement.

    Args:
        size: m, clients that take part.
        score: score of a candidate, not negative: :func:`gradient_norm`, :func:`full_loss` or
            another function of the server's model, the oracle and the visit.  A score that is
            negative or not finite makes the model NaN.

    Raises:
        ValueError: a size below 1, or a score that is no function.

    Example:
        >>> proportional(5)
        proportional(size=5, score=gradient_norm)
    """
    check_count(1, size=size)
    if not callable(score):
        raise ValueError(
            f"score is {score!r:.60}; expected a function, such as selection.gradient_norm"
        )

    def choose(state: PyTree, candidates: Candidates, round: Round) -> tuple[Choice, PyTree]:
        scores = candidates.weights * candidates.scores.astype(candidates.weights.dtype)
        # A score without a meaning may belong to a client that would not be chosen, and an infinite
        # one leaves no probabilities.
        valid = (scores >= 0) & (scores < jnp.inf)
        wrong = (candidates.present & ~valid).any()
        scores = jnp.where(wrong, 1, scores)
        # An empty slot is never chosen; a lost upload is chosen as if its weight were 0.
        p = inclusion_probabilities(scores, candidates.present, size)
        chosen = systematic(round.key, candidates.clients, p)
        factors = jnp.where(wrong, jnp.nan, 1 / jnp.where(p > 0, p, 1))
        return Choice(chosen, factors), state

    return Selector(choose, size, score=score, unbiased=True)


def inclusion_probabilities(scores: Array, present: Array, size: int) -> Array:
    r"""Returns the probabilities ``[S]`` of taking part, with sum ``size``, or all 1.

    .. math:: p_i = \min(1, c\, s_i), \qquad \sum_i p_i = m

    Scores of 0 share what positive ones, of which there are fewer than m, leave.

    Args:
        scores: ``[S]``, not negative.
        present: ``[S]`` bool, False for empty slots, which have probability 0.
        size: m.

    Example:
        >>> scores = jnp.array([1.0, 1.0, 2.0, 9.0])
        >>> inclusion_probabilities(scores, scores > 0, 2).tolist()
        [0.25, 0.25, 0.5, 1.0]
    """
    s = jnp.where(present & (scores > 0), scores, 0)
    order = jnp.argsort(-s)
    rank, ordered = jnp.argsort(order), s[order]
    rest = jnp.cumsum(ordered[::-1])[::-1]  # the sum from the k-th largest score on
    left = (size - jnp.arange(s.shape[0])).astype(s.dtype)
    # Optimal probabilities: the k largest have 1, for the smallest k that leaves no other above.
    k = jnp.argmax(left * ordered <= rest)
    p = left[k] * s / jnp.where(rest[k] > 0, rest[k], 1)
    p = jnp.where(rank < k, 1, jnp.minimum(1, p))
    positive = (s > 0).sum()
    zeros = jnp.maximum(present.sum() - positive, 1).astype(s.dtype)
    shared = jnp.minimum(1, (size - positive).astype(s.dtype) / zeros)
    few = jnp.where(s > 0, 1, jnp.where(present, shared, 0))
    return jnp.where(positive <= size, few, p)


def systematic(key: Array, clients: Array, p: Array) -> Array:
    """Returns a sample ``[S]`` bool with the given probabilities, of which the sum is a count."""
    order_key, start_key = jax.random.split(fast(key))
    order = jnp.argsort(uniforms(usual(order_key), clients, p.dtype))
    start = uniforms(usual(start_key), jnp.zeros(1, jnp.int32), p.dtype)[0]
    return systematic_at(order, start, p)


def systematic_at(order: Array, start: Array, p: Array) -> Array:
    """Returns the clients on whose parts of a line the numbers start, start + 1, ... lie."""
    until = jnp.cumsum(p[order])
    # The sum is a whole number but for rounding.
    until = jnp.minimum(until.at[-1].set(jnp.round(until[-1])), jnp.round(until[-1]))
    numbers = jnp.ceil(until - start)
    taken = numbers > jnp.concatenate([jnp.zeros(1, p.dtype), numbers[:-1]])
    return jnp.zeros(p.shape[0], bool).at[order].set(taken)
