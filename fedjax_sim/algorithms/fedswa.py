r"""FedSWA and FedMoSWA: rates that decay within a visit, server extrapolation, momentum controls.

References:
    Liu et al., "Improving Generalization in Federated Learning with Highly Heterogeneous Data via
        Momentum-Based Stochastic Controlled Weight Averaging", 2025.

Equation numbers are that paper's.  Its pseudo-code loops over k = 0..K but sends :math:`y_{K}`;
here there are K steps.  It writes :math:`g_i(\theta_t)` for the control of option I, a model that
the client does not have yet; here it is the received model.  Its line 16 abbreviates as
:math:`\Delta c_i` what Eq. (7) writes out: :math:`c_i^+ - m`, not SCAFFOLD's :math:`c_i^+ - c_i`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import ModelState
from fedjax_sim.algorithms.scaffold import ScaffoldState
from fedjax_sim.checks import check_at_least, check_choice, check_rates
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.tree import divide_or_keep
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Round,
    Scalar,
    Upload,
    Work,
    send_state,
    specified,
)

__all__ = ["fedmo", "fedmoswa", "fedswa"]

Schedule = Literal["k_over_K", "k_over_Km1"]


class Rates(NamedTuple):
    """The learning rates of one visit's steps."""

    at: Callable[[Array], Array]  # step -> rate
    total: Array  # their sum


def decaying(lr: Scalar, rho: Scalar, num_steps: Array, schedule: Schedule = "k_over_K") -> Rates:
    r"""Rates that fall linearly from ``lr`` to ``rho * lr`` during a visit of K steps, Eq. (3).

    .. math::
        \eta_k = \eta \left(1 - (1 - \rho) \frac{k}{D}\right), \qquad
        \sum_{k<K} \eta_k = \eta \left(K - (1 - \rho) \frac{K (K - 1)}{2 D}\right)

    with D = K (``"k_over_K"``, Eq. (3): the last step is one before the floor) or D = K - 1
    (``"k_over_Km1"``: the last step has the floor).  The paper's pseudo-code with its K + 1 steps
    k = 0..K is the latter for a visit of K + 1 steps.
    """
    check_choice(("k_over_K", "k_over_Km1"), schedule=schedule)
    real = jnp.result_type(float)
    lr, rho = jnp.asarray(lr, real), jnp.asarray(rho, real)
    steps = jnp.asarray(num_steps).astype(real)
    span = jnp.maximum(steps if schedule == "k_over_K" else steps - 1, 1)

    def at(k: Array) -> Array:
        return lr * (1 - (1 - rho) * k.astype(real) / span)  # Eq. (3)

    total = lr * (steps - (1 - rho) * steps * (steps - 1) / (2 * span))
    return Rates(at, total)


@specified
def fedswa(
    lr: ScalarOrSchedule, rho: Scalar = 0.1, alpha: Scalar = 1.5, schedule: Schedule = "k_over_K"
) -> FedAlgorithm:
    r"""FedSWA: rates decay within a visit and restart with the next; the server extrapolates.

    .. math::
        y \leftarrow y - \eta_k\, g_i(y), \quad y_0 = x, \qquad
        x \leftarrow x + \alpha \left(\operatorname{mean}_i y_{K_i} - x\right)

    With ``rho = alpha = 1`` it is FedAvg.

    Args:
        lr: client learning rate of the first step of each visit, or a schedule over rounds.
        rho: floor of the decay, as a fraction of ``lr``; 1 is a constant rate.
        alpha: server step; above 1 it extrapolates, 1 is averaging.
        schedule: number of steps D in the decay, see :func:`decaying`.

    Raises:
        ValueError: another schedule.

    References:
        Liu et al., 2025, section 3.2, Algorithm 1.

    Example:
        >>> algorithm = fedswa(lr=0.1)
    """
    check_rates(lr=lr)
    check_at_least(0, rho=rho, alpha=alpha)
    decaying(1.0, 1.0, jnp.array(1), schedule)  # refuses other schedules now, not when traced

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        rates = decaying(rate(lr, work), rho, work.num_steps, schedule)
        return tree.sub(x, local_steps(sgd(rates.at, oracle.grad), x, work)), state

    def update(state: ModelState, delta: Upload, round: Round) -> ModelState:
        return ModelState(tree.add_scale(state.params, -alpha, delta))  # Eq. (4)

    return FedAlgorithm(ModelState, local, update)


