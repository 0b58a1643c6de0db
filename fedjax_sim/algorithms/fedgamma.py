r"""FedGAMMA: SCAFFOLD with sharpness-aware gradients.

References:
    Dai et al., "FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization", 2023.
"""

from fedjax_sim.algorithms._shared import Transform
from fedjax_sim.algorithms.scaffold import scaffold
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.transforms import sam, transform_oracle, unchanged
from fedjax_sim.types import FedAlgorithm, Scalar

__all__ = ["fedgamma"]


def fedgamma(
    lr: ScalarOrSchedule,
    radius: Scalar = 0.1,
    server_lr: Scalar = 1.0,
    transform: Transform = unchanged,
) -> FedAlgorithm:
    """FedGAMMA: SCAFFOLD (option II) with sharpness-aware gradients.

    Args:
        lr, server_lr: as for :func:`~fedjax_sim.algorithms.scaffold`, whose states it has.
        radius, transform: as for :func:`~fedjax_sim.algorithms.fedsam`.

    References:
        Dai et al., 2023, Algorithm 1.

    Example:
        >>> algorithm = fedgamma(lr=0.1)
    """
    return transform_oracle(scaffold(lr, server_lr), lambda oracle: transform(sam(oracle, radius)))
