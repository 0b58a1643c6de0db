r"""FedACG: the server's momentum is sent ahead of itself.

References:
    Kim et al., "Communication-Efficient Federated Learning with Accelerated Client Gradient", 2024.
"""

from typing import NamedTuple

from fedjax_sim import tree
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.transforms import proximal
from fedjax_sim.types import FedAlgorithm, Message, Oracle, Params, Round, Scalar, Upload, Work


class FedAcgState(NamedTuple):
    params: Params
    momentum: Params  # m


def fedacg(lr: ScalarOrSchedule, momentum: Scalar = 0.85, weight: Scalar = 0.01) -> FedAlgorithm:
    r"""FedACG: clients start at the look-ahead model and are held to it by a proximal term.

    With ``momentum`` :math:`\lambda` and ``weight`` :math:`\beta`, m from zero:

    .. math::
        z &= x + \lambda m, \qquad
        y \leftarrow y - \eta\,(g_i(y) + \beta\,(y - z)), \quad y_0 = z \\
        m &\leftarrow \lambda m + \operatorname{mean}_i (y_{K_i} - z), \qquad x \leftarrow x + m

    so that the new x is the mean of the clients' models.

    References:
        Kim et al., 2024, Algorithm 1.

    Example:
        >>> algorithm = fedacg(lr=0.1)
    """

    def init(params: Params) -> FedAcgState:
        return FedAcgState(params, tree.zeros_like(params))

    def broadcast(state: FedAcgState, round: Round) -> Message:
        del round
        return tree.add_scale(state.params, momentum, state.momentum)

    def local(z: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        step = sgd(rate(lr, work), proximal(oracle, weight, z).grad)
        return tree.sub(z, local_steps(step, z, work)), state

    def update(state: FedAcgState, delta: Upload, round: Round) -> FedAcgState:
        del round
        velocity = tree.sub(tree.scale(momentum, state.momentum), delta)
        return FedAcgState(tree.add(state.params, velocity), velocity)

    return FedAlgorithm(init, local, update, broadcast)
