r"""Growth of the difference of two clients over FedAc's local steps, and FedAc's own speed."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, check_choice, non_negative, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import largest

__all__ = ["difference_growth", "initial_potential"]

Variant = Literal["I", "II"]

VALID_LR = "lr <= 1 / L and mu <= L"
VALID_GAMMA = "lr <= gamma <= sqrt(lr / mu)"


def difference_growth(
    constants: ProblemConstants, *, variant: Variant, lr: Scalar, gamma: Scalar
) -> Array:
    r"""Largest factor by which a local step enlarges the difference of two clients.

    .. math:: 1 + c \frac{\gamma^2 \mu}{\eta} \ \text{if}\ \gamma > \eta, \qquad 1 \ \text{if}\
        \gamma = \eta

    with c = 2 for FedAc-I and 1 for FedAc-II: the spectral norm of ``X^-1 A X`` for every Hessian
    between mu and L, where ``(x_ag, x) <- A (x_ag, x)`` is the step and
    ``X = [[eta / gamma I, 0], [I, I]]``.

    Needs mu.  NaN with a warning outside ``lr <= gamma <= sqrt(lr / mu)``.  Source: thesis,
    Propositions 3.16 and B.7.

    Raises:
        ValueError: a missing or non-positive constant; an unknown variant.

    Example:
        >>> constants = ProblemConstants(mu=0.01)
        >>> round(float(difference_growth(constants, variant="I", lr=0.1, gamma=1.0)), 3)
        1.2
    """
    check_variant(variant)
    mu, lr, gamma = positive(constants, "mu", lr=lr, gamma=gamma)
    growth = jnp.exp(log_growth(variant, lr, gamma, mu))
    return where_valid(growth, gamma_condition(gamma, lr, mu), VALID_GAMMA)


def check_variant(variant: str) -> None:
    """The check of all functions with variants."""
    check_choice("variant", variant, Variant)


def log_growth(variant: Variant, lr: Array, gamma: Array, mu: Array) -> Array:
    """The logarithm of :func:`difference_growth`; arguments are not checked."""
    factor = 2 if variant == "I" else 1
    return jnp.where(at_most(gamma, lr), 0.0, jnp.log1p(factor * gamma**2 * mu / lr))


def speed(lr: Array, mu: Array, K: Array) -> Array:
    """``gamma mu`` at FedAc's own ``gamma = max(sqrt(lr / (mu K)), lr)``; arguments not checked."""
    return largest(lr * mu, jnp.sqrt(lr * mu / K))


def gamma_condition(gamma: Array, lr: Array, mu: Array) -> Array:
    """The condition of all lemmas with a free gamma; arguments are not checked."""
    return at_most(lr, gamma) & at_most(gamma, jnp.sqrt(lr / mu))


def initial_potential(constants: ProblemConstants, potential: Scalar | None) -> Scalar:
    """The given potential, or ``Delta + mu / 2 B^2``.

    Example:
        >>> float(initial_potential(ProblemConstants(Delta=1.0, mu=0.5, B=2.0), None))
        2.0
    """
    if potential is not None:
        return potential
    Delta, mu, B = non_negative(constants, "Delta", "mu", "B")
    return Delta + mu / 2 * B**2
