r"""Ditto: a personal model per client, pulled towards the global one.

References:
    Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through Personalization",
        2021, arXiv 2012.04221.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fedjax_sim.algorithms._shared import check_per_client, cycled, real, visit_of
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.checks import check_at_least, check_count, check_rates, least_entries
from fedjax_sim.local import ScalarOrSchedule, local_steps, proximal, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Scalar,
    Task,
    Timeline,
    Upload,
    Work,
    specified,
)
from fedjax_sim.wrappers import also_checked

__all__ = ["ditto"]


@specified
def ditto(
    lr: ScalarOrSchedule,
    mu: Scalar = 1.0,
    personal_lr: ScalarOrSchedule | None = None,
    personal_steps: int | None = None,
    server: optax.GradientTransformation | None = None,
) -> FedAlgorithm:
    r"""Ditto: FedAvg, and a model per client that is pulled towards the received one.

    .. math::
        y &\leftarrow y - \eta\, g_i(y), \qquad y_0 = x \\
        v_i &\leftarrow v_i - \eta_v \bigl(g_i(v_i) + \mu\,(v_i - x)\bigr) \\
        x &\leftarrow x - \operatorname{mean}_i (x - y_{K_i})

    The client keeps :math:`v_i`, which is its personal model and starts at the initial model.  The
    steps of both models take the same minibatches, further personal steps take them again.  A visit
    without steps has no personal ones.  The server's model is that of FedAvg for every :math:`\mu`.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        mu: weight of the proximal term, the paper's :math:`\lambda`; or one per client, ``[M]``,
            of which clients that never train have the mean.
        personal_lr: learning rate :math:`\eta_v` of the personal models, or a schedule over rounds.
            Default: ``lr``.
        personal_steps: steps of the personal model per visit. Default: as many as of the other one.
        server: as for :func:`~fedjax_sim.algorithms.fedavg`.

    Raises:
        ValueError: ``personal_steps`` below 1, ``server`` is one that FedAvg refuses; at the start
            of the run, a vector ``mu`` without one entry per client.

    References:
        Li et al., 2021, Algorithm 1 (and 2, with FedAvg).

    Example:
        >>> algorithm = ditto(lr=0.1, mu=0.5)
        >>> weights = ditto(lr=0.1, mu=jnp.array([0.1, 1.0, 2.0]))  # three clients
    """
    check_rates(personal_lr=personal_lr)
    check_at_least(0, **least_entries(mu=mu))
    if personal_steps is not None:
        check_count(1, personal_steps=personal_steps)
    global_part = fedavg(lr, server)
    own_lr = lr if personal_lr is None else personal_lr

    def weight_of(client: Array) -> Scalar:
        if not np.ndim(mu):
            return mu
        every = real(mu)
        return jnp.where(client < every.shape[0], every[client], every.mean())

    def local(x: Params, v: Params, oracle: Oracle, work: Work) -> tuple[Upload, Params]:
        upload, _ = global_part.local(x, (), oracle, work)
        weight = weight_of(work.client)
        visit = work if personal_steps is None else visit_of(work, personal_steps)
        step = sgd(rate(own_lr, work, "personal_lr"), proximal(oracle, weight, x).grad)
        return upload, local_steps(cycled(step, work), v, visit)

    def check(task: Task, timeline: Timeline) -> None:
        if np.ndim(mu):
            check_per_client("mu", jnp.asarray(mu), task)

    return also_checked(global_part, check)._replace(
        local=local, init_client=lambda params: params, personal=lambda x, v, oracle, work: v
    )
