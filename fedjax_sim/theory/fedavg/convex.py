r"""FedAvg on convex objectives.

Source: thesis, Section 2.1 and Appendix A.1 (see :mod:`fedjax_sim.theory.fedavg`), adapted there
from Woodworth, Patel and Srebro (2020).  Needs L, sigma, zeta, B.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.fedavg.drift import SMALL_LR, drift_terms
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import smallest


def shadow_bound(
    constants: ProblemConstants,
    *,
    drift: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""The error that :func:`bound` bounds, from the measured drift.

    .. math:: \frac{1}{K R} \sum_{r,k} E F(\bar x^{(r,k)}) - F^*
        + \frac{E \|\bar x^{(R,0)} - x^*\|^2}{2 \eta K R}
        \le \frac{B^2}{2 \eta K R} + \frac{\eta \sigma^2}{M} + L \cdot drift

    Needs L, sigma, B.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, Lemma 2.3,
    with the distance after the last round (see the errata).

    Args:
        drift: mean over clients, rounds and steps k = 0 .. K - 1 of
            ``E||x_m(r, k) - xbar(r, k)||^2``.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, B=1.0)
        >>> sizes = dict(local_steps=5, rounds=20, clients=10)
        >>> value = shadow_bound(constants, drift=0.02, lr=0.1, **sizes)  # 0.05 + 0.01 + 0.02
        >>> round(float(value), 3)
        0.08
    """
    L, B, lr, K = positive(constants, "L", "B", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, drift = non_negative(constants, "sigma", drift=drift)
    value = _shadow_terms(drift, lr, L, sigma, M, K, R, B)
    return where_valid(value, at_most(lr, 1 / (4 * L)), SMALL_LR)


def bound(
    constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The mean of ``E F(xbar(r, k)) - F*`` over all rounds and k = 1 .. K, for any rate.

    .. math:: \frac{B^2}{2 \eta K R} + \frac{\eta \sigma^2}{M} + 4 K \eta^2 L \sigma^2
        + 18 K^2 \eta^2 L \zeta^2

    By convexity it also bounds the error of the mean of all shadow iterates.

    NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, Equation 2.1: Lemma 2.3 with Lemma
    2.4.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, zeta=0.0, B=1.0)
        >>> value = bound(constants, lr=0.1, local_steps=5, rounds=20, clients=10)
        >>> round(float(value), 3)  # 0.05 + 0.01 + 0.2
        0.26
    """
    L, B, lr, K = positive(constants, "L", "B", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, zeta = non_negative(constants, "sigma", "zeta")
    # Eq. (2.1)
    value = _shadow_terms(drift_terms(lr, sigma, zeta, K), lr, L, sigma, M, K, R, B)
    return where_valid(value, at_most(lr, 1 / (4 * L)), SMALL_LR)


def prescribed_lr(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The rate that Proposition 2.1 prescribes for :func:`bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B}{\sqrt{K R} \sigma},\
        \frac{B^{2/3}}{K^{2/3} R^{1/3} L^{1/3} \sigma^{2/3}},\
        \frac{B^{2/3}}{K R^{1/3} L^{1/3} \zeta^{2/3}}\Bigr\}

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta=0.0, B=1.0)
        >>> float(prescribed_lr(constants, local_steps=5, rounds=20, clients=10))
        0.25
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, zeta = non_negative(constants, "sigma", "zeta")
    cube = (B**2 / (R * L)) ** (1 / 3)
    return smallest(
        1 / (4 * L),
        jnp.sqrt(M / (K * R)) * B / sigma,
        cube / (K * sigma) ** (2 / 3),
        cube / (K * zeta ** (2 / 3)),
    )


def tuned_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    .. math:: \frac{2 L B^2}{K R} + \frac{3 \sigma B}{2 \sqrt{M K R}}
        + \frac{9}{2} \frac{L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R^{2/3}}
        + \frac{37}{2} \frac{L^{1/3} \zeta^{2/3} B^{4/3}}{R^{2/3}}

    Source: thesis, Proposition 2.1, whose O() hides the numbers; they follow by inserting the rate.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta=0.0, B=1.0)
        >>> round(float(tuned_bound(constants, local_steps=5, rounds=20, clients=10)), 3)
        0.02
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, zeta = non_negative(constants, "sigma", "zeta")
    cube = (L * B**4 / R**2) ** (1 / 3)
    return (  # Proposition 2.1
        2 * L * B**2 / (K * R)
        + 1.5 * sigma * B / jnp.sqrt(M * K * R)
        + 4.5 * cube * (sigma**2 / K) ** (1 / 3)
        + 18.5 * cube * zeta ** (2 / 3)
    )


def _shadow_terms(
    drift: Array, lr: Array, L: Array, sigma: Array, M: Array, K: Array, R: Array, B: Array
) -> Array:
    return B**2 / (2 * lr * K * R) + lr * sigma**2 / M + L * drift  # Lemma 2.3
