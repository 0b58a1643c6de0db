r"""FedPer: every client keeps a head of its own.

References:
    Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.
"""

from __future__ import annotations

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.tree import Selection, last_layer
from fedjax_sim.types import FedAlgorithm, specified
from fedjax_sim.wrappers import private

__all__ = ["fedper"]


@specified
def fedper(lr: ScalarOrSchedule, where: Selection = last_layer) -> FedAlgorithm:
    r"""FedPer: joint SGD steps on body and head; bodies are averaged, heads stay with the clients.

    .. math::
        (y, v_i) \leftarrow (y, v_i) - \eta\, g_i(y, v_i), \quad y_0 = x, \qquad
        x \leftarrow x - \operatorname{mean}_i (x - y_{K_i})

    The client's state is its head :math:`v_i`, at first that of the initial model.  The personal
    model is :math:`(x, v_i)`.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        where: True for private leaves; default: the last layer.

    Raises:
        ValueError: ``where`` is no predicate; at the start of the run, it selects no leaves.

    References:
        Arivazhagan et al., 2019, Algorithms 1 and 2.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"body": jnp.ones(3), "head": {"kernel": jnp.zeros(2)}}
        >>> fedper(lr=0.1).init_client(params).personal
        {'body': None, 'head': {'kernel': Array([0., 0.], dtype=float32)}}
    """
    return private(fedavg(lr), where, lr)
