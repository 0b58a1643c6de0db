r"""FedAc-II on merely convex objectives, run on ``F + augmentation / 2 ||x - x_0||^2``.

Source: thesis, Appendix B.3 (see :mod:`fedjax_sim.theory.fedac`).  The setting is that of
:mod:`~fedjax_sim.theory.fedac.convex_i`.  Without Q the bounds are those of Theorem B.22; where Q
is known they are those of Theorem B.23, with sigma of
:func:`~fedjax_sim.theory.conditions.both_moments`.
"""

import math

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, positive, where_valid
from fedjax_sim.theory.fedac.convex_i import VALID_LR, acceleration, initial_error
from fedjax_sim.theory.fedac.strongly_convex_ii import hessian_and_noise
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import largest, log_monomial, log_plus, smallest, times_log


def prescribed_augmentation(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The augmentation that Theorem B.22 or, with Q, B.23 prescribes for FedAc-II.

    .. math:: \max\Bigl\{\frac{\sigma}{\sqrt{M K R} B},\ \frac{18 L}{K R^2} \log^2(e^2 + K R^2),\
        \frac{L^{1/2} \sigma^{1/2}}{K^{1/4} R B^{1/2}}\ \text{or}\
        \frac{L^{1/3} \sigma^{2/3}}{M^{1/3} K^{1/3} R B^{2/3}},
        \frac{Q^{1/3} \sigma^{2/3}}{K^{1/3} R^{4/3} B^{1/3}}\Bigr\}

    Needs L, sigma, B; with Q also sigma4.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=10, rounds=10, clients=4)
        >>> round(float(prescribed_augmentation(constants, **sizes)), 4)
        0.8607
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    Q, sigma = hessian_and_noise(constants)
    common = largest(sigma / (jnp.sqrt(M * K * R) * B), 18 * acceleration(L, K, R))
    if Q is None:
        return largest(common, jnp.sqrt(L * sigma / B) / (K**0.25 * R))
    return largest(
        common,
        (L * sigma**2 / (M * K * B**2)) ** (1 / 3) / R,
        (Q * sigma**2 / (K * R * B)) ** (1 / 3) / R,
    )


def prescribed_lr(
    constants: ProblemConstants,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    augmentation: Scalar | None = None,
) -> Array:
    r"""The rate that Lemma B.28 or, with Q, B.31 prescribes for FedAc-II.

    .. math:: \min\Bigl\{\frac{1}{L + \lambda},\ \frac{9}{\lambda K R^2} \log^2(e + r),\
        \frac{L^{1/3} B^{2/3}}{\lambda^{2/3} K^{2/3} R^{2/3} \sigma^{2/3}}\ \text{or}\
        \frac{L^{1/3} M^{1/3} B^{2/3}}{\lambda^{2/3} K^{2/3} R \sigma^{2/3}}\Bigr\}

    where r is the smallest of ``lambda L M K R B^2 / sigma^2`` and
    ``lambda^3 K R^4 B^2 / (L sigma^2)`` or, with Q, ``lambda^2 M K R^3 B^2 / sigma^2`` and
    ``lambda^5 L K^2 R^8 B^2 / (Q^2 sigma^4)``.

    Needs L, sigma, B; with Q also sigma4.

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
    Q, sigma = hessian_and_noise(constants)
    first = log_monomial((lam, 1), (L, 1), (M, 1), (K, 1), (R, 1), (B, 2), (sigma, -2))
    cube = (L * (B / (lam * K * sigma)) ** 2) ** (1 / 3)
    if Q is None:
        others = [log_monomial((lam, 3), (K, 1), (R, 4), (B, 2), (L, -1), (sigma, -2))]
        entry = cube / R ** (2 / 3)
    else:
        others = [
            log_monomial((lam, 2), (M, 1), (K, 1), (R, 3), (B, 2), (sigma, -2)),
            log_monomial((lam, 5), (L, 1), (K, 2), (R, 8), (B, 2), (Q, -2), (sigma, -4)),
        ]
        entry = cube * M ** (1 / 3) / R
    ratio = smallest(first, *others)
    return smallest(1 / (L + lam), 9 / (lam * K * R**2) * log_plus(1, ratio) ** 2, entry)


def bound(
    constants: ProblemConstants,
    *,
    lr: Scalar,
    augmentation: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""The error of FedAc-II for any rate and augmentation lambda.

    .. math:: \frac{\lambda}{2} B^2 + \frac{L}{2} B^2 e^{-\sqrt{\eta \lambda K} R / 3}
        + \frac{\eta^{1/2} \sigma^2}{\lambda^{1/2} M K^{1/2}} + \Bigl\{
        \frac{200 \eta^2 (L^2 + \lambda^2) K \sigma^2}{\lambda}\ \text{or}\
        \frac{2 \eta^{3/2} (L + \lambda) K^{1/2} \sigma^2}{\lambda^{1/2} M}
        + \frac{e^9 \eta^4 Q^2 K^2 \sigma^4}{\lambda}\Bigr\}

    Needs L, sigma, B; with Q also sigma4.  NaN with a warning where ``lr > 1 / (L +
    augmentation)``.  Source: thesis, Lemma B.27; with Q Lemma B.30.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=4, rounds=60, clients=4)
        >>> round(float(bound(constants, lr=0.25, augmentation=1.0, **sizes)), 3)
        0.5
    """
    L, B, lr, lam = positive(constants, "L", "B", lr=lr, augmentation=augmentation)
    K, R, M = positive(local_steps=local_steps, rounds=rounds, clients=clients)
    Q, sigma = hessian_and_noise(constants)
    noise = jnp.sqrt(lr / (lam * K)) / M
    if Q is None:  # Lemma B.27
        noise += 200 * lr**2 * (L**2 + lam**2) * K / lam
    else:  # Lemma B.30
        noise += 2 * lr**1.5 * (L + lam) * jnp.sqrt(K / lam) / M
        noise += math.exp(9) * lr**4 * Q**2 * K**2 * sigma**2 / lam
    value = initial_error(lr * lam * K * R**2 / 9, lam, L, B) + noise * sigma**2
    return where_valid(value, at_most(lr, 1 / (L + lam)), VALID_LR)


