r"""FedAvg on strongly convex objectives with Q-Lipschitz Hessian; clients have one objective.

Source: thesis, Theorem B.18 in Appendix B.2 (see :mod:`fedjax_sim.theory.fedavg`), the complete
version of Theorem 3.4.  sigma is :func:`~fedjax_sim.theory.conditions.both_moments`.  Needs L, mu,
sigma, sigma4, Q, B.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, both_moments, non_negative, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import log_monomial, log_plus, smallest, times_log


def bound(
    constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""``E F(sum rho xbar) - F* + mu / 2 E||xbar(R, 0) - x*||^2`` under strong convexity.

    .. math:: \frac{B^2}{\eta} e^{-\eta \mu K R / 2} + \frac{\eta \sigma^2}{M}
        + \frac{192 \eta^4 Q^2 K^2 \sigma^4}{\mu}

    The weights of ``xbar(r, k)``, k = 0 .. K - 1, are proportional to
    ``(1 - lr mu / 2)^(K R - (r K + k) - 1)``.

    NaN with a warning where ``lr > 1 / (4 L)`` or ``mu > L``.  Source: thesis, Lemma B.19 with
    Lemma 2.20.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, Q=0.0, sigma=0.0, sigma4=0.0, B=1.0)
        >>> value = bound(constants, lr=0.1, local_steps=5, rounds=20, clients=10)
        >>> round(float(value), 3)  # 10 exp(-2.5)
        0.821
    """
    L, mu, B, lr, K = positive(constants, "L", "mu", "B", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (Q,), sigma = non_negative(constants, "Q"), both_moments(constants)
    value = (  # Lemma B.19
        B**2 / lr * jnp.exp(-lr * mu * K * R / 2)
        + lr * sigma**2 / M
        + 192 * lr**4 * Q**2 * K**2 * sigma**4 / mu
    )
    valid = at_most(lr, 1 / (4 * L)) & at_most(mu, L)
    return where_valid(value, valid, "lr <= 1 / (4 L) and mu <= L")


def prescribed_lr(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The rate that Theorem B.18 prescribes for :func:`bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{2}{\mu K R} \log\Bigl(e + \min\Bigl\{
        \frac{\mu^2 M K^2 R^2 B^2}{\sigma^2}, \frac{\mu^6 K^3 R^5 B^2}{Q^2 \sigma^4}
        \Bigr\}\Bigr)\Bigr\}

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, Q=0.0, sigma=0.0, sigma4=0.0, B=1.0)
        >>> float(prescribed_lr(constants, local_steps=5, rounds=20, clients=10))
        0.25
    """
    L, mu, B, K = positive(constants, "L", "mu", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (Q,), sigma = non_negative(constants, "Q"), both_moments(constants)
    ratio = smallest(*_log_ratios(mu, Q, sigma, M, K, R, B))
    return smallest(1 / (4 * L), 2 / (mu * K * R) * log_plus(1, ratio))


def tuned_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    .. math:: 4 L B^2 e^{-\mu K R / (8 L)} + \frac{3 \sigma^2}{\mu M K R} \log(e + a)
        + \frac{3073\, Q^2 \sigma^4}{\mu^5 K^2 R^4} \log^4(e + b)

    with a and b the two ratios in the rate's minimum.

    NaN with a warning where ``mu > L``.  Source: thesis, Theorem B.18.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, Q=0.0, sigma=0.0, sigma4=0.0, B=1.0)
        >>> value = tuned_bound(constants, local_steps=5, rounds=20, clients=10)
        >>> round(float(value), 4)  # 4 exp(-6.25)
        0.0077
    """
    L, mu, B, K = positive(constants, "L", "mu", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (Q,), sigma = non_negative(constants, "Q"), both_moments(constants)
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
