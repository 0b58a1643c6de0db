r"""FedAvg on strongly convex objectives with ``Q``-Lipschitz Hessian, all clients having one.

From Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Theorem B.18 in Appendix B.2, the complete version of Theorem 3.4.  Objectives are ``mu``-strongly
convex; other constants are those of :mod:`~fedjax_sim.theory.fedavg_third_order`.

Slip of the thesis: Table 3.1 prints ``mu^3`` where Theorem B.18 has ``mu^5``; see
:func:`~fedjax_sim.theory.orders.table_rate`.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.step_sizes import log_monomial, log_plus, smallest, times_log
from fedjax_sim.types import Scalar


def strongly_convex_bound(
    *,
    lr: Scalar,
    L: Scalar,
    mu: Scalar,
    Q: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
) -> Array:
    r"""``E F(sum rho xbar) - F* + mu / 2 E||xbar(R, 0) - x*||^2`` under strong convexity.

    .. math:: \frac{B^2}{\eta} e^{-\eta \mu K R / 2} + \frac{\eta \sigma^2}{M}
        + \frac{192 \eta^4 Q^2 K^2 \sigma^4}{\mu}

    The weights of ``xbar(r, k)``, k = 0 .. K - 1, are proportional to
    ``(1 - lr mu / 2)^(K R - (r K + k) - 1)``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)`` or
        ``mu > L``.

    Raises:
        ValueError: a constant that is not positive (negative for Q, sigma).

    References:
        Thesis, Lemma B.19 with Lemma 2.20.

    Example:
        >>> constants = dict(L=1.0, mu=0.5, Q=0.0, sigma=0.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(strongly_convex_bound(lr=0.1, **constants)), 3)  # 10 exp(-2.5)
        0.821
    """
    lr, L, mu, M, K, R, B = positive(lr=lr, L=L, mu=mu, M=M, K=K, R=R, B=B)
    sigma, Q = non_negative(sigma=sigma, Q=Q)
    value = (  # Lemma B.19
        B**2 / lr * jnp.exp(-lr * mu * K * R / 2)
        + lr * sigma**2 / M
        + 192 * lr**4 * Q**2 * K**2 * sigma**4 / mu
    )
    valid = at_most(lr, 1 / (4 * L)) & at_most(mu, L)
    return where_valid(value, valid, "lr <= 1 / (4 L) and mu <= L")


def strongly_convex_lr(
    *,
    L: Scalar,
    mu: Scalar,
    Q: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
) -> Array:
    r"""The rate that Theorem B.18 prescribes for :func:`strongly_convex_bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{2}{\mu K R} \log\Bigl(e + \min\Bigl\{
        \frac{\mu^2 M K^2 R^2 B^2}{\sigma^2}, \frac{\mu^6 K^3 R^5 B^2}{Q^2 \sigma^4}
        \Bigr\}\Bigr)\Bigr\}

    Raises:
        ValueError: a constant that is not positive (negative for Q, sigma).

    Example:
        >>> float(strongly_convex_lr(L=1.0, mu=0.5, Q=0.0, sigma=0.0, M=10, K=5, R=20, B=1.0))
        0.25
    """
    L, mu, M, K, R, B = positive(L=L, mu=mu, M=M, K=K, R=R, B=B)
    sigma, Q = non_negative(sigma=sigma, Q=Q)
    ratio = smallest(*_log_ratios(mu, Q, sigma, M, K, R, B))
    return smallest(1 / (4 * L), 2 / (mu * K * R) * log_plus(1, ratio))


def tuned_strongly_convex_bound(
    *,
    L: Scalar,
    mu: Scalar,
    Q: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
) -> Array:
    r"""What :func:`strongly_convex_bound` is at most at the rate :func:`strongly_convex_lr`.

    .. math:: 4 L B^2 e^{-\mu K R / (8 L)} + \frac{3 \sigma^2}{\mu M K R} \log(e + a)
        + \frac{3073\, Q^2 \sigma^4}{\mu^5 K^2 R^4} \log^4(e + b)

    with a and b the two ratios in the rate's minimum.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``mu > L``.

    Raises:
        ValueError: a constant that is not positive (negative for Q, sigma).

    References:
        Thesis, Theorem B.18.

    Example:
        >>> constants = dict(L=1.0, mu=0.5, Q=0.0, sigma=0.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(tuned_strongly_convex_bound(**constants)), 4)  # 4 exp(-6.25)
        0.0077
    """
    L, mu, M, K, R, B = positive(L=L, mu=mu, M=M, K=K, R=R, B=B)
    sigma, Q = non_negative(sigma=sigma, Q=Q)
    a, b = _log_ratios(mu, Q, sigma, M, K, R, B)
    overhead = jnp.exp(log_monomial((Q, 2), (sigma, 4), (mu, -5), (K, -2), (R, -4)))
    value = (  # Theorem B.18
        4 * L * B**2 * jnp.exp(-mu * K * R / (8 * L))
        + times_log(3 * sigma**2 / (mu * M * K * R), log_plus(1, a), 1)
        + times_log(3073 * overhead, log_plus(1, b), 4)
    )
    return where_valid(value, at_most(mu, L), "mu <= L")


def _log_ratios(
    mu: Array, Q: Array, sigma: Array, M: Array, K: Array, R: Array, B: Array
) -> tuple[Array, Array]:
    a = log_monomial((mu, 2), (M, 1), (K, 2), (R, 2), (B, 2), (sigma, -2))
    b = log_monomial((mu, 6), (K, 3), (R, 5), (B, 2), (Q, -2), (sigma, -4))
    return a, b
