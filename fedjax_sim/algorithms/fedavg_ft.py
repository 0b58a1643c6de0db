r"""FedAvg with fine-tuning: clients train the global model a little before they use it.

References:
    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
        Data", 2017 (training).
    Wang et al., "Federated Evaluation of On-device Personalization", 2019 (fine-tuning).
"""

from __future__ import annotations

from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_count, check_rates
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.tree import Selection
from fedjax_sim.types import FedAlgorithm, specified
from fedjax_sim.wrappers import fine_tuned

__all__ = ["fedavg_ft"]


@specified
def fedavg_ft(
    lr: ScalarOrSchedule,
    tuning_lr: ScalarOrSchedule | None = None,
    visits: int = 5,
    where: Selection | None = None,
) -> FedAlgorithm:
    r"""FedAvg-FT: FedAvg, whose personal models are the global one after local steps.

    .. math:: y \leftarrow y - \eta_t\, g_i(y), \qquad y_0 = x

    Training is that of FedAvg, bit for bit.  Other algorithms:
    :func:`~fedjax_sim.wrappers.fine_tuning.fine_tuned`.

    Args:
        lr: client learning rate, or a schedule over rounds.
        tuning_lr: learning rate of the fine-tuning, :math:`\eta_t`, or a schedule over rounds;
            default: lr.
        visits: length of the fine-tuning in visits; epochs, if a visit is one epoch.
        where: True for the leaves that are fine-tuned; default: all.

    Raises:
        ValueError: ``visits`` below 1, ``where`` is no predicate; at the start of the run, it
            selects no leaves.

    References:
        Wang et al., 2019, section 2.

    Example:
        >>> head_only = fedavg_ft(lr=0.1, where=lambda path, leaf: path[0] == "head")
    """
    check_rates(tuning_lr=tuning_lr)
    check_count(1, visits=visits)
    rate = lr if tuning_lr is None else tuning_lr
    return fine_tuned(fedavg(lr), rate, visits=visits, where=where)
