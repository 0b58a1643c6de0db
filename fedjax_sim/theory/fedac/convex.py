r"""FedAc on merely convex objectives, run on ``F + augmentation / 2 ||x - x_0||^2``.

Source: thesis, Appendix B.3 (see :mod:`fedjax_sim.theory.fedac`): Theorem B.21 for FedAc-I, B.22
for FedAc-II and, where Q is known, B.23, with sigma of
:func:`~fedjax_sim.theory.conditions.both_moments`.  ``augmentation`` is lambda, and FedAc's mu.
Functions bound ``E F(xbar_ag) - F*`` of the original objective after R rounds.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, positive, where_valid
from fedjax_sim.theory.fedac.stability import Variant, check_variant
from fedjax_sim.theory.fedac.strongly_convex import (
    SLOWNESS,
    hessian_and_noise,
    largest_useful_lr,
    log_ratios,
    own_noise,
)
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import largest, log_monomial, log_plus, smallest, times_log

__all__ = ["bound", "prescribed_augmentation", "prescribed_lr", "tuned_bound"]


def prescribed_augmentation(
    constants: ProblemConstants,
    *,
    variant: Variant,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""The augmentation that Theorem B.21 (I), B.22 (II) or B.23 (II with Q) prescribes.

    .. math:: \max\Bigl\{\frac{\sigma}{\sqrt{M K R} B},\ \frac{l L}{K R^2} \log^2(e^2 + K R^2),\
        \text{others}\Bigr\}, \quad l = 2\ \text{(I)},\ 18\ \text{(II)}

    where the others are ``L^(1/3) sigma^(2/3) / (K^(1/3) R B^(2/3))`` for I,
    ``L^(1/2) sigma^(1/2) / (K^(1/4) R B^(1/2))`` for II, and for II with Q
    ``L^(1/3) sigma^(2/3) / (M^(1/3) K^(1/3) R B^(2/3))`` and
    ``Q^(1/3) sigma^(2/3) / (K^(1/3) R^(4/3) B^(1/3))``.

    Raises:
        ValueError: a missing or negative constant; an unknown variant.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=10, rounds=10, clients=4)
        >>> round(float(prescribed_augmentation(constants, variant="I", **sizes)), 4)
        0.0956
    """
    check_variant(variant)
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    Q, sigma = hessian_and_noise(constants, variant)
    accelerated = (2 if variant == "I" else 18) * _acceleration(L, K, R)
    common = largest(sigma / (jnp.sqrt(M * K * R) * B), accelerated)
    if variant == "I":
        return largest(common, (L * sigma**2 / (K * B**2)) ** (1 / 3) / R)
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
    variant: Variant,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    augmentation: Scalar | None = None,
) -> Array:
    r"""The rate that Lemma B.25 (I), B.28 (II) or B.31 (II with Q) prescribes at any augmentation.

    .. math:: \min\Bigl\{\frac{1}{L + \lambda},\ \frac{k^2}{\lambda K R^2} \log^2(e + r),\
        \text{others}\Bigr\}, \quad k = 1\ \text{(I)},\ 3\ \text{(II)}

    where r is the smallest of ``lambda L M K R B^2 / sigma^2`` and

    * I: ``lambda^2 K R^3 B^2 / sigma^2``; the others are
      ``L^(1/3) B^(2/3) / (lambda^(2/3) K^(2/3) R sigma^(2/3))`` and
      ``L^(1/4) B^(1/2) / (lambda^(3/4) K^(3/4) R sigma^(1/2))``;
    * II: ``lambda^3 K R^4 B^2 / (L sigma^2)``; the other is
      ``L^(1/3) B^(2/3) / (lambda^(2/3) K^(2/3) R^(2/3) sigma^(2/3))``;
    * II with Q: ``lambda^2 M K R^3 B^2 / sigma^2`` and
      ``lambda^5 L K^2 R^8 B^2 / (Q^2 sigma^4)``; the other is
      ``L^(1/3) M^(1/3) B^(2/3) / (lambda^(2/3) K^(2/3) R sigma^(2/3))``.

    Args:
        augmentation: None: :func:`prescribed_augmentation`.

    Raises:
        ValueError: a missing or negative constant; an unknown variant.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=10, rounds=10, clients=4)
        >>> float(prescribed_lr(constants, variant="I", augmentation=1.0, **sizes))
        0.5
    """
    check_variant(variant)
    sizes: dict[str, Scalar] = {"local_steps": local_steps, "rounds": rounds, "clients": clients}
    if augmentation is None:
        augmentation = prescribed_augmentation(constants, variant=variant, **sizes)
    L, B, lam = positive(constants, "L", "B", augmentation=augmentation)
    K, R, M = positive(**sizes)
    Q, sigma = hessian_and_noise(constants, variant)
    # The ratios of the strongly convex rate at mu = lambda and the potential L B^2.
    log_potential = log_monomial((L, 1), (B, 2))
    ratios = log_ratios(variant, log_potential, L, lam, sigma, M, K, R, Q)
    cube = (L * (B / (lam * K * sigma)) ** 2) ** (1 / 3)
    if variant == "I":  # Lemma B.25
        others = [cube / R, (L * B**2 / (lam * K) ** 3) ** (1 / 4) / (R * jnp.sqrt(sigma))]
    elif Q is None:  # Lemma B.28
        others = [cube / R ** (2 / 3)]
    else:  # Lemma B.31
        others = [cube * M ** (1 / 3) / R]
    return smallest(1 / (L + lam), largest_useful_lr(variant, ratios, lam, K, R), *others)


