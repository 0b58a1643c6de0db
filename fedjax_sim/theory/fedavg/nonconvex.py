r"""FedAvg on non-convex objectives; all clients have one objective.

Source: thesis, Section 2.5 and Appendix A.5 (see :mod:`fedjax_sim.theory.fedavg`).  Where Q is
known, functions use Theorem 2.23, otherwise Theorem 2.22.  Needs L, sigma, G, Delta.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, optional, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import smallest


def bound(
    constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The mean of ``E||grad F(xbar(r, k))||^2`` over all rounds and k = 0 .. K - 1.

    .. math:: \frac{2 \Delta}{\eta K R} + D + c\, \frac{L \eta \sigma^2}{M}

    * ``D = 8 L^2 eta^2 G^2 K^2``, c = 1 without Q (Theorem 2.22),
    * ``D = 8 Q^2 eta^4 G^4 K^4``, c = 2 with Q (Theorem 2.23).

    NaN with a warning where ``lr > 1 / L``.  Source: thesis, the last displays of the proofs of
    Theorems 2.22 and 2.23.  The proofs, which have L for L/2 in the smoothness inequality, give
    c = 2; with L/2 they give c = 1, which no smaller one replaces (see the errata).

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, G=2.0, Delta=1.0)
        >>> value = bound(constants, lr=0.01, local_steps=5, rounds=20, clients=10)
        >>> round(float(value), 3)  # 2 + 0.08 + 0.001
        2.081
    """
    L, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, G, Delta = non_negative(constants, "sigma", "G", "Delta")
    Q = optional(constants, "Q")
    if Q is None:
        c, drift = 1, 8 * L**2 * lr**2 * G**2 * K**2  # Theorem 2.22
    else:
        c, drift = 2, 8 * Q**2 * lr**4 * G**4 * K**4  # Theorem 2.23
    value = 2 * Delta / (lr * K * R) + drift + c * L * lr * sigma**2 / M
    return where_valid(value, at_most(lr, 1 / L), "lr <= 1 / L")


def prescribed_lr(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The rate that Theorems 2.22 and 2.23 prescribe for :func:`bound`.

    .. math:: \min\Bigl\{\frac{1}{L},\ \frac{\sqrt{M \Delta}}{\sigma \sqrt{L K R}},\ e\Bigr\},
        \qquad e = \frac{\Delta^{1/3}}{K R^{1/3} L^{2/3} G^{2/3}}
        \ \text{or, with}\ Q,\ \frac{\Delta^{1/5}}{K R^{1/5} Q^{2/5} G^{4/5}}

    Example:
        >>> constants = ProblemConstants(L=2.0, sigma=0.0, G=0.0, Delta=1.0)
        >>> float(prescribed_lr(constants, local_steps=5, rounds=20, clients=10))
        0.5
    """
    L, Delta, K = positive(constants, "L", "Delta", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, G = non_negative(constants, "sigma", "G")
    Q = optional(constants, "Q")
    if Q is None:
        entry = (Delta / R) ** (1 / 3) / (K * (L * G) ** (2 / 3))
    else:
        entry = (Delta / R) ** (1 / 5) / (K * (Q * G**2) ** (2 / 5))
    return smallest(1 / L, jnp.sqrt(M * Delta / (L * K * R)) / sigma, entry)


def tuned_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    .. math:: \frac{2 L \Delta}{K R} + \frac{(2 + c) \sigma \sqrt{L \Delta}}{\sqrt{M K R}}
        + 10\, d, \qquad d = \frac{L^{2/3} G^{2/3} \Delta^{2/3}}{R^{2/3}}
        \ \text{or, with}\ Q,\ \frac{Q^{2/5} G^{4/5} \Delta^{4/5}}{R^{4/5}}

    Source: thesis, Theorems 2.22 and 2.23, which have G for sigma in the middle term
    (``sigma <= G``) and O() for the numbers; the numbers follow by inserting the rate, c as in
    :func:`bound`.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, G=1.0, Delta=1.0, Q=1.0)
        >>> value = tuned_bound(constants, local_steps=5, rounds=32, clients=10)
        >>> round(float(value), 4)  # 2 / 160 + 10 / 16
        0.6375
    """
    L, Delta, K = positive(constants, "L", "Delta", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, G = non_negative(constants, "sigma", "G")
    Q = optional(constants, "Q")
    if Q is None:
        c, drift = 1, (L * G * Delta / R) ** (2 / 3)  # Theorem 2.22
    else:
        c, drift = 2, (Q * G**2) ** (2 / 5) * (Delta / R) ** (4 / 5)  # Theorem 2.23
    noise = (2 + c) * sigma * jnp.sqrt(L * Delta / (M * K * R))
    return 2 * L * Delta / (K * R) + noise + 10 * drift
