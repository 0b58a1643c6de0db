"""Power-of-Choice: the candidates with the largest losses take part.

References:
    Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning",
        AISTATS 2022 ("Client Selection in Federated Learning: Convergence Analysis and
        Power-of-Choice Selection Strategies", 2020).
"""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_choice, check_count
from fedjax_sim.types import Candidates, Choice, PyTree, Round, Selector, specified
from fedjax_sim.wrappers.selection.scores import full_loss, minibatch_loss, visit_loss, written

__all__ = ["power_of_choice"]


@specified
def power_of_choice(size: int, loss: Literal["full", "minibatch", "last"] = "full") -> Selector:
    r"""Returns the selector of the ``size`` candidates with the largest local losses.

    .. math:: S_t = \operatorname*{arg\,max}_{S \subseteq A_t,\ |S| = m} \sum_{k \in S} F_k(x_t)

    for the candidates :math:`A_t` of round t, d of them, which the paper draws without replacement
    in proportion to the clients' data (:func:`~fedjax_sim.timelines.weighted`).  The mean over the
    chosen clients is not reweighted: the method converges faster and to a biased point.  With d = m
    it is sampling by the timeline alone.  Of equal losses those of smaller client
    numbers are chosen.

    Args:
        size: m, clients that take part.
        loss: the loss by which candidates are compared.

            "full": of the server's model on all of the client's examples (pow-d).

            "minibatch": on the first minibatch of the visit (cpow-d).

            "last": as the client reported it with its last upload, infinite before the first
            (rpow-d), so candidates receive and compute nothing.  It is the mean over the
            minibatches of that visit at the server's model of that round; the paper takes the mean
            along the local models.

    Raises:
        ValueError: a size below 1, or an unknown loss.

    Example:
        >>> power_of_choice(5)
        power_of_choice(size=5, loss='full')
    """
    check_count(1, size=size)
    check_choice(("full", "minibatch", "last"), loss=loss)

    def largest(losses: Array, candidates: Candidates) -> Choice:
        # A loss that is NaN shows a divergence, which must not be hidden.
        losses = jnp.where(jnp.isnan(losses), jnp.inf, losses)
        order = jnp.lexsort((candidates.clients, -losses, ~candidates.present))
        rank = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=order.dtype))
        return Choice(candidates.present & (rank < size))

    def by_score(state: PyTree, candidates: Candidates, round: Round) -> tuple[Choice, PyTree]:
        del round
        return largest(candidates.scores, candidates), state

    if loss != "last":
        score = full_loss if loss == "full" else minibatch_loss
        return Selector(by_score, size, score=score, exact=True)

    def by_report(state: Array, candidates: Candidates, round: Round) -> tuple[Choice, Array]:
        del round
        return largest(state[candidates.clients], candidates), state

    def learn(state: Array, clients: Array, reports: Any, arrived: Array) -> Array:
        return written(state, clients, reports, arrived)

    return Selector(
        by_report,
        size,
        init=lambda num_clients: jnp.full(num_clients, jnp.inf),
        report=visit_loss,
        learn=learn,
        exact=True,
    )
