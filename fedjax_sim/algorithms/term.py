r"""TERM: tilted empirical risk minimisation over the clients.

References:
    Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", 2021, arXiv 2007.01162.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS, full_loss, real
from fedjax_sim.checks import check_at_least, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Work,
    send_state,
    specified,
)

__all__ = ["term"]

# Largest exponent; single precision needs the cut in the first rounds of large tilts only.
_LARGEST = 60.0  # exp of it, and of its negative, are far from the limits of single precision


class TermState(NamedTuple):
    params: Params  # x
    offset: Array  # o: t times the objective over the cohort of the last round, at its message


class _Visit(NamedTuple):
    change: Params  # exp(t F_i - o) (x - y)
    weight: Array  # exp(t F_i - o)


@specified
def term(lr: ScalarOrSchedule, tilt: Scalar = 1.0, server_lr: Scalar = 1.0) -> FedAlgorithm:
    r"""TERM: FedAvg for a tilted mean of the clients' losses.

    .. math:: \frac1t \log \operatorname{mean}_i e^{t F_i(x)}

    The server moves by the softmax of the clients' losses,

    .. math::
        x \leftarrow x - \eta_s \sum_i p_i (x - y_{K_i}), \qquad
        p_i = \frac{e^{t F_i(x)}}{\sum_j e^{t F_j(x)}}

    over the clients of a round, with the losses on all their data at the model that they received,
    and y the result of SGD on the client's own objective.  A positive tilt t weights clients with a
    large loss up, and the objective tends to the largest loss for :math:`t \to \infty`; a negative
    tilt weights them down.  With ``tilt=0`` it is FedAvg.

    The softmax is exact, and needs no second exchange: clients send :math:`e^{t F_i - o} (x - y)`
    and :math:`e^{t F_i - o}`, and the offset o that they received cancels in the quotient of the
    means.  It is the logarithm of the last round's mean of :math:`e^{t F_i}`, so exponents stay
    small; beyond 60 they are cut.  (The authors' program tilts by a running estimate.)

    Args:
        lr: client learning rate, or a schedule over rounds.
        tilt: t.
        server_lr: server learning rate :math:`\eta_s`.

    Raises:
        ValueError: a timeline with staleness, since uploads with different offsets have no common
            softmax; in the first round, a task whose oracle has no ``full_loss``.

    References:
        Li et al., 2021, Eq. (2); between clients, as in its hierarchical form (section 2.4).

    Example:
        >>> algorithm = term(lr=0.1, tilt=2.0)
    """

    check_rates(lr=lr)
    check_at_least(0, server_lr=server_lr)

    def local(message: TermState, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        x = message.params
        # Before the steps, which move private leaves.
        exponent = real(tilt) * real(full_loss(oracle)(x)) - message.offset
        weight = jnp.exp(jnp.clip(exponent, -_LARGEST, _LARGEST))
        weight = jnp.where(work.num_steps > 0, weight, 0)
        y = local_steps(sgd(rate(lr, work), oracle.grad), x, work)
        return _Visit(tree.scale(weight, tree.sub(x, y)), weight), state

    def update(state: TermState, mean: _Visit, round: Round) -> TermState:
        total = jnp.where(mean.weight > 0, mean.weight, 1)  # 0 / 1 without reports
        step = tree.divide(mean.change, total)
        params = tree.add_scale(state.params, -real(server_lr), step)
        return TermState(params, state.offset + jnp.log(total))

    return FedAlgorithm(
        init=lambda params: TermState(params, jnp.zeros((), jnp.result_type(float))),
        local=local,
        update=update,
        broadcast=send_state,
        requires=Requires(
            synchronous="the offset of all exponents in a round must be the same",
            exact_mean=UPLOADS_COUNTS,
            other_uploads="changes times the client's weight in the tilted mean",
        ),
    )
