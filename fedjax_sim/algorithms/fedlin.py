r"""FedLin: gradient corrections for clients with different numbers of steps.

References:
    Mitra, Jaafar, Pappas, Hassani, "Linear Convergence in Federated Learning: Tackling Client
        Heterogeneity and Sparse Gradients", 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import real
from fedjax_sim.algorithms._two_phase import (
    PAIRS,
    centred,
    gradient_and_steps,
    sends_gradient,
)
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Round,
    Work,
    send_state,
    specified,
)

__all__ = ["fedlin"]


class FedLinState(NamedTuple):
    params: Params  # x
    control: Params  # g, the mean of the cohort's full gradients at x


@specified
def fedlin(lr: ScalarOrSchedule) -> FedAlgorithm:
    r"""FedLin: corrected gradients, and local rates inversely proportional to the steps.

    .. math::
        y \leftarrow y - \frac{\eta}{K_i} \bigl(g_i(y) - g_i(x) + g\bigr), \quad y_0 = x; \qquad
        g = \operatorname{mean}_i \nabla F_i(x), \qquad x \leftarrow \operatorname{mean}_i y_{K_i}

    with both minibatch gradients on the same examples.  With full gradients the limit is the
    optimum of the mean objective, whatever the numbers of steps :math:`K_i`.  As g and the steps
    belong to the same x, every cohort takes part in two rounds in a row, as from
    ``timelines.repeat_rounds(timeline, 2)``: in rounds 0, 2, ... it sends full gradients, in
    rounds 1, 3, ... it takes steps.

    Args:
        lr: :math:`\eta`, the rate of a visit as a whole, or a schedule over the rounds of the
            timeline; its values in rounds 1, 3, ... count.

    Raises:
        ValueError: at the start of the run, rounds 2t and 2t + 1 have different cohorts, or
            all uploads of round 2t are lost.

    References:
        Mitra et al., 2021, Algorithm 1.

    Example:
        >>> algorithm = fedlin(lr=0.5)
    """

    check_rates(lr=lr)

    def init(params: Params) -> FedLinState:
        return FedLinState(params, tree.zeros_like(params))

    def local(
        message: FedLinState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[Params, tuple]:
        x = message.params
        gradient, steps = gradient_and_steps(oracle, x, work)
        eta = real(rate(lr, work)) / real(jnp.maximum(work.num_steps, 1))
        y = local_steps(sgd(eta, centred(oracle, x, message.control)), x, steps)
        return tree.add(gradient, tree.sub(x, y)), state  # one of them is 0

    def update(state: FedLinState, mean: Params, round: Round) -> FedLinState:
        return tree.where(
            sends_gradient(round.number),
            state._replace(control=mean),
            state._replace(params=tree.sub(state.params, mean)),
        )

    return FedAlgorithm(
        init,
        local,
        update,
        send_state,
        requires=PAIRS,
    )
