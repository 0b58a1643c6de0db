r"""FedMuon: local Muon from the averaged momentum, and a global direction.

References:
    Liu et al., "FedMuon: Accelerating Federated Learning with Matrix Orthogonalization", 2025.
"""

from __future__ import annotations

from typing import NamedTuple

import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._muon import MuonState, is_matrix, scale_by_muon, split
from fedjax_sim.algorithms._shared import UPLOADS_COUNTS, real
from fedjax_sim.checks import check_at_least, check_decay, check_probability, check_rates
from fedjax_sim.local import (
    ScalarOrSchedule,
    inverse_rate,
    local_steps,
    optimizer_init,
    optimizer_update,
    per_step,
    rate,
)
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

__all__ = ["fedmuon"]


class FedMuonState(NamedTuple):
    params: Params  # x
    direction: Params  # Delta, the mean descent direction of the last round
    momentum: Params  # M, of the matrices


class _Visit(NamedTuple):
    delta: Params
    direction: Params
    momentum: Params
    present: Array  # 1, or 0 after a visit without steps


@specified
def fedmuon(
    lr: ScalarOrSchedule,
    mix: Scalar = 0.5,
    momentum: Scalar = 0.98,
    weight_decay: Scalar = 0.01,
    b1: Scalar = 0.9,
    b2: Scalar = 0.95,
    *,
    matrices: tree.leaves.Selection = is_matrix,
) -> FedAlgorithm:
    r"""FedMuon: clients take steps of Muon, whose momentum starts at the last round's mean.

    With ``mix`` :math:`\alpha`, ``weight_decay`` :math:`\lambda`, and a visit that starts from
    y = x and the server's M, for every matrix of the model:

    .. math::
        M &\leftarrow \beta M + (1 - \beta) g_i(y), \qquad
        u = \sqrt{\max(1, \tfrac{rows}{columns})}\;
        \mathrm{orth}\bigl(\beta M + (1 - \beta) g_i(y)\bigr) \\
        y &\leftarrow y - \eta\,(\alpha u + (1 - \alpha) \Delta + \lambda y)

    orth are five Newton-Schulz steps,

    .. math::
        Z \leftarrow 3.4445\, Z - 4.775\, Z Z^\top Z + 2.0315\, (Z Z^\top)^2 Z, \qquad
        \text{from } \frac{\text{matrix}}{\|\text{matrix}\|_F + 10^{-7}}

    after which all singular values are near 1, so the steps do not depend on the scale of the
    gradients.  The factor before it is for kernels stored as [outputs, inputs], as in the dense
    layers of :mod:`fedjax_sim.models`: a layer with more outputs than inputs takes longer steps.
    Kernels stored as [inputs, outputs], as those of flax, get the factor of their transpose.  For
    all leaves that are not matrices u is the direction of Adam (epsilon :math:`10^{-8}`), whose
    state starts at 0 in every visit.  The server averages, from :math:`\Delta = M = 0`:

    .. math::
        x \leftarrow \operatorname{mean}_i y_{K_i}, \qquad
        \Delta \leftarrow \operatorname{mean}_i \frac{x - y_{K_i}}{K_i \eta}, \qquad
        M \leftarrow \operatorname{mean}_i M_i

    The mean of :math:`M_i` is over the visits with steps; in :math:`\Delta` a visit without steps
    counts as 0.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        mix: share :math:`\alpha` of the client's own direction, in (0, 1].
        momentum: :math:`\beta` of Muon.
        weight_decay: decoupled weight decay :math:`\lambda`.
        b1: decay of Adam's mean of gradients, for leaves that are not matrices.
        b2: decay of Adam's mean of squares.
        matrices: predicate ``(path, leaf) -> bool`` or other selection of the matrices, by default
            the leaves with two axes.  Leaves with further axes before these two hold one matrix
            per block of a network, as the kernels of :func:`~fedjax_sim.models.vit` do, whose
            biases then have two axes.  The kernels ``[inputs, heads, d]`` of flax's attention
            layers are no such stacks; by default they get Adam's steps.

    Raises:
        ValueError: a number outside its range; at the start of the run, a selected leaf with fewer
            than two axes.

    References:
        Liu et al., 2025, Algorithm 2.

    Example:
        >>> algorithm = fedmuon(lr=0.01)
        >>> of_blocks = fedmuon(lr=0.01, matrices=lambda path, leaf: path[-1] == "kernel")
    """
    check_rates(lr=lr)
    check_at_least(0, weight_decay=weight_decay)
    check_decay(momentum=momentum, b1=b1, b2=b2)
    check_probability(mix=mix)
    muon = scale_by_muon(momentum)
    adam = optax.scale_by_adam(b1, b2, eps_root=1e-30)

    def init(params: Params) -> FedMuonState:
        zeros = tree.zeros_like(params)
        momentum = split(zeros, matrices)[0]
        return FedMuonState(params, zeros, momentum)

    def local(
        message: FedMuonState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[_Visit, tuple]:
        x, eta = message.params, rate(lr, work)
        constant = tree.scale(1 - mix, message.direction)

        def step(carry: tuple, k: Array) -> tuple:
            y, muon_state, adam_state = carry
            kernels, others = split(oracle.grad(y, k), matrices)
            first, muon_state = optimizer_update(muon, kernels, muon_state)
            second, adam_state = optimizer_update(adam, others, adam_state)
            descent = tree.add_scale(constant, mix, tree.leaves.join(first, second))
            descent = tree.add_scale(descent, weight_decay, y)
            return tree.add_scale(y, -eta, descent), muon_state, adam_state

        others = split(x, matrices)[1]
        start = x, MuonState(message.momentum), optimizer_init(adam, others)
        y, (end,), _ = local_steps(step, start, work)
        delta, present = tree.sub(x, y), real(work.num_steps > 0)
        direction = tree.scale(inverse_rate(eta), per_step(delta, work))
        return _Visit(delta, direction, tree.scale(present, end), present), state

    def update(state: FedMuonState, mean: _Visit, round: Round) -> FedMuonState:
        momentum = tree.divide_or_keep(mean.momentum, mean.present)  # over the visits with steps
        return FedMuonState(
            tree.sub(state.params, mean.delta),
            mean.direction,
            tree.where(mean.present > 0, momentum, state.momentum),
        )

    return FedAlgorithm(
        init, local, update, send_state, requires=Requires(exact_mean=UPLOADS_COUNTS)
    )
