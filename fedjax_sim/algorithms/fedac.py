r"""FedAc: federated accelerated SGD, for homogeneous problems.

References:
    Yuan and Ma, "Federated Accelerated Stochastic Gradient Descent", 2020.
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import real, step_range
from fedjax_sim.checks import (
    called,
    check_at_least,
    check_choice,
    check_positive,
    check_rates,
    is_concrete,
)
from fedjax_sim.local import ScalarOrSchedule, local_steps, proximal, rate
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Scalar,
    Task,
    Timeline,
    Work,
    send_state,
    specified,
)

__all__ = ["fedac"]

Variant = Literal["I", "II", "vanilla"]


class Coupling(NamedTuple):
    """The numbers that couple FedAc's two iterates."""

    gamma: Scalar  # rate of the main iterate
    alpha: Scalar
    beta: Scalar


class FedAcState(NamedTuple):
    params: Params  # x_ag, the aggregate iterate, which is evaluated
    main: Params  # x
    start: Params  # x_0, the initial model; () unless the objective is augmented


def coupling(lr: Scalar, mu: Scalar, num_steps: Scalar, variant: Variant = "I") -> Coupling:
    r"""The papers' choices of gamma, alpha and beta for K local steps per round.

    =========  ==========================================  ===================================
    variant    gamma                                       alpha, beta
    =========  ==========================================  ===================================
    I          :math:`\max(\sqrt{\eta / (\mu K)}, \eta)`   :math:`1 / (\gamma \mu),\ \alpha + 1`
    II         as I                                        :math:`3 / (2 \gamma \mu) - 1/2,\
                                                           (2 \alpha^2 - 1) / (\alpha - 1)`
    vanilla    :math:`\sqrt{\eta / \mu}`                   as I
    =========  ==========================================  ===================================

    FedAc-II requires :math:`\gamma \mu < 1`, all require :math:`\eta \le \gamma \le
    \sqrt{\eta / \mu}`.  With :math:`K \ge 1` both follow from
    :math:`\eta \mu < 1`.

    Args:
        lr: eta, positive.
        mu: estimate of the strong convexity, positive.
        num_steps: K.

    References:
        Yuan and Ma, 2020, Equations (3.2) and (3.3); thesis, section 3.2.
    """
    check_choice(("I", "II", "vanilla"), variant=variant)
    check_positive(lr=lr, mu=mu, num_steps=num_steps)
    _check_product(lr, mu, variant)
    lr, mu, steps = map(real, (lr, mu, num_steps))
    if variant == "vanilla":
        gamma = jnp.sqrt(lr / mu)
    else:
        gamma = jnp.maximum(jnp.sqrt(lr / (mu * steps)), lr)
    if variant in ("I", "vanilla"):
        alpha = 1 / (gamma * mu)
        return Coupling(gamma, alpha, alpha + 1)
    alpha = 3 / (2 * gamma * mu) - 0.5
    return Coupling(gamma, alpha, (2 * alpha**2 - 1.0) / (alpha - 1))


def _check_product(lr: Scalar, mu: Scalar, variant: Variant) -> None:
    if not (is_concrete(lr) and is_concrete(mu)):
        return
    product = float(np.max(np.asarray(lr) * np.asarray(mu)))
    bound = "below 1" if variant == "II" else "at most 1"
    if product > 1 or (product == 1 and variant == "II"):
        raise ValueError(
            f"lr * mu is {product:g}, with lr {lr} and mu {mu}; expected {bound}, since the "
            "smoothness is not below the strong convexity"
        )


