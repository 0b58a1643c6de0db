r"""Convergence of FedAvg on convex objectives, as functions of the constants.

From Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Section 2.1 and Appendix A.1, adapted there from Woodworth, Patel and Srebro (2020).

Constants, the same in all modules on FedAvg and FedAc: objectives are convex and ``L``-smooth;
``sigma^2`` bounds the variance of a stochastic gradient, uniformly; ``zeta`` bounds
``||grad F_m - grad F||`` for every client m and point; M clients, all of them in every round, K
local steps, R rounds, ``B = ||x_0 - x*||``.  The shadow iterate ``xbar(r, k)`` is the mean of the
clients' iterates after k steps of round r.  Constants may be traced: sweep or plot a bound by
``vmap`` over any of them.

Slips of the thesis:

* Lemma 2.3 has the distance at ``xbar(r, K)``, r free; telescoping gives it at ``xbar(R, 0)``.
* Proposition 2.1 has its constants in O().  Those of :func:`tuned_convex_bound` follow from
  inserting its step size into Equation 2.1's sum.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.step_sizes import smallest
from fedjax_sim.types import Scalar


def drift_bound(*, lr: Scalar, L: Scalar, sigma: Scalar, K: Scalar, zeta: Scalar = 0.0) -> Array:
    r"""``E||x_m(r, k) - xbar(r, k)||^2``, for every client, round and step k < K.

    .. math:: 4 K \eta^2 \sigma^2 + 18 K^2 \eta^2 \zeta^2

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, zeta).

    References:
        Thesis, Lemma 2.4.

    Example:
        >>> round(float(drift_bound(lr=0.1, L=1.0, sigma=1.0, K=5)), 3)
        0.2
    """
    lr, L, K = positive(lr=lr, L=L, K=K)
    sigma, zeta = non_negative(sigma=sigma, zeta=zeta)
    return where_valid(_drift(lr, sigma, K, zeta), at_most(lr, 1 / (4 * L)), "lr <= 1 / (4 L)")


def shadow_bound(
    drift: Scalar,
    *,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
) -> Array:
    r"""The same error as :func:`convex_bound` bounds, from the drift that was measured.

    .. math:: \frac{1}{K R} \sum_{r,k} E F(\bar x^{(r,k)}) - F^*
        + \frac{E \|\bar x^{(R,0)} - x^*\|^2}{2 \eta K R}
        \le \frac{B^2}{2 \eta K R} + \frac{\eta \sigma^2}{M} + L \cdot drift

    Args:
        drift: mean over clients, rounds and steps k = 0 .. K - 1 of
            ``E||x_m(r, k) - xbar(r, k)||^2``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``.

    Raises:
        ValueError: a constant that is not positive (negative for drift, sigma).

    References:
        Thesis, Lemma 2.3.

    Example:
        >>> constants = dict(lr=0.1, L=1.0, sigma=1.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(shadow_bound(0.02, **constants)), 3)  # 0.05 + 0.01 + 0.02
        0.08
    """
    lr, L, M, K, R, B = positive(lr=lr, L=L, M=M, K=K, R=R, B=B)
    drift, sigma = non_negative(drift=drift, sigma=sigma)
    value = _shadow(drift, lr, L, sigma, M, K, R, B)
    return where_valid(value, at_most(lr, 1 / (4 * L)), "lr <= 1 / (4 L)")


def convex_bound(
    *,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
    zeta: Scalar = 0.0,
) -> Array:
    r"""The mean of ``E F(xbar(r, k)) - F*`` over all rounds and k = 1 .. K, for any rate.

    .. math:: \frac{B^2}{2 \eta K R} + \frac{\eta \sigma^2}{M} + 4 K \eta^2 L \sigma^2
        + 18 K^2 \eta^2 L \zeta^2

    By convexity it also bounds the error of the mean of all shadow iterates.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, zeta).

    References:
        Thesis, Equation 2.1: Lemma 2.3 with Lemma 2.4.

    Example:
        >>> constants = dict(L=1.0, sigma=1.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(convex_bound(lr=0.1, **constants)), 3)  # 0.05 + 0.01 + 0.2
        0.26
    """
    lr, L, M, K, R, B = positive(lr=lr, L=L, M=M, K=K, R=R, B=B)
    sigma, zeta = non_negative(sigma=sigma, zeta=zeta)
    value = _shadow(_drift(lr, sigma, K, zeta), lr, L, sigma, M, K, R, B)  # Equation 2.1
    return where_valid(value, at_most(lr, 1 / (4 * L)), "lr <= 1 / (4 L)")


def convex_lr(
    *,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
    zeta: Scalar = 0.0,
) -> Array:
    r"""The rate that Proposition 2.1 prescribes for :func:`convex_bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B}{\sqrt{K R} \sigma},\
        \frac{B^{2/3}}{K^{2/3} R^{1/3} L^{1/3} \sigma^{2/3}},\
        \frac{B^{2/3}}{K R^{1/3} L^{1/3} \zeta^{2/3}}\Bigr\}

    Raises:
        ValueError: a constant that is not positive (negative for sigma, zeta).

    Example:
        >>> float(convex_lr(L=1.0, sigma=0.0, M=10, K=5, R=20, B=1.0))
        0.25
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    sigma, zeta = non_negative(sigma=sigma, zeta=zeta)
    cube = (B**2 / (R * L)) ** (1 / 3)
    return smallest(
        1 / (4 * L),
        jnp.sqrt(M / (K * R)) * B / sigma,
        cube / (K * sigma) ** (2 / 3),
        cube / (K * zeta ** (2 / 3)),
    )


def tuned_convex_bound(
    *,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
    zeta: Scalar = 0.0,
) -> Array:
    r"""What :func:`convex_bound` is at most at the rate :func:`convex_lr`, with constants.

    .. math:: \frac{2 L B^2}{K R} + \frac{3 \sigma B}{2 \sqrt{M K R}}
        + \frac{9}{2} \frac{L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R^{2/3}}
        + \frac{37}{2} \frac{L^{1/3} \zeta^{2/3} B^{4/3}}{R^{2/3}}

    Raises:
        ValueError: a constant that is not positive (negative for sigma, zeta).

    References:
        Thesis, Proposition 2.1; constants by insertion.

    Example:
        >>> round(float(tuned_convex_bound(L=1.0, sigma=0.0, M=10, K=5, R=20, B=1.0)), 3)
        0.02
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    sigma, zeta = non_negative(sigma=sigma, zeta=zeta)
    cube = (L * B**4 / R**2) ** (1 / 3)
    return (  # Proposition 2.1
        2 * L * B**2 / (K * R)
        + 1.5 * sigma * B / jnp.sqrt(M * K * R)
        + 4.5 * cube * (sigma**2 / K) ** (1 / 3)
        + 18.5 * cube * zeta ** (2 / 3)
    )


def _drift(lr: Array, sigma: Array, K: Array, zeta: Array) -> Array:
    return 4 * K * lr**2 * sigma**2 + 18 * K**2 * lr**2 * zeta**2  # Lemma 2.4


def _shadow(
    drift: Array, lr: Array, L: Array, sigma: Array, M: Array, K: Array, R: Array, B: Array
) -> Array:
    return B**2 / (2 * lr * K * R) + lr * sigma**2 / M + L * drift  # Lemma 2.3
