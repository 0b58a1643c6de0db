r"""FedDualAvg on quadratics with bounded heterogeneity: Theorem 4.7.

Source: see :mod:`fedjax_sim.theory.feddualavg`.  The server rate is 1.
``F = x' A x / 2 + c' x``, the norm is ``sqrt(x' A x / ||A||)``, and zeta bounds
``||grad F_m - grad F||_*``.  Noise in flat directions is expensive:
``sigma^2 = ||A|| tr(A^-1 Sigma)``.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.feddualavg.shadow import SMALL_LR, noise_lr, shadow_terms
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import smallest


def discrepancy_bound(constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar) -> Array:
    r"""``E||y_m - ybar||_*^2``: ``eta_c^2 (7 K sigma^2 + 14 K^2 zeta^2)``.

    Needs L, sigma, zeta.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, proof of
    Theorem 4.7.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, zeta=0.5)
        >>> value = discrepancy_bound(constants, lr=0.1, local_steps=2)
        >>> round(float(value), 3)  # 0.14 + 0.14
        0.28
    """
    L, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    sigma, zeta = non_negative(constants, "sigma", "zeta")
    value = _discrepancy(lr, sigma, zeta, K)
    return where_valid(value, at_most(lr, 1 / (4 * L)), SMALL_LR)


def bound(
    constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""``E Phi(xhat) - Phi(x*)``.

    .. math:: \frac{B_h^2}{\eta_c K R} + \frac{\eta_c \sigma^2}{M} + 7 \eta_c^2 L K \sigma^2
        + 14 \eta_c^2 L K^2 \zeta^2

    Needs L, sigma, zeta, B_h.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis,
    Theorem 4.7.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, zeta=0.5, B_h=1.0)
        >>> value = bound(constants, lr=0.1, local_steps=2, rounds=50, clients=10)
        >>> round(float(value), 3)  # 0.1 + 0.01 + 0.28
        0.39
    """
    L, B, lr, K = positive(constants, "L", "B_h", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, zeta = non_negative(constants, "sigma", "zeta")
    discrepancy = _discrepancy(lr, sigma, zeta, K)
    value = shadow_terms(discrepancy, lr, L, sigma, M, K, R, B)  # Eq. (4.13)
    return where_valid(value, at_most(lr, 1 / (4 * L)), SMALL_LR)


def prescribed_lr(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The rate that Theorem 4.7 prescribes for :func:`bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B_h}{\sigma \sqrt{K R}},\
        \frac{B_h^{2/3}}{L^{1/3} K^{2/3} R^{1/3} \sigma^{2/3}},\
        \frac{B_h^{2/3}}{L^{1/3} K R^{1/3} \zeta^{2/3}}\Bigr\}

    Needs L, sigma, zeta, B_h.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta=0.0, B_h=1.0)
        >>> float(prescribed_lr(constants, local_steps=5, rounds=20, clients=10))
        0.25
    """
    L, B, K = positive(constants, "L", "B_h", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, zeta = non_negative(constants, "sigma", "zeta")
    cube = (B**2 / (R * L)) ** (1 / 3)
    return smallest(
        1 / (4 * L),
        noise_lr(sigma, M, K, R, B),
        cube / (K * sigma) ** (2 / 3),
        cube / (K * zeta ** (2 / 3)),
    )


def tuned_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    .. math:: \frac{4 L B_h^2}{K R} + \frac{2 \sigma B_h}{\sqrt{M K R}}
        + \frac{8 L^{1/3} B_h^{4/3} \sigma^{2/3}}{K^{1/3} R^{2/3}}
        + \frac{15 L^{1/3} B_h^{4/3} \zeta^{2/3}}{R^{2/3}}

    Needs L, sigma, zeta, B_h.  Source: thesis, Theorem 4.7.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta=0.0, B_h=1.0)
        >>> round(float(tuned_bound(constants, local_steps=5, rounds=20, clients=10)), 3)
        0.04
    """
    L, B, K = positive(constants, "L", "B_h", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, zeta = non_negative(constants, "sigma", "zeta")
    cube = (L * B**4 / R**2) ** (1 / 3)
    return (
        4 * L * B**2 / (K * R)
        + 2 * sigma * B / jnp.sqrt(M * K * R)
        + 8 * cube * (sigma**2 / K) ** (1 / 3)
        + 15 * cube * zeta ** (2 / 3)
    )


def _discrepancy(lr: Array, sigma: Array, zeta: Array, K: Array) -> Array:
    return lr**2 * (7 * K * sigma**2 + 14 * (K * zeta) ** 2)
