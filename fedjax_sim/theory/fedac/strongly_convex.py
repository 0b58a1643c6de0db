r"""FedAc on strongly convex objectives: bounds of its potential (:mod:`fedjax_sim.theory.fedac`).

Source: thesis, Sections 3.4 (FedAc-I) and 3.5 and Appendix B.1 (FedAc-II).  Where Q is known,
functions of FedAc-II use the bounds for Q-Lipschitz Hessians, with sigma of
:func:`~fedjax_sim.theory.conditions.both_moments`; FedAc-I has none.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import (
    at_most,
    both_moments,
    non_negative,
    optional,
    positive,
    where_valid,
)
from fedjax_sim.theory.fedac.stability import (
    VALID_GAMMA,
    VALID_LR,
    Variant,
    check_variant,
    gamma_condition,
    initial_potential,
    log_growth,
    speed,
)
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import log_monomial, log_plus, smallest, times_log

__all__ = ["bound", "prescribed_lr", "tuned_bound"]

SLOWNESS = {"I": 1, "II": 3}  # the potential falls by exp(-gamma mu / slowness) per step


def bound(
    constants: ProblemConstants,
    *,
    variant: Variant,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
    gamma: Scalar | None = None,
) -> Array:
    r"""``E Psi`` or ``E Phi`` after R rounds, for any rate.

    With gamma, which shows acceleration against stability, and g of
    :func:`~fedjax_sim.theory.fedac.stability.difference_growth`:

    * I (Lemmas 3.7 and 3.10):

      .. math:: e^{-\gamma \mu K R} \Psi_0 + \frac{\eta^2 L \sigma^2}{2 \gamma \mu}
          + \frac{\gamma \sigma^2}{2 M} + 7 \eta \gamma L K \sigma^2 g^{2 K}

    * II (Lemma 3.23 with Lemma B.14 or, with Q, Lemma 3.24):

      .. math:: e^{-\gamma \mu K R / 3} \Phi_0 + \frac{3 \eta^2 L \sigma^2}{2 \gamma \mu M}
          + \frac{\gamma \sigma^2}{2 M} + \frac{3}{\mu} \{4 \eta^2 L^2 K \sigma^2 g^{2 K}
          \ \text{or}\ 44 \eta^4 Q^2 K^2 \sigma^4 g^{4 K}\}

    Without, for ``gamma = max(sqrt(eta / (mu K)), eta)``:

    * I (Lemma 3.11):

      .. math:: e^{-\max\{\eta \mu, \sqrt{\eta \mu / K}\} K R} \Psi_0
          + \frac{\eta^{1/2} \sigma^2}{2 \mu^{1/2} M K^{1/2}} + \frac{\eta \sigma^2}{2 M}
          + \frac{390 \eta^{3/2} L K^{1/2} \sigma^2}{\mu^{1/2}} + 7 \eta^2 L K \sigma^2

    * II (Lemma B.15 or, with Q, Lemma B.3):

      .. math:: e^{-\max\{\eta \mu, \sqrt{\eta \mu / K}\} K R / 3} \Phi_0
          + \frac{\eta^{1/2} \sigma^2}{\mu^{1/2} M K^{1/2}}
          + \Bigl\{\frac{100 \eta^2 L^2 K \sigma^2}{\mu}\ \text{or}\
          \frac{2 \eta^{3/2} L K^{1/2} \sigma^2}{\mu^{1/2} M}
          + \frac{e^9 \eta^4 Q^2 K^2 \sigma^4}{\mu}\Bigr\}

    NaN with a warning where ``lr > 1 / L``, ``mu > L`` or gamma is outside
    ``lr <= gamma <= sqrt(lr / mu)``.

    Raises:
        ValueError: a missing or negative constant; an unknown variant.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, sigma=0.0)
        >>> run = dict(potential=1.0, lr=0.25, local_steps=2, rounds=10, clients=4)
        >>> round(float(bound(constants, variant="I", **run)), 5)  # exp(-5)
        0.00674
    """
    check_variant(variant)
    potential = initial_potential(constants, potential)
    L, mu, lr, K = positive(constants, "L", "mu", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (potential,) = non_negative(potential=potential)
    Q, sigma = hessian_and_noise(constants, variant)
    valid, text = at_most(lr, 1 / L) & at_most(mu, L), VALID_LR
    if gamma is None:
        pace = speed(lr, mu, K)
        noise = own_noise(variant, lr, L, mu, sigma, M, K, Q) * sigma**2
    else:
        (gamma,) = positive(gamma=gamma)
        pace = gamma * mu
        noise = _noise(variant, gamma, lr, L, mu, sigma, M, K, Q)
        valid, text = valid & gamma_condition(gamma, lr, mu), f"{VALID_LR} and {VALID_GAMMA}"
    value = jnp.exp(-pace * K * R / SLOWNESS[variant]) * potential + noise
    return where_valid(value, valid, text)


def prescribed_lr(
    constants: ProblemConstants,
    *,
    variant: Variant,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
) -> Array:
    r"""The rate that Theorem 3.5 (I), B.12 (II) or B.1 (II with Q) prescribes.

    .. math:: \text{I:}\quad  &\min\Bigl\{\frac1L,\ \frac{1}{\mu K R^2}
        \log^2(e + \min\{a, b\})\Bigr\} \\
        \text{II:}\quad &\min\Bigl\{\frac1L,\ \frac{9}{\mu K R^2} \log^2(e + \min\{a, b'\}
        \ \text{or}\ \min\{a, c, d\})\Bigr\}

    with ``a = mu M K R P / sigma^2``, ``b = mu^2 K R^3 P / (L sigma^2)``,
    ``b' = mu^3 K R^4 P / (L^2 sigma^2)``, ``c = mu^2 M K R^3 P / (L sigma^2)``,
    ``d = mu^5 K^2 R^8 P / (Q^2 sigma^4)`` and P the potential.

    Source: thesis, Theorems B.1 and B.12 with a minimum of separate arguments (see the errata).

    Raises:
        ValueError: a missing or negative constant; an unknown variant.

    Example:
        >>> constants = ProblemConstants(L=2.0, mu=0.5, sigma=0.0)
        >>> sizes = dict(local_steps=2, rounds=10, clients=4)
        >>> float(prescribed_lr(constants, variant="II", potential=1.0, **sizes))
        0.5
    """
    check_variant(variant)
    potential = initial_potential(constants, potential)
    L, mu, K, R = positive(constants, "L", "mu", local_steps=local_steps, rounds=rounds)
    M, potential = positive(clients=clients, potential=potential)
    Q, sigma = hessian_and_noise(constants, variant)
    ratios = log_ratios(variant, jnp.log(potential), L, mu, sigma, M, K, R, Q)
    return smallest(1 / L, largest_useful_lr(variant, ratios, mu, K, R))


def tuned_bound(
    constants: ProblemConstants,
    *,
    variant: Variant,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
) -> Array:
    r"""An upper bound of ``E Psi`` or ``E Phi`` after R rounds at the rate :func:`prescribed_lr`.

    .. math:: \text{I:}\quad &E \Psi_0 + \frac{2 \sigma^2}{\mu M K R} \log^2(e + a)
        + \frac{400 L \sigma^2}{\mu^2 K R^3} \log^4(e + b) \\
        \text{II:}\quad &E \Phi_0 + \frac{4 \sigma^2}{\mu M K R} \log(e + a) + \Bigl\{
        \frac{8101 L^2 \sigma^2}{\mu^3 K R^4} \log^4(e + b')\ \text{or}\
        \frac{55 L \sigma^2}{\mu^2 M K R^3} \log^3(e + c)
        + \frac{e^{18} Q^2 \sigma^4}{\mu^5 K^2 R^8} \log^8(e + d)\Bigr\}

    with a .. d of the rate and ``E = min(exp(-mu K R / (k L)), exp(-sqrt(mu K / L) R / k))``,
    k = 1 for I and 3 for II.

    NaN with a warning where ``mu > L``.  Source: thesis, Theorem 3.5, the complete version of
    3.1(a); Theorem B.12 (3.1(b)); with Q Theorem B.1 (3.3).

    Raises:
        ValueError: a missing or negative constant; an unknown variant.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, sigma=0.0)
        >>> sizes = dict(potential=1.0, local_steps=2, rounds=10, clients=4)
        >>> round(float(tuned_bound(constants, variant="II", **sizes)), 4)  # exp(-10 / 3)
        0.0357
    """
    check_variant(variant)
    potential = initial_potential(constants, potential)
    L, mu, K, R = positive(constants, "L", "mu", local_steps=local_steps, rounds=rounds)
    M, potential = positive(clients=clients, potential=potential)
    Q, sigma = hessian_and_noise(constants, variant)
    a, second, *third = log_ratios(variant, jnp.log(potential), L, mu, sigma, M, K, R, Q)
    value = jnp.exp(-speed(1 / L, mu, K) * K * R / SLOWNESS[variant]) * potential
    statistical = sigma**2 / (mu * M * K * R)
    if variant == "I":  # Theorem 3.5
        value += times_log(2 * statistical, log_plus(1, a), 2)
        overhead = jnp.exp(log_monomial((L, 1), (sigma, 2), (mu, -2), (K, -1), (R, -3)))
        value += times_log(400 * overhead, log_plus(1, second), 4)
        return where_valid(value, at_most(mu, L), "mu <= L")
    value += times_log(4 * statistical, log_plus(1, a), 1)
    if Q is None:  # Theorem B.12
        overhead = jnp.exp(log_monomial((L, 2), (sigma, 2), (mu, -3), (K, -1), (R, -4)))
        value += times_log(8101 * overhead, log_plus(1, second), 4)
    else:  # Theorem B.1
        overhead = jnp.exp(log_monomial((L, 1), (sigma, 2), (mu, -2), (M, -1), (K, -1), (R, -3)))
        value += times_log(55 * overhead, log_plus(1, second), 3)
        overhead = log_monomial((Q, 2), (sigma, 4), (mu, -5), (K, -2), (R, -8))
        value += times_log(jnp.exp(18 + overhead), log_plus(1, third[0]), 8)
    return where_valid(value, at_most(mu, L), "mu <= L")


def hessian_and_noise(constants: ProblemConstants, variant: Variant) -> tuple[Array | None, Array]:
    """Q, or None, and the sigma that the theorems ask for: with Q it bounds both moments."""
    Q = optional(constants, "Q") if variant == "II" else None
    return Q, non_negative(constants, "sigma")[0] if Q is None else both_moments(constants)


def own_noise(
    variant: Variant,
    lr: Array,
    L: Array,
    mu: Array,
    sigma: Array,
    M: Array,
    K: Array,
    Q: Array | None,
) -> Array:
    """The bound's terms beside the potential at the variant's own gamma, over sigma^2."""
    statistical = jnp.sqrt(lr / (mu * K)) / M
    if variant == "I":  # Lemma 3.11
        drift = 390 * lr**1.5 * L * jnp.sqrt(K / mu) + 7 * lr**2 * L * K
        return statistical / 2 + lr / (2 * M) + drift
    if Q is None:  # Lemma B.15
        return statistical + 100 * lr**2 * L**2 * K / mu
    drift = 2 * lr**1.5 * L * jnp.sqrt(K / mu) / M  # Lemma B.3
    return statistical + drift + math.exp(9) * lr**4 * Q**2 * K**2 * sigma**2 / mu


def _noise(
    variant: Variant,
    gamma: Array,
    lr: Array,
    L: Array,
    mu: Array,
    sigma: Array,
    M: Array,
    K: Array,
    Q: Array | None,
) -> Array:
    """The bound's terms beside the potential at any gamma."""
    growth = 2 * K * log_growth(variant, lr, gamma, mu)
    # One exponential: growth that overflows must not meet a sigma or Q of 0.
    if variant == "I":
        own = lr**2 * L / (2 * gamma * mu) + gamma / (2 * M)  # Lemma 3.7
        drift = log_monomial((lr, 1), (gamma, 1), (L, 1), (K, 1), (sigma, 2))
        return own * sigma**2 + 7 * jnp.exp(drift + growth)  # Lemma 3.10
    own = 3 * lr**2 * L / (2 * gamma * mu * M) + gamma / (2 * M)  # Lemma 3.23
    if Q is None:  # Lemma B.14
        drift = log_monomial((lr, 2), (L, 2), (K, 1), (sigma, 2), (mu, -1))
        return own * sigma**2 + 12 * jnp.exp(drift + growth)
    drift = log_monomial((lr, 4), (Q, 2), (K, 2), (sigma, 4), (mu, -1))  # Lemma 3.24
    return own * sigma**2 + 132 * jnp.exp(drift + 2 * growth)


def log_ratios(
    variant: Variant,
    log_potential: Array,
    L: Array,
    mu: Array,
    sigma: Array,
    M: Array,
    K: Array,
    R: Array,
    Q: Array | None,
) -> list[Array]:
    """The logarithms of a and b (I), a and b' (II), or a, c and d (II with Q)."""
    ratios = [log_monomial((mu, 1), (M, 1), (K, 1), (R, 1), (sigma, -2))]
    if variant == "I":
        ratios += [log_monomial((mu, 2), (K, 1), (R, 3), (L, -1), (sigma, -2))]
    elif Q is None:
        ratios += [log_monomial((mu, 3), (K, 1), (R, 4), (L, -2), (sigma, -2))]
    else:
        ratios += [
            log_monomial((mu, 2), (M, 1), (K, 1), (R, 3), (L, -1), (sigma, -2)),
            log_monomial((mu, 5), (K, 2), (R, 8), (Q, -2), (sigma, -4)),
        ]
    return [log_potential + ratio for ratio in ratios]


def largest_useful_lr(
    variant: Variant, ratios: list[Array], mu: Array, K: Array, R: Array
) -> Array:
    """``k^2 / (mu K R^2) log^2(e + ratio)`` at the smallest ratio, k = 1 for I and 3 for II."""
    front = SLOWNESS[variant] ** 2 / (mu * K * R**2)
    return front * log_plus(1, smallest(*ratios)) ** 2
