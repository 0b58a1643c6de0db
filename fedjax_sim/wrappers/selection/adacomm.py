"""AdaComm: local steps that fall with the root of the loss.

References:
    Wang, Joshi, "Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off in
        Local-Update SGD", MLSys 2019, Section 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_at_most, check_count, check_positive
from fedjax_sim.types import (
    Candidates,
    Choice,
    Oracle,
    Params,
    Round,
    Scalar,
    Selector,
    Work,
    specified,
)
from fedjax_sim.wrappers.selection.scores import full_loss

__all__ = ["AdaCommState", "adacomm"]


class AdaCommState(NamedTuple):
    """State of the adaptive number of local steps."""

    num_steps: Array  # int    of the present interval; 0 before the first round
    first_loss: Array  # of the first round


@specified(static=("initial_steps", "interval"))
def adacomm(
    initial_steps: int,
    interval: int,
    *,
    decay: Scalar = 0.5,
    score: Callable[[Params, Oracle, Work], Array] = full_loss,
) -> Selector:
    r"""Returns the selector of all candidates, whose numbers of local steps follow the loss.

    In the first round of every interval l the number of local steps becomes

    .. math:: \tau_l = \begin{cases}
        \hat\tau_l & \text{if } \hat\tau_l < \tau_{l-1} \\
        \lceil \gamma\, \tau_{l-1} \rceil & \text{otherwise} \end{cases}
        \qquad \hat\tau_l = \biggl\lceil \sqrt{F(x_t) / F(x_0)}\; \tau_0 \biggr\rceil

    at a constant learning rate.  F is the weighted mean of the candidates' losses; with
    :func:`~fedjax_sim.timelines.full` that is the paper's training loss.  The paper's intervals are
    of equal time, these are of equal numbers of rounds.  Every candidate computes its loss in every
    round.

    Args:
        initial_steps: :math:`\tau_0`.  A client does at most the timeline's steps, so these bound
            it.
        interval: rounds per interval.
        decay: :math:`\gamma`.
        score: loss of a candidate, a function of the server's model, the oracle and the visit.

    Raises:
        ValueError: a count below 1, a decay outside (0, 1], or a score that is no function.

    Example:
        >>> adacomm(20, interval=10).size is None
        True
    """
    check_count(1, initial_steps=initial_steps, interval=interval)
    check_positive(decay=decay)
    check_at_most(1, decay=decay)
    if not callable(score):
        raise ValueError(
            f"score is {score!r:.60}; expected a function, such as selection.full_loss"
        )

    def init(num_clients: int) -> AdaCommState:
        del num_clients
        return AdaCommState(jnp.array(0, jnp.int32), jnp.zeros((), jnp.result_type(float)))

    def choose(
        state: AdaCommState, candidates: Candidates, round: Round
    ) -> tuple[Choice, AdaCommState]:
        total = candidates.weights.sum()
        scores = candidates.scores.astype(total.dtype)
        loss = (candidates.weights * scores).sum() / jnp.where(total > 0, total, 1)
        begins = state.num_steps == 0
        first_loss = jnp.where(begins, loss, state.first_loss)
        proposed = jnp.ceil(jnp.sqrt(loss / first_loss) * initial_steps)  # the basic rule
        proposed = jnp.maximum(proposed, 1)
        before = state.num_steps.astype(total.dtype)
        refined = jnp.where(proposed < before, proposed, jnp.ceil(decay * before))
        steps = jnp.where(round.number % interval == 0, refined, before)
        steps = jnp.where(begins, initial_steps, steps).astype(jnp.int32)
        # A round without candidates has no loss, so it changes nothing.
        new = AdaCommState(
            jnp.where(total > 0, steps, state.num_steps),
            jnp.where(total > 0, first_loss, state.first_loss),
        )
        return Choice(candidates.present, num_steps=jnp.full(candidates.present.shape, steps)), new

    return Selector(choose, init=init, score=score, exact=True)
