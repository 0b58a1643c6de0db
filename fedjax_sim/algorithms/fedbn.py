r"""FedBN: every client keeps the normalisation layers of its own.

References:
    Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", 2021.
"""

from __future__ import annotations

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.tree import Selection, normalisation
from fedjax_sim.types import FedAlgorithm, specified
from fedjax_sim.wrappers import private

__all__ = ["fedbn"]


@specified
def fedbn(lr: ScalarOrSchedule, where: Selection = normalisation) -> FedAlgorithm:
    r"""FedBN: FedAvg whose clients keep scales, biases and statistics of normalisation layers.

    .. math::
        (y, v_i) \leftarrow (y, v_i) - \eta\, g_i(y, v_i), \quad y_0 = x, \qquad
        x \leftarrow x - \operatorname{mean}_i (x - y_{K_i})

    with the scales and biases :math:`v_i`, the client's state.  A model with batch normalisation
    also has running statistics, which FedBN keeps private: ``fs.running_statistics(fedbn(lr),
    model.statistics, combine="private")``; the command line does so unless they are frozen.  The
    personal model joins x, :math:`v_i` and the client's statistics.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        where: True for private leaves; default: those of normalisation layers.

    Raises:
        ValueError: ``where`` is no predicate; at the start of the run, a model without
            normalisation layers.

    References:
        Li et al., 2021, Algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"dense": {"kernel": jnp.ones(3)}, "norm": {"scale": jnp.ones(1)}}
        >>> fedbn(lr=0.1).init_client(params).personal
        {'dense': {'kernel': None}, 'norm': {'scale': Array([1.], dtype=float32)}}
    """
    return private(fedavg(lr), where, lr)
