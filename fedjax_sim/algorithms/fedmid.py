r"""FedMiD, federated mirror descent for :math:`\min_x F(x) + \psi(x)`, psi non-smooth.

References:
    Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021.
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, chapter 4, whose
        equations and algorithms are cited.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import (
    DUAL_CHANGES,
    UPLOADS_COUNTS,
    ModelState,
    initial_model,
    total_rate,
)
from fedjax_sim.checks import check_at_least, check_choice, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate
from fedjax_sim.prox import Composite, check_composite, like
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Requires, Round, Scalar, Work, specified

__all__ = ["fedmid", "fedmid_osp"]


class _Visit(NamedTuple):
    descent: Params  # start - end, of x or of its dual
    elapsed: Array  # the sum of the visit's client rates


@specified
def fedmid(
    lr: ScalarOrSchedule,
    composite: Composite,
    server_lr: Scalar = 1.0,
    *,
    local_prox: bool = True,
    server_prox: bool = True,
    delta_space: Literal["primal", "dual"] = "primal",
    project_start: bool = True,
) -> FedAlgorithm:
    r"""FedMiD: federated mirror descent; composite mirror steps on clients and on the server.

    With :math:`P_c(y) = \operatorname{argmin}_x h(x) + c\,\psi(x) - \langle y, x \rangle`, the prox
    of :math:`c\,\psi` if h is Euclidean:

    .. math::
        x_i &\leftarrow P_{\eta_c}(\nabla h(x_i) - \eta_c\, g_i(x_i)), \qquad x_i^0 = x \\
        x &\leftarrow P_{\eta_s \bar H}(\nabla h(x) + \eta_s \textstyle\sum_i w_i (x_i^{K_i} - x)),
        \qquad \bar H = \textstyle\sum_i w_i \eta_c K_i

    The mean change already contains the clients' shrinkage by a finite psi, and the server shrinks
    once more: for small rates FedMiD as printed solves :math:`F + 2 \psi`.  ``server_prox=False``
    or ``local_prox=False`` (:func:`fedmid_osp`) solve :math:`F + \psi`.  A constraint is no
    stronger for being applied twice.  With one client, ``server_prox=False`` is the proximal
    gradient method (composite mirror descent), the reference that local steps are compared with.

    Args:
        lr: client learning rate :math:`\eta_c`, or a schedule over rounds.
        composite: psi and h, see :func:`fedjax_sim.prox.composite`.
        server_lr: server learning rate :math:`\eta_s`.
        local_prox: whether the clients apply psi.
        server_prox: whether the server applies psi. Without it a server rate above 1 can leave a
            constraint.
        delta_space: "primal" sends changes of x, as printed; "dual" sends those of
            :math:`\nabla h(x)`, which the server's formula calls for. Equal if h is Euclidean.
        project_start: project an initial model outside a constraint first.

    Raises:
        ValueError: no composite regulariser, another ``delta_space``; psi and h without a closed
            form.

    References:
        Yuan et al., 2021; Yuan, 2023, Algorithm 5.

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = fedmid(0.01, prox.composite(prox.L1(0.2)), server_lr=0.3)
    """
    check_rates(lr=lr)
    check_composite(composite)
    check_at_least(0, server_lr=server_lr)
    check_choice(("primal", "dual"), delta_space=delta_space)

    def init(params: Params) -> ModelState:
        return ModelState(initial_model(params, composite, project_start))

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        eta = rate(lr, work)

        def step(y: Params, k: Array) -> Params:
            # Eq. (4.5), which omits the rate before the gradient.
            dual = tree.add_scale(composite.to_dual(y), -eta, oracle.grad(y, k))
            return composite.argmin(dual, eta) if local_prox else composite.to_primal(dual)

        end = local_steps(step, x, work)
        space = composite.to_dual if delta_space == "dual" else lambda x: x
        return _Visit(tree.sub(space(x), space(end)), total_rate(eta, work.num_steps)), state

    def update(state: ModelState, mean: _Visit, round: Round) -> ModelState:
        dual = tree.add_scale(composite.to_dual(state.params), -server_lr, mean.descent)
        if server_prox:
            return ModelState(composite.argmin(dual, like(mean.elapsed, server_lr) * mean.elapsed))
        return ModelState(composite.to_primal(dual))

    other = DUAL_CHANGES if delta_space == "dual" else None
    requires = Requires(exact_mean=UPLOADS_COUNTS, other_uploads=other)
    return FedAlgorithm(init, local, update, requires=requires)


@specified
def fedmid_osp(
    lr: ScalarOrSchedule,
    composite: Composite,
    server_lr: Scalar = 1.0,
    *,
    delta_space: Literal["primal", "dual"] = "primal",
    project_start: bool = True,
) -> FedAlgorithm:
    r"""FedMiD-OSP: only the server is proximal; clients do not apply psi.

    .. math::
        x_i \leftarrow (\nabla h)^{-1}(\nabla h(x_i) - \eta_c\, g_i(x_i)), \qquad x_i^0 = x

    and the server as in :func:`fedmid`.  With one local step and unit server rate it is
    the proximal gradient method.

    Args:
        lr: client learning rate, or a schedule over rounds.
        composite: psi and h, see :func:`fedjax_sim.prox.composite`.
        server_lr: server learning rate.
        delta_space: as for :func:`fedmid`.
        project_start: as for :func:`fedmid`.

    References:
        Yuan et al., 2021; Yuan, 2023, Algorithm 7.

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = fedmid_osp(0.01, prox.composite(prox.L1(0.2)))
    """
    return fedmid(
        lr,
        composite,
        server_lr,
        local_prox=False,
        delta_space=delta_space,
        project_start=project_start,
    )
