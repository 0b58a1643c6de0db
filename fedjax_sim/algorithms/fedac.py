r"""FedAc: federated accelerated SGD, for homogeneous problems.

References:
    Yuan and Ma, "Federated Accelerated Stochastic Gradient Descent", 2020.
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, chapter 3.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.local import local_steps
from fedjax_sim.transforms import proximal
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Work, send_state


class Coupling(NamedTuple):
    """How FedAc's two iterates are coupled."""

    gamma: Scalar  # rate of the main iterate
    alpha: Scalar
    beta: Scalar


class FedAcState(NamedTuple):
    params: Params  # x_ag, the aggregate iterate, which is evaluated
    main: Params  # x
    start: Params  # the initial model, () unless the objective is augmented


def coupling(
    lr: Scalar,
    mu: Scalar,
    num_steps: Scalar,
    variant: Literal["I", "II", "II_code", "vanilla"] = "I",
) -> Coupling:
    r"""The papers' choices of gamma, alpha and beta for K local steps a round.

    =========  ==========================================  ===================================
    variant    gamma                                       alpha, beta
    =========  ==========================================  ===================================
    I          :math:`\max(\sqrt{\eta / (\mu K)}, \eta)`   :math:`1 / (\gamma \mu),\ \alpha + 1`
    II         as I                                        :math:`3 / (2 \gamma \mu) - 1/2,\
                                                           (2 \alpha^2 - 1) / (\alpha - 1)`
    II_code    as I                                        as II, :math:`2 \alpha^2 / (\alpha - 1)`
    vanilla    :math:`\sqrt{\eta / \mu}`                   as I
    =========  ==========================================  ===================================

    ``"II_code"`` is what the authors' program has; it made the published results of FedAc-II.
    FedAc-II needs :math:`\gamma \mu < 1`, all need :math:`\eta \le \gamma \le \sqrt{\eta / \mu}`.

    Args:
        lr: eta.
        mu: estimate of the strong convexity, positive.
        num_steps: K.

    Raises:
        ValueError: another variant.

    References:
        Yuan and Ma, 2020, Equations (3.2) and (3.3); thesis, section 3.2.

    Example:
        >>> gamma, alpha, beta = coupling(lr=0.1, mu=1e-3, num_steps=8)
        >>> round(float(gamma), 2), round(float(alpha), 1), round(float(beta), 1)
        (3.54, 282.8, 283.8)
    """
    if variant not in ("I", "II", "II_code", "vanilla"):
        raise ValueError(f"variant is {variant!r}; expected 'I', 'II', 'II_code' or 'vanilla'")
    real = jnp.result_type(float)
    lr, mu, steps = (jnp.asarray(x).astype(real) for x in (lr, mu, num_steps))
    if variant == "vanilla":
        gamma = jnp.sqrt(lr / mu)
    else:
        gamma = jnp.maximum(jnp.sqrt(lr / (mu * steps)), lr)
    if variant in ("I", "vanilla"):
        alpha = 1 / (gamma * mu)
        return Coupling(gamma, alpha, alpha + 1)
    alpha = 3 / (2 * gamma * mu) - 0.5
    less = 1.0 if variant == "II" else 0.0
    return Coupling(gamma, alpha, (2 * alpha**2 - less) / (alpha - 1))


def fedac(
    lr: Scalar,
    mu: Scalar,
    num_steps: Scalar,
    variant: Literal["I", "II", "II_code", "vanilla"] = "I",
    augmentation: Scalar | None = None,
) -> FedAlgorithm:
    r"""FedAc: accelerated local steps; clients' main and aggregate iterates are both averaged.

    .. math::
        x_{md} &= \beta^{-1} x + (1 - \beta^{-1})\, x_{ag}, \qquad g = g_i(x_{md}) \\
        x_{ag} &\leftarrow x_{md} - \eta\, g, \qquad
        x \leftarrow (1 - \alpha^{-1})\, x + \alpha^{-1} x_{md} - \gamma\, g

    with gamma, alpha, beta of :func:`coupling`.  The model is the averaged :math:`x_{ag}`.

    Args:
        lr: eta, at most 1 / L in theory.
        mu: estimate of the strong convexity; with ``augmentation`` that of the augmented problem.
        num_steps: K, the local steps of a visit, on which gamma depends.
        variant: FedAc-I, FedAc-II or vanilla FedAc.
        augmentation: lambda of the convex case: clients descend
            :math:`F(x) + \frac{\lambda}{2} \|x - x_0\|^2`, x_0 the initial model.  None: F.

    References:
        Yuan and Ma, 2020, Algorithm 1; augmentation: its section 3.3.

    Example:
        >>> algorithm = fedac(lr=0.1, mu=1e-3, num_steps=32)
        >>> convex = fedac(lr=0.1, mu=1e-2, num_steps=32, augmentation=1e-2)
    """
    eta = lr
    pair = coupling(lr, mu, num_steps, variant)

    def init(params: Params) -> FedAcState:
        return FedAcState(params, params, () if augmentation is None else params)

    def local(
        message: FedAcState, state: tuple, oracle: Oracle, work: Work
    ) -> tuple[tuple[Params, Params], tuple]:
        if augmentation is not None:
            oracle = proximal(oracle, augmentation, message.start)

        def step(carry: tuple[Params, Params], k: Array) -> tuple[Params, Params]:
            return accelerated(carry, lambda middle: oracle.grad(middle, k), eta, pair)

        start = (message.params, message.main)
        aggregate, main = local_steps(step, start, work)
        return (tree.sub(message.params, aggregate), tree.sub(message.main, main)), state

    def update(state: FedAcState, mean: tuple[Params, Params], round: Round) -> FedAcState:
        del round
        aggregate, main = mean
        return state._replace(
            params=tree.sub(state.params, aggregate), main=tree.sub(state.main, main)
        )

    return FedAlgorithm(
        init,
        local,
        update,
        send_state,
        synchronous_only="FedAc couples two sequences, which must be at the same time everywhere",
    )


def middle_of(aggregate: Params, main: Params, beta: Scalar) -> Params:
    """``main / beta + (1 - 1 / beta) aggregate``, where the gradient is taken."""
    return tree.add_scale(aggregate, 1 / beta, tree.sub(main, aggregate))


def accelerated(iterates, gradient, lr: Scalar, pair: Coupling) -> tuple[Params, Params]:
    """One accelerated step of ``(aggregate, main)``; ``gradient(middle)``."""
    aggregate, main = iterates
    middle = middle_of(aggregate, main, pair.beta)
    g = gradient(middle)
    main = tree.add_scale(main, 1 / pair.alpha, tree.sub(middle, main))
    return tree.add_scale(middle, -lr, g), tree.add_scale(main, -pair.gamma, g)
