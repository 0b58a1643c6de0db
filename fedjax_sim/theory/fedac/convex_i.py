r"""FedAc-I on merely convex objectives, run on ``F + augmentation / 2 ||x - x_0||^2``.

Source: thesis, Appendix B.3, Theorem B.21 (see :mod:`fedjax_sim.theory.fedac`).  ``augmentation``
is lambda, and FedAc's mu.  Functions bound ``E F(xbar_ag) - F*`` of the original objective after R
rounds.
"""

import math

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import largest, log_monomial, log_plus, smallest, times_log

__all__ = ["bound", "prescribed_augmentation", "prescribed_lr", "tuned_bound"]

VALID_LR = "lr <= 1 / (L + augmentation)"


def prescribed_augmentation(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The augmentation that Theorem B.21 prescribes for FedAc-I.

    .. math:: \max\Bigl\{\frac{\sigma}{\sqrt{M K R} B},\
        \frac{L^{1/3} \sigma^{2/3}}{K^{1/3} R B^{2/3}},\
        \frac{2 L}{K R^2} \log^2(e^2 + K R^2)\Bigr\}

    Needs L, sigma, B.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=10, rounds=10, clients=4)
        >>> round(float(prescribed_augmentation(constants, **sizes)), 4)
        0.0956
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    return largest(
        sigma / (jnp.sqrt(M * K * R) * B),
        (L * sigma**2 / (K * B**2)) ** (1 / 3) / R,
        2 * acceleration(L, K, R),
    )


def prescribed_lr(
    constants: ProblemConstants,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    augmentation: Scalar | None = None,
) -> Array:
    r"""The rate that Lemma B.25 prescribes for FedAc-I at any augmentation lambda.

    .. math:: \min\Bigl\{\frac{1}{L + \lambda},\ \frac{1}{\lambda K R^2} \log^2\Bigl(e + \min\Bigl\{
        \frac{\lambda L M K R B^2}{\sigma^2}, \frac{\lambda^2 K R^3 B^2}{\sigma^2}\Bigr\}\Bigr),\
        \frac{L^{1/3} B^{2/3}}{\lambda^{2/3} K^{2/3} R \sigma^{2/3}},\
        \frac{L^{1/4} B^{1/2}}{\lambda^{3/4} K^{3/4} R \sigma^{1/2}}\Bigr\}

    Needs L, sigma, B.

    Args:
        augmentation: None: :func:`prescribed_augmentation`.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=10, rounds=10, clients=4)
        >>> float(prescribed_lr(constants, augmentation=1.0, **sizes))
        0.5
    """
    sizes: dict[str, Scalar] = {"local_steps": local_steps, "rounds": rounds, "clients": clients}
    if augmentation is None:
        augmentation = prescribed_augmentation(constants, **sizes)
    L, B, lam = positive(constants, "L", "B", augmentation=augmentation)
    K, R, M = positive(**sizes)
    (sigma,) = non_negative(constants, "sigma")
    ratio = smallest(
        log_monomial((lam, 1), (L, 1), (M, 1), (K, 1), (R, 1), (B, 2), (sigma, -2)),
        log_monomial((lam, 2), (K, 1), (R, 3), (B, 2), (sigma, -2)),
    )
    return smallest(
        1 / (L + lam),
        log_plus(1, ratio) ** 2 / (lam * K * R**2),
        (L * B**2 / (lam * K) ** 2) ** (1 / 3) / (R * sigma ** (2 / 3)),
        (L * B**2 / (lam * K) ** 3) ** (1 / 4) / (R * jnp.sqrt(sigma)),
    )


def bound(
    constants: ProblemConstants,
    *,
    lr: Scalar,
    augmentation: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""The error of FedAc-I for any rate and augmentation lambda.

    .. math:: \frac{\lambda}{2} B^2 + \frac{L}{2} B^2 e^{-\sqrt{\eta \lambda K} R}
        + \frac{\eta^{1/2} \sigma^2}{2 \lambda^{1/2} M K^{1/2}} + \frac{\eta \sigma^2}{2 M}
        + (L + \lambda) \Bigl(\frac{390 \eta^{3/2} K^{1/2} \sigma^2}{\lambda^{1/2}}
        + 7 \eta^2 K \sigma^2\Bigr)

    Needs L, sigma, B.  NaN with a warning where ``lr > 1 / (L + augmentation)``.  Source: thesis,
    Lemma B.24.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=4, rounds=20, clients=4)
        >>> round(float(bound(constants, lr=0.25, augmentation=1.0, **sizes)), 3)
        0.5
    """
    L, B, lr, lam = positive(constants, "L", "B", lr=lr, augmentation=augmentation)
    K, R, M = positive(local_steps=local_steps, rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    noise = jnp.sqrt(lr / (lam * K)) / (2 * M) + lr / (2 * M)
    noise += (L + lam) * (390 * lr**1.5 * jnp.sqrt(K / lam) + 7 * lr**2 * K)
    value = initial_error(lr * lam * K * R**2, lam, L, B) + noise * sigma**2  # Lemma B.24
    return where_valid(value, at_most(lr, 1 / (L + lam)), VALID_LR)


def tuned_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The error of FedAc-I at the prescribed rate and augmentation.

    .. math:: \frac{2 L B^2}{K R^2} \log^2(e^2 + K R^2)
        + \frac{2 \sigma B}{\sqrt{M K R}} \log^2\Bigl(e^2 + \frac{L \sqrt{M K R} B}{\sigma}\Bigr)
        + \frac{1005 L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R}
        \log^4\Bigl(e^4 + \frac{L^{2/3} K^{1/3} R B^{2/3}}{\sigma^{2/3}}\Bigr)

    Needs L, sigma, B.  NaN with a warning where ``K R < 24``.  Source: thesis, Theorem B.21.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=10, rounds=10, clients=4)
        >>> round(float(tuned_bound(constants, **sizes)), 4)
        0.0956
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    statistical = log_monomial((L, 1), (M, 0.5), (K, 0.5), (R, 0.5), (B, 1), (sigma, -1))
    ratio = log_monomial((L, 2 / 3), (K, 1 / 3), (R, 1), (B, 2 / 3), (sigma, -2 / 3))
    overhead = (L * sigma**2 * B**4 / K) ** (1 / 3) / R
    value = (  # Theorem B.21
        2 * B**2 * acceleration(L, K, R)
        + times_log(2 * sigma * B / jnp.sqrt(M * K * R), log_plus(2, statistical), 2)
        + times_log(1005 * overhead, log_plus(4, ratio), 4)
    )
    return where_valid(value, K * R >= 24, "K R >= 24")


def acceleration(L: Array, K: Array, R: Array) -> Array:
    """``L / (K R^2) log(e^2 + K R^2)^2``; arguments are not checked.

    Example:
        >>> one = jnp.array(1.0)
        >>> round(float(acceleration(one, one, one)), 2)  # log(e^2 + 1)^2
        4.52
    """
    return L / (K * R**2) * jnp.log(math.exp(2) + K * R**2) ** 2


def initial_error(exponent: Array, augmentation: Array, L: Array, B: Array) -> Array:
    """``augmentation B^2 / 2 + L B^2 / 2 exp(-sqrt(exponent))``; arguments are not checked.

    Example:
        >>> one = jnp.array(1.0)
        >>> float(initial_error(0 * one, one, one, one))
        1.0
    """
    return (augmentation + L * jnp.exp(-jnp.sqrt(exponent))) * B**2 / 2
