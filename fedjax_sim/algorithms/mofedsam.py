r"""MoFedSAM: FedSAM with momentum in the local steps.

References:
    Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", 2022.
"""

from typing import NamedTuple

from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import Transform
from fedjax_sim.local import ScalarOrSchedule, local_steps, per_step, rate, sgd
from fedjax_sim.transforms import sam, unchanged
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Work, send_state

__all__ = ["mofedsam"]


class MoFedSamState(NamedTuple):
    params: Params  # x
    direction: Params  # Delta, the mean descent direction of the last round


def mofedsam(
    lr: ScalarOrSchedule, radius: Scalar = 0.1, mix: Scalar = 0.1, transform: Transform = unchanged
) -> FedAlgorithm:
    r"""MoFedSAM: local steps also follow the mean direction of the last round.

    With ``mix`` b, the perturbation e of FedSAM and :math:`\Delta` from zero:

    .. math::
        y \leftarrow y - \eta\,\bigl(b\, g_i(y + e) + (1 - b) \Delta\bigr), \qquad
        \Delta \leftarrow \operatorname{mean}_i \frac{x - y_{K_i}}{K_i \eta}, \qquad
        x \leftarrow \operatorname{mean}_i y_{K_i}

    Each client's displacement is divided by its own number of steps, so the direction's length does
    not depend on it.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        radius: norm of the perturbation.
        mix: share b of the client's own gradient.
        transform: as for :func:`~fedjax_sim.algorithms.fedsam`.

    References:
        Qu et al., 2022, Algorithm 2.

    Example:
        >>> algorithm = mofedsam(lr=0.1)
    """

    def init(params: Params) -> MoFedSamState:
        return MoFedSamState(params, tree.zeros_like(params))

    def local(
        message: MoFedSamState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], tuple]:
        x, eta = message.params, rate(lr, work)
        sharp = transform(sam(oracle, radius))
        past = tree.scale(1 - mix, message.direction)

        def grad(y: Params, k: Array) -> Params:
            return tree.add_scale(past, mix, sharp.grad(y, k))

        delta = tree.sub(x, local_steps(sgd(eta, grad), x, work))
        return (delta, tree.scale(1 / eta, per_step(delta, work))), state

    def update(state: MoFedSamState, mean: tuple[Params, Params], round: Round) -> MoFedSamState:
        del round
        delta, direction = mean
        return MoFedSamState(tree.sub(state.params, delta), direction)

    return FedAlgorithm(init, local, update, send_state)