@specified
def fedac(
    lr: ScalarOrSchedule,
    mu: Scalar | None = None,
    num_steps: Scalar | None = None,
    variant: Variant = "I",
    augmentation: Scalar | None = None,
    *,
    numbers: tuple | Callable[[Array], tuple] | None = None,
) -> FedAlgorithm:
    r"""FedAc: accelerated local steps; clients' main and aggregate iterates are both averaged.

    .. math::
        x_{md} &= \beta^{-1} x + (1 - \beta^{-1})\, x_{ag}, \qquad g = g_i(x_{md}) \\
        x_{ag} &\leftarrow x_{md} - \eta\, g, \qquad
        x \leftarrow (1 - \alpha^{-1})\, x + \alpha^{-1} x_{md} - \gamma\, g

    with gamma, alpha, beta of :func:`coupling`.  The model is the averaged :math:`x_{ag}`.

    Args:
        lr: learning rate eta, at most 1 / L in theory, or a schedule over rounds.
        mu: estimate of the strong convexity, positive; with ``augmentation`` that of the augmented
            problem.  Only with ``numbers`` it may be left out.
        num_steps: local steps K per visit, on which gamma depends. Default: the timeline's
            ``max_steps``.
        variant: FedAc-I, FedAc-II or vanilla FedAc.
        augmentation: weight lambda for convex objectives: clients descend
            :math:`F(x) + \frac{\lambda}{2} \|x - x_0\|^2`, x_0 the initial model.  None: F.
        numbers: the tuple (gamma, alpha, beta) itself, alpha and beta at least 1, or a function of
            the round that returns it; ``mu``, ``num_steps`` and ``variant`` are then not used.

    Raises:
        ValueError: another variant, neither ``mu`` nor ``numbers``, or a number outside its range;
            when the run begins, stale broadcasts, or visits of which none has ``num_steps`` steps
            or more, or none has ``num_steps`` or fewer.

    References:
        Yuan and Ma, 2020, Algorithm 1; augmentation: its section 3.3.

    Example:
        >>> algorithm = fedac(lr=0.1, mu=1e-3, num_steps=32)
        >>> convex = fedac(lr=0.1, mu=1e-2, num_steps=32, augmentation=1e-2)
        >>> nesterov = lambda t: (0.1 * (t + 1) / 2, jnp.inf, (t + 2) / 2)
        >>> direct = fedac(lr=0.1, numbers=nesterov)
    """
    check_rates(lr=lr)
    check_at_least(0, augmentation=augmentation)
    if numbers is not None:
        couple = _as_given(numbers)
    elif mu is not None:
        couple = _by_theory(lr, mu, num_steps, variant)
    else:
        raise ValueError("mu is None; expected a positive number unless numbers are given")

    def init(params: Params) -> FedAcState:
        return FedAcState(params, params, () if augmentation is None else params)

    def local(
        message: FedAcState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], tuple]:
        if augmentation is not None:
            oracle = proximal(oracle, augmentation, message.start)
        eta = rate(lr, work)
        chosen = couple(eta, work)

        def step(carry: tuple[Params, Params], k: Array) -> tuple[Params, Params]:
            return accelerated(carry, lambda middle: oracle.grad(middle, k), eta, chosen)

        aggregate, main = local_steps(step, (message.params, message.main), work)
        return (tree.sub(message.params, aggregate), tree.sub(message.main, main)), state

    def update(state: FedAcState, mean: tuple[Params, Params], round: Round) -> FedAcState:
        aggregate, main = mean
        return state._replace(
            params=tree.sub(state.params, aggregate), main=tree.sub(state.main, main)
        )

    def check(task: Task, timeline: Timeline) -> None:
        if numbers is None and num_steps is not None and is_concrete(num_steps):
            _check_num_steps(num_steps, timeline)

    return FedAlgorithm(
        init,
        local,
        update,
        send_state,
        requires=Requires(
            synchronous="FedAc couples two sequences, which must be at the same time everywhere",
            check=check,
        ),
    )


def _by_theory(
    lr: ScalarOrSchedule, mu: Scalar, num_steps: Scalar | None, variant: Variant
) -> Callable[[Scalar, Work], Coupling]:
    """Returns the :func:`coupling` of a visit from its rate; refuses numbers outside of theirs."""
    if callable(lr):
        check_choice(("I", "II", "vanilla"), variant=variant)
        check_positive(mu=mu, num_steps=num_steps)
    else:  # With num_steps=None this coupling is not used, but its numbers are refused now.
        fixed = coupling(lr, mu, 1 if num_steps is None else num_steps, variant)
        if num_steps is not None:
            return lambda eta, work: fixed

    return lambda eta, work: coupling(
        eta, mu, work.max_steps if num_steps is None else num_steps, variant
    )


def _as_given(
    numbers: tuple | Callable[[Array], tuple],
) -> Callable[[Scalar, Work], Coupling]:
    """Returns the given numbers of a visit's round."""
    if callable(numbers):

        def of_visit(eta: Scalar, work: Work) -> Coupling:
            expected = "a function of the round that JAX can trace: (gamma, alpha, beta)"
            given = called("numbers", "a traced round", expected, numbers, work.round)
            return _checked(given, "numbers(round)")

        return of_visit
    fixed = _checked(numbers, "numbers")
    return lambda eta, work: fixed


def _checked(numbers: tuple, name: str) -> Coupling:
    """Refuses what is no coupling, and numbers outside of their ranges; traced ones pass."""
    if not isinstance(numbers, tuple) or len(numbers) != 3:
        raise ValueError(f"{name} is {numbers!r:.60}; expected a tuple (gamma, alpha, beta)")
    gamma, alpha, beta = numbers
    check_at_least(0, **{f"{name}, gamma": gamma})
    # 1 / alpha and 1 / beta are weights of means of two iterates.
    check_at_least(1, **{f"{name}, alpha": alpha, f"{name}, beta": beta})
    return Coupling(gamma, alpha, beta)


def _check_num_steps(num_steps: Scalar, timeline: Timeline) -> None:
    low, high = step_range(timeline)
    if not low <= float(num_steps) <= high:
        raise ValueError(
            f"num_steps is {num_steps}; expected {low} .. {high}, the local steps per visit of the "
            "timeline, on which gamma depends"
        )


def middle_of(aggregate: Params, main: Params, beta: Scalar) -> Params:
    """Returns ``main / beta + (1 - 1 / beta) aggregate``, where the gradient is taken."""
    return tree.add_scale(aggregate, 1 / beta, tree.sub(main, aggregate))


def accelerated(
    iterates: tuple[Params, Params],
    gradient: Callable[[Params], Params],
    lr: Scalar,
    numbers: Coupling,
) -> tuple[Params, Params]:
    """Returns ``(aggregate, main)`` after one accelerated step with ``gradient(middle)``."""
    aggregate, main = iterates
    middle = middle_of(aggregate, main, numbers.beta)
    g = gradient(middle)
    main = tree.add_scale(main, 1 / numbers.alpha, tree.sub(middle, main))
    return tree.add_scale(middle, -lr, g), tree.add_scale(main, -numbers.gamma, g)
