r"""FedAvg on convex objectives that are nearly quadratic: the Hessian is Q-Lipschitz.

Source: thesis, Section 2.4.3 (see :mod:`fedjax_sim.theory.fedavg`), with the learning rates that
the proofs use (see the errata).  All clients have one objective.  sigma is
:func:`~fedjax_sim.theory.conditions.both_moments`.  Needs L, sigma, sigma4, Q, B.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, both_moments, non_negative, positive, where_valid
from fedjax_sim.theory.fedavg.drift import SMALL_LR
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import smallest


def bound(
    constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""``E F(xhat) - F*`` of a weighted mean of all iterates, for any rate.

    .. math:: \frac{3 B^2}{\eta K R} + \frac{\eta \sigma^2}{M} + 96 \eta^5 Q^2 K^3 R \sigma^4

    ``xhat`` weights ``xbar(r, k)``, k = 0 .. K - 1, by ``(1 + 1 / (K R))^-(r K + k + 1)``.

    NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, proof of Theorem 2.19.

    Example:
        >>> constants = ProblemConstants(L=1.0, Q=0.0, sigma=1.0, sigma4=1.0, B=1.0)
        >>> value = bound(constants, lr=0.1, local_steps=5, rounds=20, clients=10)
        >>> round(float(value), 3)  # 0.3 + 0.01
        0.31
    """
    L, B, lr, K = positive(constants, "L", "B", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (Q,), sigma = non_negative(constants, "Q"), both_moments(constants)
    overhead = 96 * lr**5 * Q**2 * K**3 * R * sigma**4
    value = 3 * B**2 / (lr * K * R) + lr * sigma**2 / M + overhead  # Theorem 2.19
    return where_valid(value, at_most(lr, 1 / (4 * L)), SMALL_LR)


def prescribed_lr(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The rate that Theorem 2.19 prescribes for :func:`bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B}{\sqrt{K R} \sigma},\
        \frac{B^{1/3}}{K^{2/3} R^{1/3} Q^{1/3} \sigma^{2/3}}\Bigr\}

    Example:
        >>> constants = ProblemConstants(L=1.0, Q=0.0, sigma=0.0, sigma4=0.0, B=1.0)
        >>> float(prescribed_lr(constants, local_steps=5, rounds=20, clients=10))
        0.25
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (Q,), sigma = non_negative(constants, "Q"), both_moments(constants)
    return smallest(
        1 / (4 * L),
        jnp.sqrt(M / (K * R)) * B / sigma,
        (B / (K**2 * R)) ** (1 / 3) / (Q * sigma**2) ** (1 / 3),
    )


def tuned_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    .. math:: \frac{12 L B^2}{K R} + \frac{4 \sigma B}{\sqrt{M K R}}
        + \frac{99 Q^{1/3} \sigma^{2/3} B^{5/3}}{K^{1/3} R^{2/3}}

    Source: thesis, Theorem 2.19, whose O() hides the numbers; they follow by inserting the rate.

    Example:
        >>> constants = ProblemConstants(L=1.0, Q=0.0, sigma=0.0, sigma4=0.0, B=1.0)
        >>> round(float(tuned_bound(constants, local_steps=5, rounds=20, clients=10)), 3)
        0.12
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (Q,), sigma = non_negative(constants, "Q"), both_moments(constants)
    overhead = (Q * sigma**2 * B**5 / (K * R**2)) ** (1 / 3)
    return (  # Theorem 2.19
        12 * L * B**2 / (K * R) + 4 * sigma * B / jnp.sqrt(M * K * R) + 99 * overhead
    )
