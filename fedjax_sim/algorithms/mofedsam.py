r"""MoFedSAM: FedSAM with momentum in the local steps, that of FedCM.

References:
    Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", 2022.
"""

from __future__ import annotations

from fedjax_sim.algorithms._shared import Transform
from fedjax_sim.algorithms.fedcm import fedcm
from fedjax_sim.checks import check_at_least
from fedjax_sim.local import ScalarOrSchedule, sam, transform_oracle, unchanged
from fedjax_sim.types import FedAlgorithm, Scalar, specified

__all__ = ["mofedsam"]


@specified
def mofedsam(
    lr: ScalarOrSchedule, radius: Scalar = 0.1, mix: Scalar = 0.1, transform: Transform = unchanged
) -> FedAlgorithm:
    r"""MoFedSAM: local steps also follow the mean direction of the last round.

    With ``mix`` b, the perturbation e of FedSAM and :math:`\Delta` from zero:

    .. math::
        y \leftarrow y - \eta\,\bigl(b\, g_i(y + e) + (1 - b) \Delta\bigr), \qquad
        \Delta \leftarrow \operatorname{mean}_i \frac{x - y_{K_i}}{K_i \eta}, \qquad
        x \leftarrow \operatorname{mean}_i y_{K_i}

    This is :func:`~fedjax_sim.algorithms.fedcm` with sharpness-aware gradients and server rate 1.
    Each client's displacement is divided by its own number of steps, so the direction's length does
    not depend on it.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        radius: norm of the perturbation.
        mix: share b of the client's own gradient, in (0, 1].
        transform: as for :func:`~fedjax_sim.algorithms.fedsam`.

    Raises:
        ValueError: a number outside its range.

    References:
        Qu et al., 2022, Algorithm 2.

    Example:
        >>> algorithm = mofedsam(lr=0.1)
    """

    check_at_least(0, radius=radius)
    algorithm = fedcm(lr, server_lr=1.0, mix=mix)
    return transform_oracle(algorithm, lambda oracle: transform(sam(oracle, radius)))
