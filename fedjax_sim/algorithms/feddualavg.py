r"""FedDualAvg, federated dual averaging for :math:`\min_x F(x) + \psi(x)`, psi non-smooth.

References:
    Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021.
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, chapter 4, whose
        algorithms are cited.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import (
    DUAL_CHANGES,
    UPLOADS_COUNTS,
    dual_step,
    initial_model,
    total_rate,
)
from fedjax_sim.checks import check_at_least, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate
from fedjax_sim.prox import Composite, check_composite, like
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Requires, Round, Scalar, Work, specified

__all__ = ["feddualavg", "feddualavg_osp"]


class FedDualAvgState(NamedTuple):
    params: Params  # x, the primal of the dual, which is evaluated
    dual: Params  # y
    elapsed: Array  # H, the weight of psi: the sum of all rates so far


class _Visit(NamedTuple):
    descent: Params  # start - end, of the dual
    elapsed: Array  # the sum of the visit's client rates


@specified
def feddualavg(
    lr: ScalarOrSchedule,
    composite: Composite,
    server_lr: Scalar = 1.0,
    *,
    local_prox: bool = True,
    project_start: bool = True,
) -> FedAlgorithm:
    r"""FedDualAvg: federated dual averaging; clients' dual states are averaged, not their models.

    The average of sparse models is not sparse, nor that of low-rank ones low-rank; the model of an
    averaged dual state is.  In a round that starts at y with the weight H:

    .. math::
        x_i^k &= P_{H + \eta_c k}(y_i^k), \qquad
        y_i^{k+1} = y_i^k - \eta_c\, g_i(x_i^k), \qquad y_i^0 = y \\
        y &\leftarrow y + \eta_s \textstyle\sum_i w_i (y_i^{K_i} - y), \qquad
        H \leftarrow H + \eta_s \textstyle\sum_i w_i \eta_c K_i

    from :math:`y = \nabla h(x)` and H = 0, with P as in :func:`~fedjax_sim.algorithms.fedmid`; the
    model is :math:`P_H(y)`.  With one client it is dual averaging.  The dual state grows with H:
    after millions of local steps single precision loses digits of the model.

    Args:
        lr: client learning rate :math:`\eta_c`, or a schedule over rounds.
        composite: psi and h, see :func:`fedjax_sim.prox.composite`.
        server_lr: server learning rate :math:`\eta_s`.
        local_prox: whether the clients apply psi.
        project_start: start the dual at the initial model projected onto psi's domain, which the
            theorems require. False: at the initial model itself, also outside a constraint.

    Raises:
        ValueError: no composite regulariser; psi and h without a closed form.

    References:
        Yuan et al., 2021; Yuan, 2023, Algorithm 6.

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = feddualavg(0.01, prox.composite(prox.Nuclear(0.3), where=prox.kernels))
    """

    check_rates(lr=lr)
    check_composite(composite)
    check_at_least(0, server_lr=server_lr)

    def init(params: Params) -> FedDualAvgState:
        dual = composite.to_dual(initial_model(params, composite, project_start))
        elapsed = jnp.zeros((), jnp.result_type(float))
        return FedDualAvgState(composite.argmin(dual, elapsed), dual, elapsed)

    def local(
        message: tuple[Params, Array], state: tuple, oracle: Oracle, work: Work
    ) -> tuple[_Visit, tuple]:
        dual, elapsed = message
        eta = rate(lr, work)
        step = dual_step(eta, composite, elapsed, oracle, local_prox)
        end = local_steps(step, dual, work)
        return _Visit(tree.sub(dual, end), total_rate(eta, work.num_steps)), state

    def update(state: FedDualAvgState, mean: _Visit, round: Round) -> FedDualAvgState:
        dual = tree.add_scale(state.dual, -server_lr, mean.descent)
        elapsed = state.elapsed + like(mean.elapsed, server_lr) * mean.elapsed
        return FedDualAvgState(composite.argmin(dual, elapsed), dual, elapsed)

    return FedAlgorithm(
        init,
        local,
        update,
        lambda state, round: (state.dual, state.elapsed),
        requires=Requires(exact_mean=UPLOADS_COUNTS, other_uploads=DUAL_CHANGES),
    )


@specified
def feddualavg_osp(
    lr: ScalarOrSchedule,
    composite: Composite,
    server_lr: Scalar = 1.0,
    *,
    project_start: bool = True,
) -> FedAlgorithm:
    r"""FedDualAvg-OSP: only the server is proximal; clients do not apply psi.

    .. math::
        x_i^k = (\nabla h)^{-1}(y_i^k), \qquad
        y_i^{k+1} = y_i^k - \eta_c\, g_i(x_i^k), \qquad y_i^0 = y

    and the server as in :func:`feddualavg`.
    If h is Euclidean the dual states are FedAvg's iterates on F alone, and the model is such an
    iterate after a prox whose weight grows without bound: under a penalty it tends to 0.

    Args:
        lr: client learning rate, or a schedule over rounds.
        composite: psi and h, see :func:`fedjax_sim.prox.composite`.
        server_lr: server learning rate.
        project_start: as for :func:`feddualavg`.

    References:
        Yuan et al., 2021; Yuan, 2023, Algorithm 8.

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = feddualavg_osp(0.01, prox.composite(prox.L1(0.2)))
    """
    return feddualavg(lr, composite, server_lr, local_prox=False, project_start=project_start)
