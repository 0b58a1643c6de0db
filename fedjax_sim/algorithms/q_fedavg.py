r"""q-FedAvg: clients with a larger loss count more.

References:
    Li, Sanjabi, Beirami, Smith, "Fair Resource Allocation in Federated Learning", 2020,
        arXiv 1905.10497.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS, ModelState, full_loss, real, real_vdot
from fedjax_sim.checks import check_at_least, check_rates
from fedjax_sim.local import ScalarOrSchedule, inverse_rate, local_steps, rate, sgd
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Requires, Round, Scalar, Work, specified

__all__ = ["q_fedavg"]

_SMALLEST = 1e-10  # added to a loss, as in the authors' program: powers of it have to be finite


class _Visit(NamedTuple):
    change: Params  # Delta_k
    curvature: Array  # h_k


@specified
def q_fedavg(lr: ScalarOrSchedule, q: Scalar = 1.0) -> FedAlgorithm:
    r"""q-FedAvg: FedAvg for the fair objective :math:`\sum_i p_i F_i(x)^{q+1} / (q + 1)`.

    With the client's loss :math:`F_i = F_i(x)` on all its data, at the model that it received,

    .. math::
        \Delta w_i &= \frac{x - y_{K_i}}{\eta}, \qquad y \leftarrow y - \eta\, g_i(y), \quad y_0 = x
        \\
        \Delta_i &= F_i^q \Delta w_i, \qquad
        h_i = q F_i^{q - 1} \|\Delta w_i\|^2 + \frac{1}{\eta} F_i^q \\
        x &\leftarrow x - \frac{\operatorname{mean}_i \Delta_i}{\operatorname{mean}_i h_i}

    :math:`h_i` bounds the curvature of :math:`F_i^{q+1} / (q+1)` if :math:`1 / \eta` bounds that of
    :math:`F_i`, so one rate serves all q.  With ``q=0`` it is FedAvg.  A larger q makes the losses
    of the clients more equal.  Losses have to be positive.

    Args:
        lr: client learning rate :math:`\eta`, the inverse of the paper's L; or a schedule over
            rounds.
        q: exponent, at least 0.

    Raises:
        ValueError: in the first round, a task whose oracle has no ``full_loss``.

    References:
        Li et al., 2020, Algorithm 2; the uploads have the weights of the setup, as in the authors'
        program equal ones.

    Example:
        >>> algorithm = q_fedavg(lr=0.1, q=2.0)
    """

    check_rates(lr=lr)
    check_at_least(0, q=q)

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        eta = rate(lr, work)
        loss = real(full_loss(oracle)(x)) + _SMALLEST  # before the steps, which move private leaves
        y = local_steps(sgd(eta, oracle.grad), x, work)
        exponent, bound = real(q), inverse_rate(real(eta))
        step = tree.scale(bound, tree.sub(x, y))
        power = loss**exponent
        squared = real_vdot(step, step)
        curvature = exponent * loss ** (exponent - 1) * squared + bound * power
        took_steps = work.num_steps > 0  # otherwise the upload counts nothing
        return _Visit(tree.scale(power, step), jnp.where(took_steps, curvature, 0)), state

    def update(state: ModelState, mean: _Visit, round: Round) -> ModelState:
        below = jnp.where(mean.curvature > 0, mean.curvature, 1)  # 0 / 1 without reports
        return ModelState(tree.sub(state.params, tree.divide(mean.change, below)))

    requires = Requires(
        exact_mean=UPLOADS_COUNTS, other_uploads="changes times a power of the client's loss"
    )
    return FedAlgorithm(ModelState, local, update, requires=requires)
