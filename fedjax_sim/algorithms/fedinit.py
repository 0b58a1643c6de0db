r"""FedInit: clients start their visits away from their last local models.

References:
    Sun, Shen, Tao, "Understanding How Consistency Works in Federated Learning via Stage-wise
        Relaxed Initialization", 2023, arXiv 2306.05706.
"""

from __future__ import annotations

import optax

from fedjax_sim import tree
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Scalar, Upload, Work, specified

__all__ = ["fedinit"]


@specified
def fedinit(
    lr: ScalarOrSchedule,
    relaxation: Scalar = 0.1,
    server: optax.GradientTransformation | None = None,
) -> FedAlgorithm:
    r"""FedInit: FedAvg whose visits start opposite to the client's last local model.

    With ``relaxation`` :math:`\beta`:

    .. math::
        y &\leftarrow y - \eta\, g_i(y), \qquad y_0 = x + \beta\,(x - v_i) \\
        v_i &\leftarrow y_{K_i}, \qquad x \leftarrow \operatorname{mean}_i y_{K_i}

    The client keeps :math:`v_i`, the model at the end of its last visit, which is the initial model
    before its first.  With :math:`\beta = 0` it is FedAvg.  The authors' program adds the same
    start to other methods, too.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        relaxation: coefficient :math:`\beta` of the relaxed initialisation.
        server: as for :func:`~fedjax_sim.algorithms.fedavg`.

    Raises:
        ValueError: a number outside its range, ``server`` is one that FedAvg refuses.

    References:
        Sun et al., 2023, Algorithm 1.

    Example:
        >>> algorithm = fedinit(lr=0.1, relaxation=0.05)
    """
    check_at_least(0, relaxation=relaxation)

    def local(x: Params, last: Params, oracle: Oracle, work: Work) -> tuple[Upload, Params]:
        # Algorithm 1, the relaxed initialisation
        start = tree.add_scale(x, relaxation, tree.sub(x, last))
        active = work.num_steps > 0
        # Without steps the client keeps its last model, and uploads no change.
        y = tree.where(active, local_steps(sgd(rate(lr, work), oracle.grad), start, work), last)
        return tree.where(active, tree.sub(x, y), tree.zeros_like(x)), y

    return fedavg(lr, server)._replace(local=local, init_client=lambda params: params)