@specified
def fedmoswa(
    lr: ScalarOrSchedule,
    rho: Scalar = 0.1,
    alpha: Scalar = 1.5,
    gamma: Scalar = 0.2,
    *,
    option: Literal["I", "I-minibatch", "II"] = "II",
    schedule: Schedule = "k_over_K",
) -> FedAlgorithm:
    r"""FedMoSWA: FedSWA whose steps are corrected by control variates with momentum.

    .. math::
        y &\leftarrow y - \eta_k\,(g_i(y) - c_i + m), \qquad y_0 = x \\
        c_i^+ &= \nabla F_i(x) \ \text{(option I)} \quad\text{or}\quad
        c_i - m + \frac{x - y_{K_i}}{\sum_k \eta_k} \ \text{(option II)} \\
        m &\leftarrow m + \gamma \operatorname{mean}_i (c_i^+ - m), \qquad
        x \leftarrow x + \alpha \left(\operatorname{mean}_i y_{K_i} - x\right)

    The server's ``control`` is m, a client's state :math:`c_i`.  All controls start at zero;
    :func:`~fedjax_sim.algorithms.gradient_controls` starts them at the local gradients.  With
    option II :math:`c_i^+` is the mean of the visit's gradients weighted by their rates.  Zero
    ``gamma`` is not FedSWA: the clients' controls still move.

    Args:
        lr, rho, alpha, schedule: as for :func:`fedswa`.
        gamma: share of the clients' mean control that enters the server's per round.
        option: rule for the clients' controls; ``"I-minibatch"`` takes the gradient of the visit's
            first minibatch for the full one.

    Raises:
        ValueError: another option or schedule.

    References:
        Liu et al., 2025, section 3.3, Algorithm 1.

    Example:
        >>> algorithm = fedmoswa(lr=0.1)
    """
    check_rates(lr=lr)
    check_at_least(0, rho=rho, alpha=alpha, gamma=gamma)
    check_choice(("I", "I-minibatch", "II"), option=option)
    decaying(1.0, 1.0, jnp.array(1), schedule)

    def init(params: Params) -> ScaffoldState:
        return ScaffoldState(params, tree.zeros_like(params))

    def local(
        message: ScaffoldState, control: Params, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], Params]:
        x, eta = message.params, rate(lr, work)
        correction = tree.sub(message.control, control)
        rates = decaying(eta, rho, work.num_steps, schedule)

        def step(y: Params, k: Array) -> Params:  # Eq. (5)
            y = tree.add_scale(y, -rates.at(k), oracle.grad(y, k))
            return tree.add_scale(y, -rates.at(k), correction)

        new = control
        if option == "I":  # before the steps, which move private leaves
            new = oracle.full_grad(x)  # Eq. (6), option I
        elif option == "I-minibatch":
            new = oracle.grad(x, 0)
        delta = tree.sub(x, local_steps(step, x, work))
        # Without steps, or at a rate that has decayed to 0, the control does not change.
        active = work.num_steps > 0
        if option == "II":
            total = rates.total
            active &= total > 0
            new = tree.sub(divide_or_keep(delta, total), correction)  # Eq. (6), option II
        new = tree.where(active, new, control)
        change = tree.where(active, tree.sub(new, message.control), tree.zeros_like(x))
        return (delta, change), new

    def update(state: ScaffoldState, mean: tuple[Params, Params], round: Round) -> ScaffoldState:
        delta, change = mean
        return ScaffoldState(
            tree.add_scale(state.params, -alpha, delta),
            tree.add_scale(state.control, gamma, change),  # Eq. (7)
        )

    return FedAlgorithm(init, local, update, send_state, init_client=tree.zeros_like)


@specified
def fedmo(lr: ScalarOrSchedule, gamma: Scalar = 0.2) -> FedAlgorithm:
    r"""FedMo: FedMoSWA's momentum controls alone, with a constant rate and an averaging server.

    .. math::
        y \leftarrow y - \eta\,(g_i(y) - c_i + m), \qquad y_0 = x, \qquad
        x \leftarrow \operatorname{mean}_i y_{K_i}

    with the controls of :func:`fedmoswa`: it equals ``fedmoswa(lr, rho=1, alpha=1, gamma=gamma)``.

    Args:
        lr: client learning rate, or a schedule over rounds.
        gamma: as for :func:`fedmoswa`.

    References:
        Liu et al., 2025, section 6.3 (ablation).

    Example:
        >>> algorithm = fedmo(lr=0.1)
    """
    return fedmoswa(lr, 1.0, 1.0, gamma)
