r"""FedExP: a server step size from the disagreement of the clients.

References:
    Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", 2023.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import ModelState, real, real_vdot
from fedjax_sim.checks import check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, server_rate, sgd
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Requires, Round, Work, specified

__all__ = ["fedexp"]


_SQUARED = (
    "clients also upload squared norms, which a clip would divide by its factor, not by the "
    "square of it, so that the server's step would undo the clip"
)


class FedExpState(NamedTuple):
    params: Params  # the mean of the last two iterates, which is evaluated
    iterate: Params  # x


class _Visit(NamedTuple):
    delta: Params
    squared_norm: Array


@specified
def fedexp(
    lr: ScalarOrSchedule, eps: ScalarOrSchedule = 1e-3, average_last: bool = False
) -> FedAlgorithm:
    r"""FedExP: FedAvg with an extrapolated server step.

    .. math::
        \eta_g = \max\Bigl(1, \frac{\operatorname{mean}_i \|\Delta_i\|^2}
        {2 (\|\operatorname{mean}_i \Delta_i\|^2 + \epsilon)}\Bigr), \qquad
        x \leftarrow x - \eta_g \operatorname{mean}_i \Delta_i, \qquad
        \Delta_i = x - y_{K_i}

    The step is long where the clients' displacements are nearly orthogonal, as for models that fit
    all data.  Where the mean displacement vanishes but the single ones do not, the step is
    unbounded up to :math:`\epsilon`, and the iterates need not converge.

    Args:
        lr: client learning rate, or a schedule over rounds.
        eps: :math:`\epsilon`, or a schedule over rounds.  The authors' program multiplies it by the
            number of clients per round and decays it by the square of the decay of ``lr``.
        average_last: evaluate the mean of the models before and after the last update, as the
            authors' program does.

    Raises:
        ValueError: a number outside its range.

    References:
        Jhunjhunwala et al., 2023, Algorithm 1 and Eq. (8).

    Example:
        >>> algorithm = fedexp(lr=0.1)
    """

    check_rates(lr=lr, eps=eps)

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        delta = tree.sub(x, local_steps(sgd(rate(lr, work), oracle.grad), x, work))
        return _Visit(delta, real_vdot(delta, delta)), state

    def moved(x: Params, mean: _Visit, round: Round) -> Params:
        number = real(server_rate(eps, round, "eps"))
        below = 2 * (real_vdot(mean.delta, mean.delta) + number)
        ratio = mean.squared_norm / jnp.where(below > 0, below, 1)  # 0 / 1 without reports
        return tree.add_scale(x, -jnp.maximum(1, ratio), mean.delta)

    if not average_last:
        return FedAlgorithm(
            ModelState,
            local,
            lambda state, mean, round: ModelState(moved(state.params, mean, round)),
            requires=Requires(exact_mean=_SQUARED),
        )

    def update(state: FedExpState, mean: _Visit, round: Round) -> FedExpState:
        new = moved(state.iterate, mean, round)
        return FedExpState(tree.scale(0.5, tree.add(state.iterate, new)), new)

    return FedAlgorithm(
        lambda params: FedExpState(params, params),
        local,
        update,
        broadcast=lambda state, round: state.iterate,
        requires=Requires(exact_mean=_SQUARED),
    )
