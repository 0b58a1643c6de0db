r"""Convergence of FedDualAvg on composite convex objectives ``Phi = F + psi``.

Bounds from Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Chapter 4 and Appendix C; first in Yuan, Zaheer and Reddi (2021), "Federated Composite
Optimization".

h is Legendre and 1-strongly convex in a norm; every ``f(.; xi)`` is convex and L-smooth in it.
sigma, zeta and G are measured in the dual norm.  The distance is ``B_h^2 = D_h(x*, x_0)``: for
``h = ||x||^2 / 2`` **half** the squared distance.  All clients take part in every round.  ``xhat``
is the mean over rounds and steps of the models whose dual states are the clients' mean dual states
(Equation 4.9).

The regimes are

* ``"bounded gradients"`` (Theorem 4.4 with the constants of Theorem C.11): gradients are at most G
  in the dual norm on the domain of psi;
* ``"quadratic"`` (Theorem 4.7): ``F = x' A x / 2 + c' x``, the norm is ``sqrt(x' A x / ||A||)``,
  and zeta bounds ``||grad F_m - grad F||_*``.  Noise in flat directions is expensive:
  ``sigma^2 = ||A|| tr(A^-1 Sigma)``;
* ``"small client rate"`` (Theorem 4.3 with the constants of Theorem C.13): the client rate is small
  enough, which depends on the problem; in practice a thousandth of the product of both rates.

The server rate is 1 in the first two.  The thesis states Theorem 4.3 for FedMiD, too, where it is
false, and for FedMiD-OSP, where it needs an additional condition.

* FedMiD applies a penalty twice (see :func:`fedjax_sim.fedmid`).  With a constraint each client
  projects its own gradient step, and what is cut off differs between clients whose gradients
  differ.  On x >= 0 with the slopes 3 and -1, FedMiD leaves the optimum 0 at any client rate.
* FedMiD-OSP's clients do not project, so the theorem holds if the server averages the clients' dual
  displacements.  That is the case for Euclidean h, where primal and dual displacements are equal,
  and for ``delta_space="dual"``.  For another h, a mean of primal displacements is not
  proportional to the mean gradient at any client rate: for small rates it is the mean gradient
  times the Hessian of ``h*``.

In formulas M is ``clients``, K ``local_steps``, R ``rounds`` and eta ``lr``: the client rate, for
small client rates the product of both rates.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import (
    at_most,
    check_choice,
    non_negative,
    positive,
    where_valid,
)
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import smallest

__all__ = ["bound", "prescribed_lr", "tuned_bound"]

Regime = Literal["bounded gradients", "quadratic", "small client rate"]

VALID_LR = "lr <= 1 / (4 L)"


def bound(
    constants: ProblemConstants,
    regime: Regime,
    *,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""``E Phi(xhat) - Phi(x*)``; for small client rates, at the mean of the server's models.

    .. math:: \text{bounded gradients:}\quad & \frac{B_h^2}{\eta K R} + \frac{\eta \sigma^2}{M}
        + 4 \eta^2 L (K - 1)^2 G^2 \\
        \text{quadratic:}\quad & \frac{B_h^2}{\eta K R} + \frac{\eta \sigma^2}{M}
        + 7 \eta^2 L K \sigma^2 + 14 \eta^2 L K^2 \zeta^2 \\
        \text{small client rate:}\quad & \frac{B_h^2}{\eta K R} + \frac{3 \eta \sigma^2}{M}

    Needs L, sigma, B_h, and G or zeta.  NaN with a warning where ``lr > 1 / (4 L)``; for small
    client rates ``lr > 1 / (4 K L)``.  Source: thesis, Theorems 4.4 and C.11, 4.7, 4.3 and C.13.

    Raises:
        ValueError: a missing or negative constant; another regime.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, G=0.5, B_h=1.0)
        >>> run = dict(lr=0.1, local_steps=5, rounds=20, clients=10)
        >>> round(float(bound(constants, "bounded gradients", **run)), 3)  # 0.1 + 0.01 + 0.16
        0.27
    """
    check_choice("regime", regime, Regime)
    L, B, K = positive(constants, "L", "B_h", local_steps=local_steps)
    lr, R, M = positive(lr=lr, rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    if regime == "small client rate":
        value = B**2 / (lr * K * R) + 3 * lr * sigma**2 / M  # Theorem C.13
        return where_valid(value, at_most(lr, 1 / (4 * K * L)), "lr <= 1 / (4 K L)")
    value = B**2 / (lr * K * R) + lr * sigma**2 / M  # Eqs. (4.10), (4.13)
    value += L * dual_discrepancy(constants, regime, lr, K)
    return where_valid(value, at_most(lr, 1 / (4 * L)), VALID_LR)


def prescribed_lr(
    constants: ProblemConstants,
    regime: Regime,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""The rate that the regime's theorem prescribes for :func:`bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B_h}{\sigma \sqrt{K R}},\
        \text{others}\Bigr\}

    with ``1 / (4 K L)`` for the first entry at small client rates, and the others

    * bounded gradients (Theorem C.11): ``B_h^(2/3) / (L^(1/3) K R^(1/3) G^(2/3))``;
    * quadratic (Theorem 4.7): ``B_h^(2/3) / (L^(1/3) K^(2/3) R^(1/3) sigma^(2/3))`` and
      ``B_h^(2/3) / (L^(1/3) K R^(1/3) zeta^(2/3))``;
    * small client rate (Theorem C.13): none.

    Needs L, sigma, B_h, and G or zeta.

    Raises:
        ValueError: a missing or negative constant; another regime.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta=0.0, B_h=1.0)
        >>> float(prescribed_lr(constants, "quadratic", local_steps=5, rounds=20, clients=10))
        0.25
    """
    check_choice("regime", regime, Regime)
    L, B, K = positive(constants, "L", "B_h", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    balanced = jnp.sqrt(M / (K * R)) * B / sigma  # of noise and distance; infinite without noise
    if regime == "small client rate":
        return smallest(1 / (4 * K * L), balanced)
    cube = (B**2 / (R * L)) ** (1 / 3)
    if regime == "bounded gradients":
        (G,) = non_negative(constants, "G")
        return smallest(1 / (4 * L), balanced, cube / (K * G ** (2 / 3)))
    (zeta,) = non_negative(constants, "zeta")
    others = cube / (K * sigma) ** (2 / 3), cube / (K * zeta ** (2 / 3))
    return smallest(1 / (4 * L), balanced, *others)


def tuned_bound(
    constants: ProblemConstants,
    regime: Regime,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    .. math:: \text{bounded gradients:}\quad & \frac{4 L B_h^2}{K R}
        + \frac{2 \sigma B_h}{\sqrt{M K R}} + \frac{5 L^{1/3} B_h^{4/3} G^{2/3}}{R^{2/3}} \\
        \text{quadratic:}\quad & \frac{4 L B_h^2}{K R} + \frac{2 \sigma B_h}{\sqrt{M K R}}
        + \frac{8 L^{1/3} B_h^{4/3} \sigma^{2/3}}{K^{1/3} R^{2/3}}
        + \frac{15 L^{1/3} B_h^{4/3} \zeta^{2/3}}{R^{2/3}} \\
        \text{small client rate:}\quad & \frac{4 L B_h^2}{R} + \frac{4 \sigma B_h}{\sqrt{M K R}}

    Needs L, sigma, B_h, and G or zeta.  Source: thesis, Theorems 4.4 and C.11, 4.7, 4.3 and C.13.

    Raises:
        ValueError: a missing or negative constant; another regime.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B_h=1.0)
        >>> sizes = dict(local_steps=5, rounds=20, clients=10)
        >>> round(float(tuned_bound(constants, "small client rate", **sizes)), 3)
        0.2
    """
    check_choice("regime", regime, Regime)
    L, B, K = positive(constants, "L", "B_h", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    noise = sigma * B / jnp.sqrt(M * K * R)
    if regime == "small client rate":
        return 4 * L * B**2 / R + 4 * noise
    cube = (L * B**4 / R**2) ** (1 / 3)
    shared = 4 * L * B**2 / (K * R) + 2 * noise
    if regime == "bounded gradients":
        (G,) = non_negative(constants, "G")
        return shared + 5 * cube * G ** (2 / 3)  # Eq. (4.11)
    (zeta,) = non_negative(constants, "zeta")
    return shared + 8 * cube * (sigma**2 / K) ** (1 / 3) + 15 * cube * zeta ** (2 / 3)


def dual_discrepancy(constants: ProblemConstants, regime: str, lr: Array, K: Array) -> Array:
    """The bound of the clients' dual discrepancy; the rate is not checked."""
    if regime == "bounded gradients":
        (G,) = non_negative(constants, "G")
        return 4 * (lr * (K - 1) * G) ** 2
    sigma, zeta = non_negative(constants, "sigma", "zeta")
    return lr**2 * (7 * K * sigma**2 + 14 * (K * zeta) ** 2)
