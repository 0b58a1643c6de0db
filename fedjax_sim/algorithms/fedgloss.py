r"""FedGloSS: sharpness-aware steps of the server, and duals that align the clients.

References:
    Caldarola, Cagnasso, Caputo, Ciccone, "Beyond Local Sharpness: Communication-Efficient Global
        Sharpness-aware Minimization for Federated Learning", 2025, arXiv 2412.03752.
"""

from __future__ import annotations

from typing import NamedTuple

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import MEAN_OF_ALL, Transform
from fedjax_sim.checks import check_at_least, check_positive, check_rates
from fedjax_sim.local import (
    ScalarOrSchedule,
    corrected,
    local_steps,
    proximal,
    rate,
    sam,
    server_rate,
    sgd,
    unchanged,
)
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Upload, Work, specified

__all__ = ["fedgloss"]


class FedGlossState(NamedTuple):
    params: Params  # x
    dual: Params  # s, the mean of all clients' duals
    direction: Params  # d, the last pseudo-gradient


@specified
def fedgloss(
    lr: ScalarOrSchedule,
    server_lr: ScalarOrSchedule = 1.0,
    mu: Scalar = 0.1,
    radius: Scalar = 0.1,
    local_radius: Scalar = 0.1,
    transform: Transform = unchanged,
) -> FedAlgorithm:
    r"""FedGloSS: the server broadcasts a model that is perturbed along the last pseudo-gradient.

    With ``mu`` :math:`\mu`, ``radius`` :math:`\rho`, ``local_radius`` r, M clients, and
    :math:`d, s, u_i` from zero:

    .. math::
        z &= x + \rho\, d / \|d\|, \qquad
        y \leftarrow y - \eta\,\Bigl(g_i\bigl(y + r\, g_i(y) / \|g_i(y)\|\bigr) - u_i
            + \mu\,(y - z)\Bigr), \quad y_0 = z \\
        u_i &\leftarrow u_i - \mu\,(y_{K_i} - z), \qquad
        s \leftarrow s - \tfrac{\mu}{M} \textstyle\sum_{i \in S} (y_{K_i} - z) \\
        d &\leftarrow \operatorname{mean}_{i \in S} (z - y_{K_i}), \qquad
        x \leftarrow x - \eta_s d - s / \mu

    The perturbation z - x costs no message, since d is that of the round before.  With both radii 0
    and ``server_lr=1`` it is FedDyn.  Lost uploads shift the limit, and weights change the means,
    as for :func:`~fedjax_sim.algorithms.feddyn`.

    The authors' program divides the step of s by the number of uploads once more, restarts z and
    moves :math:`u_i` at every local epoch, and may raise both radii over the first rounds.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        server_lr: server learning rate :math:`\eta_s`, or a schedule over rounds.
        mu: weight of the proximal term, positive, the paper's :math:`1 / \beta`.
        radius: norm :math:`\rho` of the server's perturbation.
        local_radius: norm r of the clients' perturbations; 0 for clients without them.
        transform: as for :func:`~fedjax_sim.algorithms.fedsam`.

    Raises:
        ValueError: as :func:`~fedjax_sim.algorithms.feddyn`.

    References:
        Caldarola et al., 2025, Algorithm 1.

    Example:
        >>> algorithm = fedgloss(lr=0.1, radius=0.05)
    """
    check_rates(lr=lr, server_lr=server_lr)
    check_positive(mu=mu)
    check_at_least(0, radius=radius, local_radius=local_radius)

    def init(params: Params) -> FedGlossState:
        return FedGlossState(params, tree.zeros_like(params), tree.zeros_like(params))

    def broadcast(state: FedGlossState, round: Round) -> Params:
        length = tree.over_norm(radius, state.direction)
        return tree.add_scale(state.params, length, state.direction)

    def local(z: Params, dual: Params, oracle: Oracle, work: Work) -> tuple[Upload, Params]:
        sharp = transform(sam(oracle, local_radius))
        step = corrected(proximal(sharp, mu, z), tree.scale(-1, dual))
        delta = tree.sub(z, local_steps(sgd(rate(lr, work), step.grad), z, work))
        return delta, tree.add_scale(dual, mu, delta)

    def update(state: FedGlossState, delta: Upload, round: Round) -> FedGlossState:
        dual = tree.add_scale(state.dual, mu, tree.scale(round.participation, delta))
        eta = server_rate(server_lr, round, "server_lr")
        moved = tree.add_scale(state.params, -eta, delta)
        return FedGlossState(tree.add_scale(moved, -1 / mu, dual), dual, delta)

    return FedAlgorithm(
        init, local, update, broadcast, init_client=tree.zeros_like, requires=MEAN_OF_ALL
    )
