r"""FedCM: client-level momentum.

References:
    Xu, Wang, Wang, Yao, "FedCM: Federated Learning with Client-level Momentum", 2021.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least, check_probability, check_rates
from fedjax_sim.local import ScalarOrSchedule, inverse_rate, local_steps, per_step, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Round,
    Scalar,
    Work,
    send_state,
    specified,
)

__all__ = ["fedcm"]


class FedCmState(NamedTuple):
    params: Params  # x
    direction: Params  # Delta, the mean descent direction of the last round


@specified
def fedcm(lr: ScalarOrSchedule, server_lr: Scalar = 1.0, mix: Scalar = 0.1) -> FedAlgorithm:
    r"""FedCM: local steps also follow the mean direction of the last round.

    With ``mix`` :math:`\alpha` and :math:`\Delta` from zero:

    .. math::
        y \leftarrow y - \eta\,\bigl(\alpha\, g_i(y) + (1 - \alpha) \Delta\bigr), \qquad
        \Delta \leftarrow \operatorname{mean}_i \frac{x - y_{K_i}}{K_i \eta}, \qquad
        x \leftarrow x - \eta_s \operatorname{mean}_i (x - y_{K_i})

    A visit without steps counts as 0 in both means.  The clients drift as if their rate were
    :math:`\alpha \eta`.  With :math:`\alpha = 1` this is FedAvg; with :math:`\eta_s = 1` it is
    :func:`~fedjax_sim.algorithms.mofedsam` without perturbation.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        server_lr: server learning rate :math:`\eta_s`.
        mix: share :math:`\alpha` of the client's own gradient, in (0, 1].

    Raises:
        ValueError: a number outside its range.

    References:
        Xu et al., 2021, Algorithm 2.

    Example:
        >>> algorithm = fedcm(lr=0.1)
    """

    check_rates(lr=lr)
    check_at_least(0, server_lr=server_lr)
    check_probability(mix=mix)

    def init(params: Params) -> FedCmState:
        return FedCmState(params, tree.zeros_like(params))

    def local(
        message: FedCmState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], tuple]:
        x, eta = message.params, rate(lr, work)
        past = tree.scale(1 - mix, message.direction)

        def grad(y: Params, k: Array) -> Params:
            return tree.add_scale(past, mix, oracle.grad(y, k))

        delta = tree.sub(x, local_steps(sgd(eta, grad), x, work))
        return (delta, tree.scale(inverse_rate(eta), per_step(delta, work))), state

    def update(state: FedCmState, mean: tuple[Params, Params], round: Round) -> FedCmState:
        delta, direction = mean
        return FedCmState(tree.add_scale(state.params, -server_lr, delta), direction)

    return FedAlgorithm(init, local, update, send_state)
