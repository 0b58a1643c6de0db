r"""FedNova: normalised averaging of clients with different numbers of local steps.

References:
    Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
        Federated Optimization", 2020.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS, ModelState, real
from fedjax_sim.checks import check_at_least, check_decay, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Requires, Round, Scalar, Work, specified

__all__ = ["fednova"]


class _Visit(NamedTuple):
    normalised: Params  # (x - y) / A
    effective_steps: Array  # A, or K with a proximal term
    present: Array  # 1, or 0 after a visit without steps


@specified
def fednova(
    lr: ScalarOrSchedule, server_lr: Scalar = 1.0, momentum: Scalar = 0.0, mu: Scalar = 0.0
) -> FedAlgorithm:
    r"""FedNova: the mean of the clients' displacements per effective step.

    With momentum :math:`\rho` and proximal weight :math:`\mu` a client takes the steps

    .. math::
        m \leftarrow \rho m + g_i(y), \qquad y \leftarrow y - \eta\,(m + \mu (y - x)), \qquad
        y_0 = x

    from m = 0, so that :math:`x - y_{K_i}` is :math:`\eta A_i` times a weighted mean of its
    gradients.  The server moves along the mean of these means,

    .. math::
        x \leftarrow x - \eta_s \tau \operatorname{mean}_i \frac{x - y_{K_i}}{A_i}, \qquad
        \tau = \operatorname{mean}_i A_i \quad (\operatorname{mean}_i K_i \text{ if } \mu \ne 0)

    so clients with many steps do not weigh more.  Both means are over the visits with steps.
    :math:`A_i` is the sum of the gradients' coefficients in :math:`(x - y_{K_i}) / \eta`,

    .. math::
        A_i = \sum_{k=1}^{K_i} (1 - \eta\mu)^{K_i - k} \sum_{j=1}^{k} \rho^{k - j}

    which is :math:`K_i` for SGD,
    :math:`\bigl(K_i - \rho \tfrac{1 - \rho^{K_i}}{1 - \rho}\bigr) / (1 - \rho)` with momentum only
    and :math:`(1 - (1 - \eta\mu)^{K_i}) / (\eta\mu)` with the proximal term only.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        server_lr: server learning rate :math:`\eta_s`.
        momentum: :math:`\rho` of the local steps.
        mu: weight of the proximal term in the local steps.

    Raises:
        ValueError: a number outside its range.

    References:
        Wang et al., 2020, Eq. (9) and section 4.

    Example:
        >>> algorithm = fednova(lr=0.1, momentum=0.9)
    """

    check_rates(lr=lr)
    check_at_least(0, server_lr=server_lr, mu=mu)
    check_decay(momentum=momentum)

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        eta = rate(lr, work)

        def step(carry: tuple, k: Array) -> tuple:
            y, velocity, newest, steps = carry
            velocity = tree.add_scale(oracle.grad(y, k), momentum, velocity)
            descent = tree.add_scale(velocity, mu, tree.sub(y, x))
            # Coefficients of the gradients in (x - y) / eta: of the newest velocity, and of all.
            newest = 1 + real(momentum) * newest
            steps = (1 - real(eta) * real(mu)) * steps + newest
            return tree.add_scale(y, -eta, descent), velocity, newest, steps

        zero = jnp.zeros((), jnp.result_type(float))
        start = x, tree.zeros_like(x), zero, zero
        y, _, _, steps = local_steps(step, start, work)
        present = work.num_steps > 0
        normalised = tree.divide(tree.sub(x, y), jnp.where(present, steps, 1))
        effective = jnp.where(real(mu) == 0, steps, real(work.num_steps))
        return _Visit(normalised, effective, real(present)), state

    def update(state: ModelState, mean: _Visit, round: Round) -> ModelState:
        share = jnp.where(mean.present > 0, mean.present, 1)  # of the visits with steps, twice
        scale = -real(server_lr) * mean.effective_steps / share**2
        return ModelState(tree.add_scale(state.params, scale, mean.normalised))

    requires = Requires(exact_mean=UPLOADS_COUNTS, other_uploads="changes per effective step")
    return FedAlgorithm(ModelState, local, update, requires=requires)
