r"""LG-FedAvg: every client keeps a body of its own under a common head.

References:
    Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global
        Representations", 2020.
"""

from __future__ import annotations

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.tree import Selection, last_layer, others
from fedjax_sim.types import FedAlgorithm, specified
from fedjax_sim.wrappers import private

__all__ = ["lg_fedavg"]


@specified
def lg_fedavg(lr: ScalarOrSchedule, where: Selection = last_layer) -> FedAlgorithm:
    r"""LG-FedAvg: joint SGD steps on body and head; heads are averaged, bodies stay with clients.

    .. math::
        (v_i, y) \leftarrow (v_i, y) - \eta\, g_i(v_i, y), \quad y_0 = x, \qquad
        x \leftarrow x - \operatorname{mean}_i (x - y_{K_i})

    The client's state is its body :math:`v_i`, at first that of the initial model; the published
    experiments start from a model that FedAvg trained.  The personal model is :math:`(v_i, x)`.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        where: True for shared leaves; default: the last layer.

    Raises:
        ValueError: ``where`` is no predicate; at the start of the run, it selects no leaves.

    References:
        Liang et al., 2020, Algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"body": jnp.ones(3), "head": {"kernel": jnp.zeros(2)}}
        >>> lg_fedavg(lr=0.1).init_client(params).personal
        {'body': Array([1., 1., 1.], dtype=float32), 'head': {'kernel': None}}
    """
    return private(fedavg(lr), others(where), lr)
