r"""FedAsync: every model is mixed in when it arrives.

References:
    Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019.
"""

from __future__ import annotations

import jax.numpy as jnp

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_MODELS, ModelState, real
from fedjax_sim.algorithms.staleness import StalenessWeight, constant
from fedjax_sim.checks import check_at_least, check_rates, check_share
from fedjax_sim.local import ScalarOrSchedule, local_steps, proximal, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Upload,
    Work,
    specified,
)

__all__ = ["fedasync"]


@specified
def fedasync(
    lr: ScalarOrSchedule,
    mix: Scalar = 0.6,
    staleness_weight: StalenessWeight | None = None,
    mu: Scalar = 0.0,
) -> FedAlgorithm:
    r"""FedAsync: the server mixes in every model that arrives; stale models count less.

    .. math:: w \leftarrow (1 - a_t)\, w + a_t\, x_{new}, \qquad a_t = a\, s(t - \tau)

    where :math:`x_{new}` is trained on :math:`f_i(x) + \frac{\mu}{2} \|x - w^{\tau}\|^2`.  Runs on
    :func:`~fedjax_sim.timelines.arrivals` with a buffer of 1; several uploads are averaged first.

    Args:
        lr: client learning rate, or a schedule over rounds.
        mix: weight a of a fresh model, in [0, 1].
        staleness_weight: s, a function of the staleness :math:`t - \tau`, which is 0 for a fresh
            upload: ``constant`` (the default), ``polynomial`` or ``hinge`` of
            :mod:`fedjax_sim.algorithms.staleness`.
        mu: weight of the proximal term, the paper's :math:`\rho`.

    Raises:
        ValueError: when the run begins, a timeline of ``contacts(receives="current")``.

    References:
        Xie et al., 2019, Algorithm 1 and Section 5.2.

    Example:
        >>> from fedjax_sim.algorithms.staleness import polynomial
        >>> algorithm = fedasync(lr=0.1, staleness_weight=polynomial(0.5), mu=0.005)
    """
    check_rates(lr=lr)
    check_share(mix=mix)
    check_at_least(0, mu=mu)
    weight = staleness_weight or constant

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        y = local_steps(sgd(rate(lr, work), proximal(oracle, mu, x).grad), x, work)
        share = jnp.where(work.num_steps > 0, real(mix) * weight(work.staleness), 0)
        return (share, tree.scale(share, y)), state

    def update(state: ModelState, mean: Upload, round: Round) -> ModelState:
        share, y = mean
        return ModelState(tree.add_scale(y, 1 - share, state.params))

    return FedAlgorithm(
        ModelState,
        local,
        update,
        requires=Requires(exact_mean=UPLOADS_MODELS, other_uploads="models times a weight"),
    )
