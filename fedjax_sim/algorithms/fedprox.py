r"""FedProx.

References:
    Li et al., "Federated Optimization in Heterogeneous Networks", 2020.
"""

from __future__ import annotations

import optax

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least
from fedjax_sim.local import ScalarOrSchedule, proximal
from fedjax_sim.types import FedAlgorithm, Scalar, specified

__all__ = ["fedprox"]


@specified
def fedprox(
    lr: ScalarOrSchedule, mu: Scalar, server: optax.GradientTransformation | None = None
) -> FedAlgorithm:
    r"""FedProx: FedAvg with a proximal term in the clients' objectives.

    .. math:: \min_y F_i(y) + \tfrac{\mu}{2} \|y - x\|^2

    The visit's local steps solve the proximal problem inexactly.

    Args:
        lr: client learning rate, or a schedule over rounds.
        mu: weight of the proximal term.
        server: as for :func:`~fedjax_sim.algorithms.fedavg`.

    Raises:
        ValueError: ``server`` is one that FedAvg refuses.

    References:
        Li et al., 2020, Algorithm 2.

    Example:
        >>> algorithm = fedprox(lr=0.1, mu=0.01)
    """
    check_at_least(0, mu=mu)
    return fedavg(lr, server, lambda oracle, anchor: proximal(oracle, mu, anchor))
