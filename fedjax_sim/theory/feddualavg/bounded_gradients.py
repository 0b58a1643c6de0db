r"""FedDualAvg where gradients are bounded by G on the domain of psi: Theorem 4.4.

Source: see :mod:`fedjax_sim.theory.feddualavg`.  The server rate is 1.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.feddualavg.shadow import SMALL_LR, noise_lr, shadow_terms
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import smallest


def discrepancy_bound(constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar) -> Array:
    r"""``E||y_m - ybar||_*^2`` where gradients are at most G: ``4 eta_c^2 (K - 1)^2 G^2``.

    Needs G.  Source: thesis, Lemma C.12.

    Example:
        >>> round(float(discrepancy_bound(ProblemConstants(G=1.0), lr=0.1, local_steps=5)), 3)
        0.64
    """
    lr, K = positive(lr=lr, local_steps=local_steps)
    (G,) = non_negative(constants, "G")
    return 4 * (lr * (K - 1) * G) ** 2


def bound(
    constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""``E Phi(xhat) - Phi(x*)``.

    .. math:: \frac{B_h^2}{\eta_c K R} + \frac{\eta_c \sigma^2}{M} + 4 \eta_c^2 L (K - 1)^2 G^2

    Needs L, sigma, G, B_h.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, Theorem
    4.4 with the constants of Theorem C.11.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, G=0.5, B_h=1.0)
        >>> value = bound(constants, lr=0.1, local_steps=5, rounds=20, clients=10)
        >>> round(float(value), 3)  # 0.1 + 0.01 + 0.16
        0.27
    """
    discrepancy = discrepancy_bound(constants, lr=lr, local_steps=local_steps)
    L, B, lr, K = positive(constants, "L", "B_h", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    value = shadow_terms(discrepancy, lr, L, sigma, M, K, R, B)  # Eq. (4.10)
    return where_valid(value, at_most(lr, 1 / (4 * L)), SMALL_LR)


def prescribed_lr(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The rate that Theorem C.11 prescribes for :func:`bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B_h}{\sigma \sqrt{K R}},\
        \frac{B_h^{2/3}}{L^{1/3} K R^{1/3} G^{2/3}}\Bigr\}

    Needs L, sigma, G, B_h.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, G=0.0, B_h=1.0)
        >>> float(prescribed_lr(constants, local_steps=5, rounds=20, clients=10))
        0.25
    """
    L, B, K = positive(constants, "L", "B_h", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, G = non_negative(constants, "sigma", "G")
    cube = (B**2 / (R * L)) ** (1 / 3)
    return smallest(1 / (4 * L), noise_lr(sigma, M, K, R, B), cube / (K * G ** (2 / 3)))


def tuned_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    .. math:: \frac{4 L B_h^2}{K R} + \frac{2 \sigma B_h}{\sqrt{M K R}}
        + \frac{5 L^{1/3} B_h^{4/3} G^{2/3}}{R^{2/3}}

    Needs L, sigma, G, B_h.  Source: thesis, Theorem 4.4 with the constants of Theorem C.11.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, G=0.0, B_h=1.0)
        >>> round(float(tuned_bound(constants, local_steps=5, rounds=20, clients=10)), 3)
        0.04
    """
    L, B, K = positive(constants, "L", "B_h", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, G = non_negative(constants, "sigma", "G")
    cube = (L * B**4 / R**2) ** (1 / 3)
    return (  # Eq. (4.11)
        4 * L * B**2 / (K * R) + 2 * sigma * B / jnp.sqrt(M * K * R) + 5 * cube * G ** (2 / 3)
    )
