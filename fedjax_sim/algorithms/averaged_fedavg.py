r"""FedAvg whose output is an average of its shadow iterates, as in the theorems.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, Proposition 2.1,
        Theorems 2.19 and B.18.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_MODELS, real
from fedjax_sim.checks import check_at_least, check_choice, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.tree import divide_or_keep
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Requires, Round, Scalar, Work, specified

__all__ = ["averaged_fedavg"]


class Average(NamedTuple):
    """A weighted sum of iterates and its weight."""

    total: Params  # in single precision at least
    weight: Array


class AveragedState(NamedTuple):
    params: Params  # the average so far, which is evaluated
    current: Params  # x, the server's iterate
    average: Average


class _Visit(NamedTuple):
    descent: Params  # x - y
    average: Average
    forgotten: Array  # 1 - factor^K; a visit without steps uploads zeros


@specified
def averaged_fedavg(
    lr: ScalarOrSchedule, factor: Scalar = 1.0, at: Literal["start", "end"] = "end"
) -> FedAlgorithm:
    r"""Averaged FedAvg: the model is a weighted average of all shadow iterates so far.

    .. math::
        S \leftarrow q S + \bar x^{(r,k)}, \qquad Z \leftarrow q Z + 1, \qquad \hat x = S / Z,
        \qquad \bar x^{(r,k)} = \operatorname{mean}_i x_i^{(r,k)}

    The mean of the clients' sums of iterates is the sum of shadow iterates, so no iterate is
    stored, and an upload is two models.

    ==========================  ============================  ==========
    result                      factor q                      at
    ==========================  ============================  ==========
    Proposition 2.1             1                             "end"
    Theorem 2.19, third order   :math:`1 + 1 / (K R)`         "start"
    Theorem B.18                :math:`1 - \eta \mu / 2`      "start"
    ==========================  ============================  ==========

    The weights of Theorem 2.19, :math:`(1 + 1/(KR))^{-(t + 1)}`, are these up to a common factor.
    Before the first local step the model is the initial one.

    Args:
        lr: client learning rate, or a schedule over rounds.
        factor: number q that multiplies the weights of earlier iterates at every step.
        at: "end" averages the iterates after each step, "start" those before it.

    Raises:
        ValueError: another ``at``.

    Example:
        >>> strongly_convex = averaged_fedavg(lr=0.1, factor=1 - 0.1 * 1e-2 / 2, at="start")
    """
    check_rates(lr=lr)
    check_at_least(0, factor=factor)
    check_choice(("start", "end"), at=at)

    def init(params: Params) -> AveragedState:
        return AveragedState(params, params, _empty(params))

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        descend = sgd(rate(lr, work), oracle.grad)
        q = real(factor)

        def step(carry: tuple[Params, Average, Array], k: Array):
            y, average, kept = carry
            new = descend(y, k)
            return new, _add(average, q, new if at == "end" else y), q * kept

        one = jnp.ones_like(q)
        y, average, kept = local_steps(step, (x, _empty(x), one), work)
        return _Visit(tree.sub(x, y), average, 1 - kept), state

    def update(state: AveragedState, mean: _Visit, round: Round) -> AveragedState:
        old, new, kept = state.average, mean.average, 1 - mean.forgotten
        average = Average(
            tree.add_scale(new.total, kept, old.total), new.weight + kept * old.weight
        )
        # Before any step the model stays the initial one.
        output = tree.where(
            average.weight > 0, divide_or_keep(average.total, average.weight), state.params
        )
        return AveragedState(output, tree.sub(state.current, mean.descent), average)

    return FedAlgorithm(
        init,
        local,
        update,
        lambda state, round: state.current,
        requires=Requires(
            synchronous="the average is over the means of clients that started from one model",
            exact_mean=UPLOADS_MODELS,
        ),
    )


def _empty(params: Params) -> Average:
    return Average(tree.zeros_like(params), jnp.zeros((), jnp.result_type(float)))


# The weights of all theorems are geometric, so one recursion with one factor suffices.
def _add(average: Average, factor: Scalar, x: Params) -> Average:
    total = tree.add_scale(x, factor, average.total)
    return Average(total, factor * average.weight + 1)
