r"""FedSWA and FedMoSWA: decaying rates in every visit, extrapolating server, momentum controls.

References:
    Liu et al., "Improving Generalization in Federated Learning with Highly Heterogeneous Data via
        Momentum-Based Stochastic Controlled Weight Averaging", 2025.

Equation numbers are that paper's.  Its pseudo-code loops over k = 0..K but sends
:math:`y_{K}`, so there are K steps here; it writes :math:`g_i(\theta_t)` for the control of
option I, a model the client does not have yet, so it is the received one here; and its line 16
abbreviates as :math:`\Delta c_i` what Eq. (7) writes out, :math:`c_i^+ - m` and not
:math:`c_i^+ - c_i` as in SCAFFOLD.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms.scaffold import ScaffoldState
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Upload, Work, send_state

Schedule = Literal["k_over_K", "k_over_Km1"]


class FedSwaState(NamedTuple):
    params: Params


class Rates(NamedTuple):
    """The learning rates of one visit's steps."""

    at: Callable[[Array], Array]  # step -> rate
    total: Array  # their sum


def decaying(lr: Scalar, rho: Scalar, num_steps: Array, schedule: Schedule = "k_over_K") -> Rates:
    r"""Rates that fall linearly from ``lr`` to ``rho * lr`` during a visit of K steps, Eq. (3).

    .. math::
        \eta_k = \eta \left(1 - (1 - \rho) \frac{k}{D}\right), \qquad
        \sum_{k<K} \eta_k = \eta \left(K - (1 - \rho) \frac{K (K - 1)}{2 D}\right)

    with D = K (``"k_over_K"``, the paper's: the last step is one before the floor) or D = K - 1
    (``"k_over_Km1"``: the last step has the floor).  The paper's pseudo-code, taken by the letter
    (k = 0..K), is the latter with a step more.

    Raises:
        ValueError: another schedule.

    Example:
        >>> rates = decaying(1.0, 0.1, jnp.array(50))
        >>> float(rates.at(jnp.array(0))), round(float(rates.total), 2)
        (1.0, 27.95)
    """
    if schedule not in ("k_over_K", "k_over_Km1"):
        raise ValueError(f"schedule is {schedule!r}; expected 'k_over_K' or 'k_over_Km1'")
    real = jnp.result_type(float)
    lr, rho = jnp.asarray(lr, real), jnp.asarray(rho, real)
    steps = jnp.asarray(num_steps).astype(real)
    span = jnp.maximum(steps if schedule == "k_over_K" else steps - 1, 1)

    def at(k: Array) -> Array:
        return lr * (1 - (1 - rho) * k.astype(real) / span)  # Eq. (3)

    total = lr * (steps - (1 - rho) * steps * (steps - 1) / (2 * span))
    return Rates(at, total)


def fedswa(
    lr: ScalarOrSchedule, rho: Scalar = 0.1, alpha: Scalar = 1.5, schedule: Schedule = "k_over_K"
) -> FedAlgorithm:
    r"""FedSWA: rates decay inside a visit and restart with the next, the server overshoots.

    .. math::
        y \leftarrow y - \eta_k\, g_i(y), \quad y_0 = x, \qquad
        x \leftarrow x + \alpha \left(\operatorname{mean}_i y_{K_i} - x\right)

    Args:
        lr: the rate of a visit's first step, or a schedule over rounds.
        rho: floor of the decay, as a fraction of ``lr``; 1 is a constant rate.
        alpha: server step; above 1 it extrapolates, 1 is averaging.
        schedule: see :func:`decaying`.

    With ``rho = alpha = 1`` it is FedAvg.  The authors' second program is
    ``fedswa(2 * lr, rho=0, alpha=1)``.

    Raises:
        ValueError: another schedule.

    References:
        Liu et al., 2025, section 3.2, Algorithm 1.

    Example:
        >>> algorithm = fedswa(lr=0.1)
    """
    decaying(1.0, 1.0, jnp.array(1), schedule)  # refuses other schedules here, not when traced

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        rates = decaying(rate(lr, work), rho, work.num_steps, schedule)
        return tree.sub(x, local_steps(sgd(rates.at, oracle.grad), x, work)), state

    def update(state: FedSwaState, delta: Upload, round: Round) -> FedSwaState:
        del round
        return FedSwaState(tree.add_scale(state.params, -alpha, delta))  # Eq. (4)

    return FedAlgorithm(FedSwaState, local, update)