def bound(
    constants: ProblemConstants,
    *,
    variant: Variant,
    lr: Scalar,
    augmentation: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""The error for any rate and augmentation lambda.

    * I (Lemma B.24):

      .. math:: \frac{\lambda}{2} B^2 + \frac{L}{2} B^2 e^{-\sqrt{\eta \lambda K} R}
          + \frac{\eta^{1/2} \sigma^2}{2 \lambda^{1/2} M K^{1/2}} + \frac{\eta \sigma^2}{2 M}
          + (L + \lambda) \Bigl(\frac{390 \eta^{3/2} K^{1/2} \sigma^2}{\lambda^{1/2}}
          + 7 \eta^2 K \sigma^2\Bigr)

    * II (Lemma B.27 or, with Q, B.30):

      .. math:: \frac{\lambda}{2} B^2 + \frac{L}{2} B^2 e^{-\sqrt{\eta \lambda K} R / 3}
          + \frac{\eta^{1/2} \sigma^2}{\lambda^{1/2} M K^{1/2}} + \Bigl\{
          \frac{200 \eta^2 (L^2 + \lambda^2) K \sigma^2}{\lambda}\ \text{or}\
          \frac{2 \eta^{3/2} (L + \lambda) K^{1/2} \sigma^2}{\lambda^{1/2} M}
          + \frac{e^9 \eta^4 Q^2 K^2 \sigma^4}{\lambda}\Bigr\}

    NaN with a warning where ``lr > 1 / (L + augmentation)``.

    Raises:
        ValueError: a missing or negative constant; an unknown variant.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> run = dict(lr=0.25, augmentation=1.0, local_steps=4, rounds=20, clients=4)
        >>> round(float(bound(constants, variant="I", **run)), 3)
        0.5
    """
    check_variant(variant)
    L, B, lr, lam = positive(constants, "L", "B", lr=lr, augmentation=augmentation)
    K, R, M = positive(local_steps=local_steps, rounds=rounds, clients=clients)
    Q, sigma = hessian_and_noise(constants, variant)
    # The strongly convex noise of the augmented objective.  Lemma B.27 has 2 (L^2 + lambda^2) for
    # (L + lambda)^2.
    smooth = jnp.sqrt(2 * (L**2 + lam**2)) if variant == "II" and Q is None else L + lam
    noise = own_noise(variant, lr, smooth, lam, sigma, M, K, Q) * sigma**2
    left = jnp.exp(-jnp.sqrt(lr * lam * K) * R / SLOWNESS[variant])
    value = (lam + L * left) * B**2 / 2 + noise
    return where_valid(value, at_most(lr, 1 / (L + lam)), "lr <= 1 / (L + augmentation)")


def tuned_bound(
    constants: ProblemConstants,
    *,
    variant: Variant,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""The error at the prescribed rate and augmentation.

    * I (Theorem B.21):

      .. math:: \frac{2 L B^2}{K R^2} \log^2(e^2 + K R^2)
          + \frac{2 \sigma B}{\sqrt{M K R}} \log^2\Bigl(e^2 + \frac{L \sqrt{M K R} B}{\sigma}\Bigr)
          + \frac{1005 L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R}
          \log^4\Bigl(e^4 + \frac{L^{2/3} K^{1/3} R B^{2/3}}{\sigma^{2/3}}\Bigr)

    * II (Theorem B.22 or, with Q, B.23):

      .. math:: \frac{10 L B^2}{K R^2} \log^2(e^2 + K R^2)
          + \frac{5 \sigma B}{\sqrt{M K R}} \log\Bigl(e + \frac{L \sqrt{M K R} B}{\sigma}\Bigr)
          + \Bigl\{\frac{16411 L^{1/2} \sigma^{1/2} B^{3/2}}{K^{1/4} R} \log^4(e^4 + a)\ \text{or}\
          \frac{139 L^{1/3} \sigma^{2/3} B^{4/3}}{M^{1/3} K^{1/3} R} \log^3(e^3 + b)
          + \frac{e^{19} Q^{1/3} \sigma^{2/3} B^{5/3}}{K^{1/3} R^{4/3}} \log^8(e^8 + c)\Bigr\}

      with ``a = (L B / sigma)^(1/2) K^(1/4) R``, ``b = (L B / sigma)^(2/3) (M K)^(1/3) R`` and
      ``c = L K^(1/3) R^(4/3) B^(1/3) / (Q^(1/3) sigma^(2/3))``.

    NaN with a warning where ``K R < 24`` (I) or ``K R < 1000`` (II).

    Raises:
        ValueError: a missing or negative constant; an unknown variant.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=10, rounds=10, clients=4)
        >>> round(float(tuned_bound(constants, variant="I", **sizes)), 4)
        0.0956
    """
    check_variant(variant)
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    Q, sigma = hessian_and_noise(constants, variant)
    accelerated = B**2 * _acceleration(L, K, R)
    statistical = sigma * B / jnp.sqrt(M * K * R)
    log_statistical = log_monomial((L, 1), (M, 0.5), (K, 0.5), (R, 0.5), (B, 1), (sigma, -1))
    if variant == "I":  # Theorem B.21
        ratio = log_monomial((L, 2 / 3), (K, 1 / 3), (R, 1), (B, 2 / 3), (sigma, -2 / 3))
        overhead = (L * sigma**2 * B**4 / K) ** (1 / 3) / R
        value = 2 * accelerated
        value += times_log(2 * statistical, log_plus(2, log_statistical), 2)
        value += times_log(1005 * overhead, log_plus(4, ratio), 4)
        return where_valid(value, K * R >= 24, "K R >= 24")
    value = 10 * accelerated + times_log(5 * statistical, log_plus(1, log_statistical), 1)
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


def _acceleration(L: Array, K: Array, R: Array) -> Array:
    return L / (K * R**2) * jnp.log(math.exp(2) + K * R**2) ** 2
