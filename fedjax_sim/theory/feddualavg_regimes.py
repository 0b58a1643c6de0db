r"""FedDualAvg at small client rates, and on quadratics with bounded heterogeneity.

Constants and sources are those of :mod:`fedjax_sim.theory.feddualavg`.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.feddualavg import dual_shadow_terms, noise_lr
from fedjax_sim.theory.step_sizes import smallest
from fedjax_sim.types import Scalar


def small_client_rate_bound(
    *, lr: Scalar, L: Scalar, sigma: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""``E Phi - Phi(x*)`` at the mean of the server's models, for client rates small enough.

    .. math:: \frac{B^2}{\eta K R} + \frac{3 \eta \sigma^2}{M}, \qquad \eta = \eta_s \eta_c

    "Small enough" depends on the problem; a thousandth of ``lr`` is in practice.

    Args:
        lr: eta, the product of both rates.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 K L)``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma).

    References:
        Thesis, Theorem 4.3 with the constants of Theorem C.13.

    Example:
        >>> constants = dict(L=1.0, sigma=1.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(small_client_rate_bound(lr=0.05, **constants)), 3)  # 0.2 + 0.015
        0.215
    """
    lr, L, M, K, R, B = positive(lr=lr, L=L, M=M, K=K, R=R, B=B)
    (sigma,) = non_negative(sigma=sigma)
    value = B**2 / (lr * K * R) + 3 * lr * sigma**2 / M  # Theorem C.13
    return where_valid(value, at_most(lr, 1 / (4 * K * L)), "lr <= 1 / (4 K L)")


