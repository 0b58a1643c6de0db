r"""FedSAM: clients with sharpness-aware gradients.

References:
    Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", 2022.
"""

from __future__ import annotations

import optax

from fedjax_sim.algorithms._shared import Transform
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least
from fedjax_sim.local import ScalarOrSchedule, sam, transform_oracle, unchanged
from fedjax_sim.types import FedAlgorithm, Scalar, specified

__all__ = ["fedsam"]


@specified
def fedsam(
    lr: ScalarOrSchedule,
    radius: Scalar = 0.05,
    server: optax.GradientTransformation | None = None,
    transform: Transform = unchanged,
) -> FedAlgorithm:
    r"""FedSAM: FedAvg whose clients take sharpness-aware gradients.

    .. math:: y \leftarrow y - \eta\, g_i\bigl(y + r\, g_i(y) / \|g_i(y)\|\bigr)

    Both gradients of a step are those of one minibatch; the norm is global over the parameters.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        radius: norm r of the perturbation.
        server: as for :func:`~fedjax_sim.algorithms.fedavg`.
        transform: ``Oracle -> Oracle``, such as clipping or weight decay. It acts on the gradient
            at the perturbed model; the gradient that perturbs stays that of the data.

    Raises:
        ValueError: ``server`` is one that FedAvg refuses.

    References:
        Qu et al., 2022, Algorithm 1.

    Example:
        >>> from fedjax_sim.local.transforms import add_decayed_weights
        >>> algorithm = fedsam(lr=0.1, transform=lambda oracle: add_decayed_weights(oracle, 1e-3))
    """
    check_at_least(0, radius=radius)
    return transform_oracle(fedavg(lr, server), lambda oracle: transform(sam(oracle, radius)))