def tuned_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The error of FedAc-II at the prescribed rate and augmentation.

    .. math:: \frac{10 L B^2}{K R^2} \log^2(e^2 + K R^2)
        + \frac{5 \sigma B}{\sqrt{M K R}} \log\Bigl(e + \frac{L \sqrt{M K R} B}{\sigma}\Bigr)
        + \Bigl\{\frac{16411 L^{1/2} \sigma^{1/2} B^{3/2}}{K^{1/4} R} \log^4(e^4 + a)\ \text{or}\
        \frac{139 L^{1/3} \sigma^{2/3} B^{4/3}}{M^{1/3} K^{1/3} R} \log^3(e^3 + b)
        + \frac{e^{19} Q^{1/3} \sigma^{2/3} B^{5/3}}{K^{1/3} R^{4/3}} \log^8(e^8 + c)\Bigr\}

    with ``a = (L B / sigma)^(1/2) K^(1/4) R``, ``b = (L B / sigma)^(2/3) (M K)^(1/3) R`` and
    ``c = L K^(1/3) R^(4/3) B^(1/3) / (Q^(1/3) sigma^(2/3))``.

    Needs L, sigma, B; with Q also sigma4.  NaN with a warning where ``K R < 1000``.  Source:
    thesis, Theorem B.22; with Q Theorem B.23.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=10, rounds=100, clients=4)
        >>> round(float(tuned_bound(constants, **sizes)), 4)
        0.0133
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    Q, sigma = hessian_and_noise(constants)
    statistical = log_monomial((L, 1), (M, 0.5), (K, 0.5), (R, 0.5), (B, 1), (sigma, -1))
    value = 10 * B**2 * acceleration(L, K, R)
    value += times_log(5 * sigma * B / jnp.sqrt(M * K * R), log_plus(1, statistical), 1)
    if Q is None:  # Theorem B.22
        ratio = log_monomial((L, 0.5), (K, 0.25), (R, 1), (B, 0.5), (sigma, -0.5))
        overhead = jnp.sqrt(L * sigma * B**3) / (K**0.25 * R)
        value += times_log(16411 * overhead, log_plus(4, ratio), 4)
    else:  # Theorem B.23
        ratio = log_monomial(
            (L, 2 / 3), (M, 1 / 3), (K, 1 / 3), (R, 1), (B, 2 / 3), (sigma, -2 / 3)
        )
        overhead = (L * sigma**2 * B**4 / (M * K)) ** (1 / 3) / R
        value += times_log(139 * overhead, log_plus(3, ratio), 3)
        ratio = log_monomial(
            (L, 1), (K, 1 / 3), (R, 4 / 3), (B, 1 / 3), (Q, -1 / 3), (sigma, -2 / 3)
        )
        overhead = (Q * sigma**2 * B**5 / (K * R**4)) ** (1 / 3)
        value += times_log(math.exp(19) * overhead, log_plus(8, ratio), 8)
    return where_valid(value, K * R >= 1000, "K R >= 1000")