def small_client_rate_lr(
    *, L: Scalar, sigma: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""The product of rates that Theorem C.13 prescribes for :func:`small_client_rate_bound`.

    .. math:: \min\Bigl\{\frac{1}{4 K L},\ \frac{\sqrt{M} B}{\sigma \sqrt{K R}}\Bigr\}

    Raises:
        ValueError: a constant that is not positive (negative for sigma).

    Example:
        >>> round(float(small_client_rate_lr(L=1.0, sigma=0.0, M=10, K=5, R=20, B=1.0)), 3)
        0.05
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    (sigma,) = non_negative(sigma=sigma)
    return smallest(1 / (4 * K * L), noise_lr(sigma, M, K, R, B))


def tuned_small_client_rate_bound(
    *, L: Scalar, sigma: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""What :func:`small_client_rate_bound` is at most at :func:`small_client_rate_lr`.

    .. math:: \frac{4 L B^2}{R} + \frac{4 \sigma B}{\sqrt{M K R}}

    Raises:
        ValueError: a constant that is not positive (negative for sigma).

    References:
        Thesis, Theorem 4.3 with the constants of Theorem C.13.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(tuned_small_client_rate_bound(**constants)), 3)
        0.2
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    (sigma,) = non_negative(sigma=sigma)
    return 4 * L * B**2 / R + 4 * sigma * B / jnp.sqrt(M * K * R)


def quadratic_discrepancy(
    *, lr: Scalar, L: Scalar, sigma: Scalar, zeta: Scalar, K: Scalar
) -> Array:
    r"""``E||y_m - ybar||_*^2`` where F is quadratic: ``eta_c^2 (7 K sigma^2 + 14 K^2 zeta^2)``.

    ``F = x' A x / 2 + c' x``, the norm being ``sqrt(x' A x / ||A||)``; ``zeta`` bounds
    ``||grad F_m - grad F||_*``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, zeta).

    References:
        Thesis, proof of Theorem 4.7.

    Example:
        >>> found = quadratic_discrepancy(lr=0.1, L=1.0, sigma=1.0, zeta=0.5, K=2)
        >>> round(float(found), 3)  # 0.14 + 0.14
        0.28
    """
    lr, L, K = positive(lr=lr, L=L, K=K)
    sigma, zeta = non_negative(sigma=sigma, zeta=zeta)
    value = _discrepancy(lr, sigma, zeta, K)
    return where_valid(value, at_most(lr, 1 / (4 * L)), "lr <= 1 / (4 L)")


def quadratic_bound(
    *,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    zeta: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
) -> Array:
    r"""``E Phi(xhat) - Phi(x*)`` with unit server rate where F is quadratic.

    .. math:: \frac{B^2}{\eta_c K R} + \frac{\eta_c \sigma^2}{M} + 7 \eta_c^2 L K \sigma^2
        + 14 \eta_c^2 L K^2 \zeta^2

    Norm and zeta are those of :func:`quadratic_discrepancy`: noise in flat directions is
    expensive, ``sigma^2 = ||A|| tr(A^-1 Sigma)``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, zeta).

    References:
        Thesis, Theorem 4.7.

    Example:
        >>> constants = dict(L=1.0, sigma=1.0, zeta=0.5, M=10, K=2, R=50, B=1.0)
        >>> round(float(quadratic_bound(lr=0.1, **constants)), 3)  # 0.1 + 0.01 + 0.28
        0.39
    """
    lr, L, M, K, R, B = positive(lr=lr, L=L, M=M, K=K, R=R, B=B)
    sigma, zeta = non_negative(sigma=sigma, zeta=zeta)
    discrepancy = _discrepancy(lr, sigma, zeta, K)
    value = dual_shadow_terms(discrepancy, lr, L, sigma, M, K, R, B)  # Equation 4.13
    return where_valid(value, at_most(lr, 1 / (4 * L)), "lr <= 1 / (4 L)")


def quadratic_lr(
    *, L: Scalar, sigma: Scalar, zeta: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""The rate that Theorem 4.7 prescribes for :func:`quadratic_bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B}{\sigma \sqrt{K R}},\
        \frac{B^{2/3}}{L^{1/3} K^{2/3} R^{1/3} \sigma^{2/3}},\
        \frac{B^{2/3}}{L^{1/3} K R^{1/3} \zeta^{2/3}}\Bigr\}

    Raises:
        ValueError: a constant that is not positive (negative for sigma, zeta).

    Example:
        >>> float(quadratic_lr(L=1.0, sigma=0.0, zeta=0.0, M=10, K=5, R=20, B=1.0))
        0.25
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    sigma, zeta = non_negative(sigma=sigma, zeta=zeta)
    cube = (B**2 / (R * L)) ** (1 / 3)
    return smallest(
        1 / (4 * L),
        noise_lr(sigma, M, K, R, B),
        cube / (K * sigma) ** (2 / 3),
        cube / (K * zeta ** (2 / 3)),
    )


def tuned_quadratic_bound(
    *, L: Scalar, sigma: Scalar, zeta: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""What :func:`quadratic_bound` is at most at the rate :func:`quadratic_lr`.

    .. math:: \frac{4 L B^2}{K R} + \frac{2 \sigma B}{\sqrt{M K R}}
        + \frac{8 L^{1/3} B^{4/3} \sigma^{2/3}}{K^{1/3} R^{2/3}}
        + \frac{15 L^{1/3} B^{4/3} \zeta^{2/3}}{R^{2/3}}

    Raises:
        ValueError: a constant that is not positive (negative for sigma, zeta).

    References:
        Thesis, Theorem 4.7.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, zeta=0.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(tuned_quadratic_bound(**constants)), 3)
        0.04
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    sigma, zeta = non_negative(sigma=sigma, zeta=zeta)
    cube = (L * B**4 / R**2) ** (1 / 3)
    return (
        4 * L * B**2 / (K * R)
        + 2 * sigma * B / jnp.sqrt(M * K * R)
        + 8 * cube * (sigma**2 / K) ** (1 / 3)
        + 15 * cube * zeta ** (2 / 3)
    )


def _discrepancy(lr: Array, sigma: Array, zeta: Array, K: Array) -> Array:
    return lr**2 * (7 * K * sigma**2 + 14 * (K * zeta) ** 2)
