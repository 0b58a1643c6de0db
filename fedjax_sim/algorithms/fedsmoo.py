r"""FedSMOO: dynamic regularisation of the model and of the sharpness-aware perturbation.

References:
    Sun et al., "Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching
        Global Consistency and Smooth Landscape", 2023.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import MEAN_OF_ALL, Transform
from fedjax_sim.checks import check_at_least, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, perturbed, rate, unchanged
from fedjax_sim.types import FedAlgorithm, Message, Oracle, Params, Round, Scalar, Work, specified

__all__ = ["fedsmoo"]


class FedSmooState(NamedTuple):
    params: Params  # x
    dual: Params  # the mean of all clients' h_i
    offset: Params  # s, the common perturbation


class FedSmooClient(NamedTuple):
    dual: Params  # h_i
    pull: Params  # mu_i, the dual of the perturbation


@specified
def fedsmoo(
    lr: ScalarOrSchedule, mu: Scalar = 0.1, radius: Scalar = 0.1, transform: Transform = unchanged
) -> FedAlgorithm:
    r"""FedSMOO: clients agree on a model and on the perturbation at which gradients are taken.

    With ``mu`` :math:`\lambda`, ``radius`` r and :math:`n(z) = z / (\|z\| + 10^{-7})`, all other
    vectors from zero, M clients:

    .. math::
        e &= r\, n(g_i(y) - \mu_i - s), \qquad \mu_i \leftarrow \mu_i + e - s \\
        y &\leftarrow y - \eta\,\bigl(g_i(y + e) + \lambda\,(h_i + y - x)\bigr), \qquad y_0 = x \\
        h_i &\leftarrow h_i + y_{K_i} - x, \qquad
        x \leftarrow \operatorname{mean}_{i \in S} y_{K_i} + \tfrac{1}{M} \textstyle\sum_i h_i,
        \qquad s \leftarrow r\, n(\operatorname{mean}_{i \in S} \mu_i)

    The server rule is the one of the authors' program, which drops a term :math:`e_{i,K}` of the
    paper's rule.  In that program clipping includes :math:`\lambda (h_i - x)`; here ``transform``
    acts on :math:`g_i(y + e)` alone, as in every other method.  With ``radius=0`` it is FedDyn.
    Lost uploads shift the limit, and weights change the means, as for
    :func:`~fedjax_sim.algorithms.feddyn`.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        mu: weight :math:`\lambda` of the proximal term; not the dual :math:`\mu_i`.
        radius: norm r of the perturbation.
        transform: as for :func:`~fedjax_sim.algorithms.fedsam`.

    Raises:
        ValueError: as :func:`~fedjax_sim.algorithms.feddyn`.

    References:
        Sun et al., 2023, Algorithm 1.

    Example:
        >>> algorithm = fedsmoo(lr=0.1)
    """

    check_rates(lr=lr)
    check_at_least(0, mu=mu, radius=radius)

    def init(params: Params) -> FedSmooState:
        return FedSmooState(params, tree.zeros_like(params), tree.zeros_like(params))

    def init_client(params: Params) -> FedSmooClient:
        return FedSmooClient(tree.zeros_like(params), tree.zeros_like(params))

    def broadcast(state: FedSmooState, round: Round) -> Message:
        return state.params, state.offset

    def local(
        message: tuple[Params, Params], state: FedSmooClient, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], FedSmooClient]:
        (x, common), eta = message, rate(lr, work)

        def step(carry: tuple[Params, Params], k: Array) -> tuple[Params, Params]:
            y, pull = carry
            ascent = tree.sub(tree.sub(oracle.grad(y, k), pull), common)
            offset = _along(ascent, radius)
            sharp = transform(perturbed(oracle, offset))
            drift = tree.add(state.dual, tree.sub(y, x))
            direction = tree.add_scale(sharp.grad(y, k), mu, drift)
            return tree.add_scale(y, -eta, direction), tree.add(pull, tree.sub(offset, common))

        y, pull = local_steps(step, (x, state.pull), work)
        delta = tree.sub(x, y)
        active = work.num_steps > 0
        new = FedSmooClient(tree.sub(state.dual, delta), pull)
        return (delta, tree.where(active, pull, tree.zeros_like(pull))), new

    def update(state: FedSmooState, mean: tuple[Params, Params], round: Round) -> FedSmooState:
        delta, pull = mean
        dual = tree.add_scale(state.dual, -round.participation, delta)
        average = tree.sub(state.params, delta)
        return FedSmooState(tree.add(average, dual), dual, _along(pull, radius))

    return FedAlgorithm(init, local, update, broadcast, init_client, requires=MEAN_OF_ALL)


def _along(x: Params, radius: Scalar) -> Params:
    """Returns the vector of norm ``radius`` in the direction of x; 0 for 0."""
    return tree.scale(tree.over_norm(radius, x, 1e-7), x)
