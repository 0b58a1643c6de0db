r"""FedASAM: clients with adaptive sharpness-aware gradients.

References:
    Caldarola et al., "Improving Generalization in Federated Learning by Seeking Flat Minima", 2022.
"""

from __future__ import annotations

import optax

from fedjax_sim.algorithms._shared import Transform
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least
from fedjax_sim.local import ScalarOrSchedule, asam, transform_oracle, unchanged
from fedjax_sim.types import FedAlgorithm, Scalar, specified

__all__ = ["fedasam"]


@specified
def fedasam(
    lr: ScalarOrSchedule,
    radius: Scalar = 0.5,
    eta: Scalar = 0.01,
    server: optax.GradientTransformation | None = None,
    transform: Transform = unchanged,
) -> FedAlgorithm:
    r"""FedASAM: FedSAM with perturbations that adapt to the sizes of the parameters.

    .. math:: g_i\bigl(y + r\, T^2 g / \|T g\|\bigr), \qquad g = g_i(y), \quad T = |y| + \eta

    T is 1 on biases and scales.  The paper's averaging of server models is not part of it.

    Args:
        lr: client learning rate, or a schedule over rounds.
        radius: norm r of the perturbation, measured by T.
        eta: number added to the parameters' sizes in T; not a learning rate.
        server, transform: as for :func:`~fedjax_sim.algorithms.fedsam`.

    Raises:
        ValueError: ``server`` is one that FedAvg refuses.

    References:
        Caldarola et al., 2022, section 4.

    Example:
        >>> algorithm = fedasam(lr=0.1)
    """
    check_at_least(0, radius=radius, eta=eta)
    return transform_oracle(fedavg(lr, server), lambda oracle: transform(asam(oracle, radius, eta)))
