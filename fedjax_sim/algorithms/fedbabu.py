r"""FedBABU: the head stays at its initial values in training and is fine-tuned at evaluation.

References:
    Oh, Kim, Yun, "FedBABU: Towards Enhanced Representation for Federated Image Classification",
        2022.
"""

from __future__ import annotations

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_count, check_rates
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.tree import Selection, last_layer
from fedjax_sim.types import FedAlgorithm, specified
from fedjax_sim.wrappers import fine_tuned, freeze

__all__ = ["fedbabu"]


@specified
def fedbabu(
    lr: ScalarOrSchedule,
    tuning_lr: ScalarOrSchedule | None = None,
    visits: int = 5,
    where: Selection = last_layer,
) -> FedAlgorithm:
    r"""FedBABU: FedAvg of the body under the initial head; clients fine-tune the whole model.

    .. math:: y \leftarrow y - \eta\, g_i(y, h^0), \quad y_0 = x, \qquad
        x \leftarrow x - \operatorname{mean}_i (x - y_{K_i})

    with the head :math:`h^0` of the initial model.  A client's personal model starts from
    :math:`(x, h^0)` and takes SGD steps on all leaves
    (:func:`~fedjax_sim.wrappers.fine_tuning.fine_tuned`).

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        tuning_lr: learning rate of the fine-tuning, or a schedule over rounds; default: lr.
        visits: length of the fine-tuning in visits; epochs, if a visit is one epoch.
        where: True for the leaves of the head; default: the last layer.

    Raises:
        ValueError: ``visits`` below 1, ``where`` is no predicate; at the start of the run, a model
            without a body.

    References:
        Oh et al., 2022, Algorithm 1.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"body": jnp.ones(3), "head": {"kernel": jnp.zeros(2)}}
        >>> fedbabu(lr=0.1).init(params).inner.params  # the server trains the body
        {'body': Array([1., 1., 1.], dtype=float32), 'head': {'kernel': None}}
    """
    check_rates(tuning_lr=tuning_lr)
    check_count(1, visits=visits)
    body = freeze(fedavg(lr), where)
    tuned = fine_tuned(body, lr if tuning_lr is None else tuning_lr, visits=visits)
    return tuned.requiring(partial_model=True)
