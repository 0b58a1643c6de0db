r"""Convergence of FedDualAvg on composite convex objectives ``Phi = F + psi``.

From Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Chapter 4 and Appendix C; first in Yuan, Zaheer and Reddi (2021), "Federated Composite
Optimization".

Constants: h is Legendre and 1-strongly convex in a norm; every ``f(.; xi)`` is convex and
``L``-smooth in it; ``sigma^2`` bounds the variance of a stochastic gradient in the dual norm; M
clients, all of them in every round, K local steps, R rounds.  ``B^2 = D_h(x*, x_0)``: for
``h = ||x||^2 / 2`` **half** the squared distance.  The mean over rounds and steps is that of the
models whose dual states are the clients' mean dual states (Equation 4.9).  Constants may be traced.

Slips of the thesis:

* Assumption 4.2(a) has ``zeta^2`` on the right of a norm; it is ``zeta``, as its use shows.
* Theorem 4.3 is stated for FedMiD, too, without a proof, and is false there.  A penalty is applied
  twice (see :func:`fedjax_sim.fedmid`); of a constraint the clients project each its own gradient,
  and what is cut off differs between clients whose gradients do.  On x >= 0 with the slopes 3 and
  -1 FedMiD leaves the optimum 0 at any client rate.  It holds for FedDualAvg and for FedMiD-OSP,
  whose clients do not project.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.step_sizes import smallest
from fedjax_sim.types import Scalar


def dual_shadow_bound(
    discrepancy: Scalar,
    *,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
) -> Array:
    r"""``E Phi(xhat) - Phi(x*)`` with unit server rate, from the discrepancy that was measured.

    .. math:: \frac{B^2}{\eta_c K R} + \frac{\eta_c \sigma^2}{M} + L \cdot discrepancy

    Args:
        discrepancy: mean over clients, rounds and steps k = 0 .. K - 1 of
            ``E||y_m(r, k) - ybar(r, k)||_*^2``.
        lr: eta_c.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``.

    Raises:
        ValueError: a constant that is not positive (negative for discrepancy, sigma).

    References:
        Thesis, Lemma 4.9.

    Example:
        >>> constants = dict(lr=0.1, L=1.0, sigma=1.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(dual_shadow_bound(0.02, **constants)), 3)  # 0.1 + 0.01 + 0.02
        0.13
    """
    lr, L, M, K, R, B = positive(lr=lr, L=L, M=M, K=K, R=R, B=B)
    discrepancy, sigma = non_negative(discrepancy=discrepancy, sigma=sigma)
    value = dual_shadow_terms(discrepancy, lr, L, sigma, M, K, R, B)
    return where_valid(value, at_most(lr, 1 / (4 * L)), "lr <= 1 / (4 L)")


def bounded_gradient_discrepancy(*, lr: Scalar, G: Scalar, K: Scalar) -> Array:
    r"""``E||y_m - ybar||_*^2`` where gradients are at most G: ``4 eta_c^2 (K - 1)^2 G^2``.

    Raises:
        ValueError: a constant that is not positive (negative for G).

    References:
        Thesis, Lemma C.12.

    Example:
        >>> round(float(bounded_gradient_discrepancy(lr=0.1, G=1.0, K=5)), 3)
        0.64
    """
    lr, K = positive(lr=lr, K=K)
    (G,) = non_negative(G=G)
    return 4 * (lr * (K - 1) * G) ** 2


def bounded_gradient_bound(
    *, lr: Scalar, L: Scalar, sigma: Scalar, G: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""``E Phi(xhat) - Phi(x*)`` with unit server rate, gradients at most G on the domain of psi.

    .. math:: \frac{B^2}{\eta_c K R} + \frac{\eta_c \sigma^2}{M} + 4 \eta_c^2 L (K - 1)^2 G^2

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G).

    References:
        Thesis, Theorem 4.4 with the constants of Theorem C.11.

    Example:
        >>> constants = dict(lr=0.1, L=1.0, sigma=1.0, G=0.5, M=10, K=5, R=20, B=1.0)
        >>> round(float(bounded_gradient_bound(**constants)), 3)  # 0.1 + 0.01 + 0.16
        0.27
    """
    lr, L, M, K, R, B = positive(lr=lr, L=L, M=M, K=K, R=R, B=B)
    sigma, G = non_negative(sigma=sigma, G=G)
    discrepancy = bounded_gradient_discrepancy(lr=lr, G=G, K=K)
    value = dual_shadow_terms(discrepancy, lr, L, sigma, M, K, R, B)  # Equation 4.10
    return where_valid(value, at_most(lr, 1 / (4 * L)), "lr <= 1 / (4 L)")


def bounded_gradient_lr(
    *, L: Scalar, sigma: Scalar, G: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""The rate that Theorem C.11 prescribes for :func:`bounded_gradient_bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B}{\sigma \sqrt{K R}},\
        \frac{B^{2/3}}{L^{1/3} K R^{1/3} G^{2/3}}\Bigr\}

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G).

    Example:
        >>> float(bounded_gradient_lr(L=1.0, sigma=0.0, G=0.0, M=10, K=5, R=20, B=1.0))
        0.25
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    sigma, G = non_negative(sigma=sigma, G=G)
    cube = (B**2 / (R * L)) ** (1 / 3)
    return smallest(1 / (4 * L), noise_lr(sigma, M, K, R, B), cube / (K * G ** (2 / 3)))


def tuned_bounded_gradient_bound(
    *, L: Scalar, sigma: Scalar, G: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""What :func:`bounded_gradient_bound` is at most at the rate :func:`bounded_gradient_lr`.

    .. math:: \frac{4 L B^2}{K R} + \frac{2 \sigma B}{\sqrt{M K R}}
        + \frac{5 L^{1/3} B^{4/3} G^{2/3}}{R^{2/3}}

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G).

    References:
        Thesis, Theorem 4.4 with the constants of Theorem C.11.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(tuned_bounded_gradient_bound(**constants)), 3)
        0.04
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    sigma, G = non_negative(sigma=sigma, G=G)
    cube = (L * B**4 / R**2) ** (1 / 3)
    return (  # Equation 4.11
        4 * L * B**2 / (K * R) + 2 * sigma * B / jnp.sqrt(M * K * R) + 5 * cube * G ** (2 / 3)
    )


def dual_shadow_terms(
    discrepancy: Array, lr: Array, L: Array, sigma: Array, M: Array, K: Array, R: Array, B: Array
) -> Array:
    """The three terms of Lemma 4.9."""
    return B**2 / (lr * K * R) + lr * sigma**2 / M + L * discrepancy


def noise_lr(sigma: Array, M: Array, K: Array, R: Array, B: Array) -> Array:
    """The rate at which noise and distance balance; infinite without noise."""
    return jnp.sqrt(M / (K * R)) * B / sigma
