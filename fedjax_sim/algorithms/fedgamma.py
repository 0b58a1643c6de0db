r"""FedGAMMA: SCAFFOLD with sharpness-aware gradients.

References:
    Dai et al., "FedGAMMA: Federated Learning With Global Sharpness-Aware Minimization", 2023.
"""

from __future__ import annotations

from fedjax_sim.algorithms._shared import Transform
from fedjax_sim.algorithms.scaffold import scaffold
from fedjax_sim.checks import check_at_least
from fedjax_sim.local import ScalarOrSchedule, sam, transform_oracle, unchanged
from fedjax_sim.types import FedAlgorithm, Scalar, specified

__all__ = ["fedgamma"]


@specified
def fedgamma(
    lr: ScalarOrSchedule,
    radius: Scalar = 0.1,
    server_lr: Scalar = 1.0,
    transform: Transform = unchanged,
) -> FedAlgorithm:
    r"""FedGAMMA: SCAFFOLD (option II) with sharpness-aware gradients.

    .. math::
        y \leftarrow y - \eta\,\Bigl(g_i\Bigl(y + r \frac{g_i(y)}{\|g_i(y)\|}\Bigr) - c_i + c\Bigr),
        \qquad y_0 = x

    with both gradients on one minibatch and radius r.  The states and the updates of the
    controls are those of :func:`~fedjax_sim.algorithms.scaffold`.

    Args:
        lr: client learning rate, or a schedule over rounds.
        radius: norm of the perturbation.
        server_lr: server learning rate.
        transform: as for :func:`~fedjax_sim.algorithms.fedsam`.

    Raises:
        ValueError: a number outside its range; weights that change, as for
            :func:`~fedjax_sim.algorithms.scaffold`.

    References:
        Dai et al., 2023, Algorithm 1.

    Example:
        >>> algorithm = fedgamma(lr=0.1)
    """
    check_at_least(0, radius=radius)
    return transform_oracle(scaffold(lr, server_lr), lambda oracle: transform(sam(oracle, radius)))