def fedmoswa(
    lr: ScalarOrSchedule,
    rho: Scalar = 0.1,
    alpha: Scalar = 1.5,
    gamma: Scalar = 0.2,
    *,
    option: Literal["I", "I-minibatch", "II"] = "II",
    schedule: Schedule = "k_over_K",
    first_gamma: Scalar | None = None,
    divisor: Literal["sum", "trapezoid"] = "sum",
    units: Literal["gradient", "displacement"] = "gradient",
) -> FedAlgorithm:
    r"""FedMoSWA: FedSWA whose steps are corrected by control variates with momentum.

    .. math::
        y &\leftarrow y - \eta_k\,(g_i(y) - c_i + m), \qquad y_0 = x \\
        c_i^+ &= \nabla F_i(x) \ \text{(option I)} \quad\text{or}\quad
        c_i - m + \frac{x - y_{K_i}}{\sum_k \eta_k} \ \text{(option II)} \\
        m &\leftarrow m + \gamma \operatorname{mean}_i (c_i^+ - m), \qquad
        x \leftarrow x + \alpha \left(\operatorname{mean}_i y_{K_i} - x\right)

    All controls start at zero; :func:`~fedjax_sim.algorithms.scaffold.gradient_controls` starts
    them at the local gradients.  With option II :math:`c_i^+` is the mean of the visit's gradients
    weighted by their rates.  Zero ``gamma`` is not FedSWA: the clients' controls still move.

    Args:
        lr, rho, alpha, schedule: as for :func:`fedswa`.
        gamma: momentum of the server's control.
        option: where the clients' controls come from; ``"I-minibatch"`` takes the gradient of
            the visit's first minibatch for the full one.
        first_gamma: gamma of the first round; both released programs have 1 there.
        divisor: ``"trapezoid"`` is the first released program's
            :math:`K \eta (1 + \rho) / 2` in place of the exact sum.
        units: ``"displacement"`` keeps controls as displacements per step, as the released
            SCAFFOLD+ does: :math:`y \leftarrow y - \eta_k g_i(y) + c_i - m` and a divisor of K.

    Raises:
        ValueError: another option, schedule, divisor or unit.

    References:
        Liu et al., 2025, section 3.3, Algorithm 1.

    Example:
        >>> algorithm = fedmoswa(lr=0.1)
        >>> first_program = fedmoswa(lr=0.1, gamma=0.1, first_gamma=1.0, divisor="trapezoid")
    """
    if option not in ("I", "I-minibatch", "II"):
        raise ValueError(f"option is {option!r}; expected 'I', 'I-minibatch' or 'II'")
    if divisor not in ("sum", "trapezoid"):
        raise ValueError(f"divisor is {divisor!r}; expected 'sum' or 'trapezoid'")
    if units not in ("gradient", "displacement"):
        raise ValueError(f"units is {units!r}; expected 'gradient' or 'displacement'")
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
            return tree.add_scale(y, -rates.at(k) if units == "gradient" else -1, correction)

        delta = tree.sub(x, local_steps(step, x, work))
        # A visit without steps, or at a rate that has decayed to 0, has nothing to say.
        told = work.num_steps > 0
        if option == "I":
            new = oracle.full_grad(x)  # Eq. (6), option I
        elif option == "I-minibatch":
            new = oracle.grad(x, 0)
        else:
            total = _total(rates, eta, work)
            told &= total > 0
            descent = tree.divide(delta, jnp.where(total > 0, total, 1))
            new = tree.sub(descent, correction)  # Eq. (6), option II
        new = tree.where(told, new, control)
        change = tree.where(told, tree.sub(new, message.control), tree.zeros_like(x))
        return (delta, change), new

    def _total(rates: Rates, eta: Scalar, work: Work) -> Array:
        steps = work.num_steps.astype(rates.total.dtype)
        if units == "displacement":
            return steps
        if divisor == "trapezoid":
            mean = (1 + jnp.asarray(rho, steps.dtype)) / 2
            return steps * jnp.asarray(eta, steps.dtype) * mean
        return rates.total

    def update(state: ScaffoldState, mean: tuple[Params, Params], round: Round) -> ScaffoldState:
        delta, change = mean
        weight = gamma
        if first_gamma is not None:
            first, later = (jnp.asarray(g, jnp.result_type(float)) for g in (first_gamma, gamma))
            weight = jnp.where(round.number == 0, first, later)
        return ScaffoldState(
            tree.add_scale(state.params, -alpha, delta),
            tree.add_scale(state.control, weight, change),  # Eq. (7)
        )

    return FedAlgorithm(init, local, update, send_state, init_client=tree.zeros_like)


def fedmo(lr: ScalarOrSchedule, gamma: Scalar = 0.2) -> FedAlgorithm:
    r"""FedMo: FedMoSWA's momentum controls alone, with a constant rate and an averaging server.

    ``fedmoswa(lr, rho=1, alpha=1, gamma=gamma)``.  The authors' second program is this with gamma
    0.4, 1 in its first round.

    References:
        Liu et al., 2025, section 6.3 (ablation).

    Example:
        >>> algorithm = fedmo(lr=0.1)
    """
    return fedmoswa(lr, 1.0, 1.0, gamma)
