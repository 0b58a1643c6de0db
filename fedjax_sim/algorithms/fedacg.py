r"""FedACG: the server broadcasts a look-ahead model.

References:
    Kim et al., "Communication-Efficient Federated Learning with Accelerated Client Gradient", 2024.
"""

from __future__ import annotations

from typing import NamedTuple

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least, check_decay, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, proximal, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Message,
    Oracle,
    Params,
    Round,
    Scalar,
    Upload,
    Work,
    specified,
)

__all__ = ["fedacg"]


class FedAcgState(NamedTuple):
    params: Params  # x
    momentum: Params  # m


@specified
def fedacg(lr: ScalarOrSchedule, momentum: Scalar = 0.85, mu: Scalar = 0.01) -> FedAlgorithm:
    r"""FedACG: clients start at the look-ahead model; a proximal term keeps them close to it.

    With ``momentum`` :math:`\lambda` and m from zero:

    .. math::
        z &= x + \lambda m, \qquad
        y \leftarrow y - \eta\,(g_i(y) + \mu\,(y - z)), \quad y_0 = z \\
        m &\leftarrow \lambda m + \operatorname{mean}_i (y_{K_i} - z), \qquad x \leftarrow x + m

    so that the new x is the mean of the clients' models.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        momentum: decay of the momentum, :math:`\lambda`.
        mu: weight of the proximal term, the paper's :math:`\beta`.

    Raises:
        ValueError: a number outside its range.

    References:
        Kim et al., 2024, Algorithm 1.

    Example:
        >>> algorithm = fedacg(lr=0.1)
    """

    check_rates(lr=lr)
    check_at_least(0, mu=mu)
    check_decay(momentum=momentum)

    def init(params: Params) -> FedAcgState:
        return FedAcgState(params, tree.zeros_like(params))

    def broadcast(state: FedAcgState, round: Round) -> Message:
        return tree.add_scale(state.params, momentum, state.momentum)

    def local(z: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        step = sgd(rate(lr, work), proximal(oracle, mu, z).grad)
        return tree.sub(z, local_steps(step, z, work)), state

    def update(state: FedAcgState, delta: Upload, round: Round) -> FedAcgState:
        velocity = tree.sub(tree.scale(momentum, state.momentum), delta)
        return FedAcgState(tree.add(state.params, velocity), velocity)

    return FedAlgorithm(init, local, update, broadcast)
