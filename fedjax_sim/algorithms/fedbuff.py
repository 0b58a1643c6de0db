r"""FedBuff: buffered asynchronous aggregation.

References:
    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022.
"""

from __future__ import annotations

import jax.numpy as jnp
import optax

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS
from fedjax_sim.algorithms.fedavg import FedAvgState, served_by
from fedjax_sim.algorithms.staleness import StalenessWeight, constant
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.tree import divide_or_keep
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Upload, Work, specified

__all__ = ["fedbuff"]


@specified
def fedbuff(
    lr: ScalarOrSchedule,
    server_lr: optax.ScalarOrSchedule,
    staleness_weight: StalenessWeight | None = None,
    *,
    normalised: bool = False,
) -> FedAlgorithm:
    r"""FedBuff: a step of FedAvg whenever the buffer of uploads is full.

    .. math::
        w \leftarrow w - \eta_g \frac{1}{Z} \sum_{i \in buffer} s(\tau_i)\, (w_i^{start} - w_i)

    Runs on :func:`~fedjax_sim.timelines.arrivals`.  Stability depends on the server's rate.

    Args:
        lr: client learning rate, or a schedule over rounds.
        server_lr: server learning rate :math:`\eta_g`, or a schedule over server updates.
        staleness_weight: s, a function of the staleness :math:`\tau`; default 1. The paper uses
            :func:`~fedjax_sim.algorithms.staleness.polynomial` with 1/2.
        normalised: divide by the sum of the weights instead of by Z, the number of uploads.

    Raises:
        ValueError: when the run begins, a timeline of ``contacts(receives="current")``.

    References:
        Nguyen et al., 2022, Algorithm 1.

    Example:
        >>> from fedjax_sim.algorithms.staleness import polynomial
        >>> algorithm = fedbuff(lr=0.05, server_lr=0.3, staleness_weight=polynomial(0.5))
    """
    check_rates(server_lr=server_lr)
    weight = staleness_weight or constant
    base = served_by(optax.sgd(server_lr), lr)

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        delta, state = base.local(x, state, oracle, work)
        s = weight(work.staleness)
        share = jnp.where(work.num_steps > 0, s, 0)
        return (share, tree.scale(s, delta)), state

    def update(state: FedAvgState, mean: Upload, round: Round) -> FedAvgState:
        share, delta = mean
        if normalised:
            delta = divide_or_keep(delta, share)
        return base.update(state, delta, round)

    return base._replace(local=local, update=update).requiring(
        exact_mean=UPLOADS_COUNTS, other_uploads="changes times a weight"
    )
