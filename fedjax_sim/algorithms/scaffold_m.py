r"""SCAFFOLD-M: SCAFFOLD with momentum in the local steps.

References:
    Cheng, Huang, Wu, Yuan, "Momentum Benefits Non-IID Federated Learning Simply and Provably",
        2024.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import MEAN_OF_ALL
from fedjax_sim.checks import check_at_least, check_probability, check_rates
from fedjax_sim.local import ScalarOrSchedule, inverse_rate, local_steps, per_step, rate
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Round,
    Scalar,
    Work,
    send_state,
    specified,
)

__all__ = ["scaffold_m"]


class ScaffoldMState(NamedTuple):
    params: Params  # x
    control: Params  # c, the mean of all clients' controls c_i
    direction: Params  # g, the mean descent direction of the last round


class _Visit(NamedTuple):
    delta: Params
    control_change: Params
    direction: Params


@specified
def scaffold_m(lr: ScalarOrSchedule, server_lr: Scalar = 1.0, mix: Scalar = 0.1) -> FedAlgorithm:
    r"""SCAFFOLD-M: local steps mix the corrected gradient and the last round's direction.

    With ``mix`` :math:`\beta`, and the controls :math:`c_i` and c and the direction g from zero:

    .. math::
        y &\leftarrow y - \eta\,\bigl(\beta\,(g_i(y) - c_i + c) + (1 - \beta)\, g\bigr),
        \qquad y_0 = x \\
        c_i^+ &= \tfrac{1}{K_i} \textstyle\sum_k g_i(y_k), \qquad
        c \leftarrow c + \tfrac{|S|}{M} \operatorname{mean}_i (c_i^+ - c_i) \\
        g &\leftarrow \operatorname{mean}_i \frac{x - y_{K_i}}{K_i \eta}, \qquad
        x \leftarrow x - \eta_s \operatorname{mean}_i (x - y_{K_i})

    A visit without steps keeps :math:`c_i` and counts as 0 in all three means.  With
    :math:`\beta = 1` this is SCAFFOLD with option II; without controls it is FedCM.  Lost uploads
    shift the limit, and weights change the means, as for :func:`~fedjax_sim.algorithms.scaffold`.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        server_lr: server learning rate :math:`\eta_s`.
        mix: share :math:`\beta` of the client's corrected gradient, in (0, 1].

    Raises:
        ValueError: a number outside its range; weights that change, as for
            :func:`~fedjax_sim.algorithms.scaffold`.

    References:
        Cheng et al., 2024, Algorithm 2.

    Example:
        >>> algorithm = scaffold_m(lr=0.1)
    """

    check_rates(lr=lr)
    check_at_least(0, server_lr=server_lr)
    check_probability(mix=mix)

    def init(params: Params) -> ScaffoldMState:
        zeros = tree.zeros_like(params)
        return ScaffoldMState(params, zeros, zeros)

    def local(
        message: ScaffoldMState, control: Params, oracle: Oracle, work: Work
    ) -> tuple[_Visit, Params]:
        x, eta = message.params, rate(lr, work)
        correction = tree.sub(message.control, control)
        constant = tree.add_scale(tree.scale(mix, correction), 1 - mix, message.direction)

        def step(carry: tuple[Params, Params], k: Array) -> tuple[Params, Params]:
            y, total = carry
            g = oracle.grad(y, k)
            y = tree.add_scale(y, -eta, tree.add_scale(constant, mix, g))
            return y, tree.add(total, g)

        y, total = local_steps(step, (x, tree.zeros_like(x)), work)
        delta = tree.sub(x, y)
        new = tree.where(work.num_steps > 0, per_step(total, work), control)
        direction = tree.scale(inverse_rate(eta), per_step(delta, work))
        return _Visit(delta, tree.sub(new, control), direction), new

    def update(state: ScaffoldMState, mean: _Visit, round: Round) -> ScaffoldMState:
        return ScaffoldMState(
            tree.add_scale(state.params, -server_lr, mean.delta),
            tree.add_scale(state.control, round.participation, mean.control_change),
            mean.direction,
        )

    return FedAlgorithm(
        init, local, update, send_state, init_client=tree.zeros_like, requires=MEAN_OF_ALL
    )
