r"""FedAc-II on strongly convex objectives: bounds of ``E Phi`` (:mod:`fedjax_sim.theory.fedac`).

Source: thesis, Section 3.5 and Appendix B.1.  Where Q is known, functions use the bounds for
Q-Lipschitz Hessians, with sigma of :func:`~fedjax_sim.theory.conditions.both_moments`.
"""

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
    gamma_condition,
    initial_potential,
    log_growth,
    speed,
)
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import log_monomial, log_plus, smallest, times_log


def bound(
    constants: ProblemConstants,
    *,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
    gamma: Scalar | None = None,
) -> Array:
    r"""``E Phi`` after R rounds of FedAc-II, for any rate.

    With gamma (Lemma 3.23 with Lemma B.14 or, with Q, Lemma 3.24), g of
    :func:`~fedjax_sim.theory.fedac.stability.difference_growth`:

    .. math:: e^{-\gamma \mu K R / 3} \Phi_0 + \frac{3 \eta^2 L \sigma^2}{2 \gamma \mu M}
        + \frac{\gamma \sigma^2}{2 M} + \frac{3}{\mu} \{4 \eta^2 L^2 K \sigma^2 g^{2 K}
        \ \text{or}\ 44 \eta^4 Q^2 K^2 \sigma^4 g^{4 K}\}

    Without, for ``gamma = max(sqrt(eta / (mu K)), eta)`` (Lemma B.15 or, with Q, Lemma B.3):

    .. math:: e^{-\max\{\eta \mu, \sqrt{\eta \mu / K}\} K R / 3} \Phi_0
        + \frac{\eta^{1/2} \sigma^2}{\mu^{1/2} M K^{1/2}}
        + \Bigl\{\frac{100 \eta^2 L^2 K \sigma^2}{\mu}\ \text{or}\
        \frac{2 \eta^{3/2} L K^{1/2} \sigma^2}{\mu^{1/2} M}
        + \frac{e^9 \eta^4 Q^2 K^2 \sigma^4}{\mu}\Bigr\}

    Needs L, mu, sigma; with Q also sigma4; Delta and B for the default potential.  NaN with a
    warning where ``lr > 1 / L``, ``mu > L`` or gamma is outside ``lr <= gamma <= sqrt(lr / mu)``.

    Args:
        potential: ``Phi_0``.
        gamma: None: FedAc-II's own.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, sigma=0.0)
        >>> sizes = dict(local_steps=2, rounds=10, clients=4)
        >>> round(float(bound(constants, potential=1.0, lr=0.25, **sizes)), 4)  # exp(-5 / 3)
        0.1889
    """
    potential = initial_potential(constants, potential)
    L, mu, lr, K = positive(constants, "L", "mu", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (potential,) = non_negative(potential=potential)
    Q, sigma = hessian_and_noise(constants)
    valid = at_most(lr, 1 / L) & at_most(mu, L)
    if gamma is not None:
        (gamma,) = positive(gamma=gamma)
        growth = 2 * K * log_growth(1, lr, gamma, mu)
        noise = 3 * lr**2 * L / (2 * gamma * mu * M) + gamma / (2 * M)  # Lemma 3.23
        # One exponential: growth that overflows must not meet a sigma or Q of 0.
        if Q is None:  # Lemma B.14
            drift = log_monomial((lr, 2), (L, 2), (K, 1), (sigma, 2), (mu, -1))
            drift = 12 * jnp.exp(drift + growth)
        else:  # Lemma 3.24
            drift = log_monomial((lr, 4), (Q, 2), (K, 2), (sigma, 4), (mu, -1))
            drift = 132 * jnp.exp(drift + 2 * growth)
        value = jnp.exp(-gamma * mu * K * R / 3) * potential + noise * sigma**2 + drift
        valid &= gamma_condition(gamma, lr, mu)
        return where_valid(value, valid, f"{VALID_LR} and {VALID_GAMMA}")
    noise = jnp.sqrt(lr / (mu * K)) / M
    if Q is None:
        noise += 100 * lr**2 * L**2 * K / mu  # Lemma B.15
    else:
        noise += 2 * lr**1.5 * L * jnp.sqrt(K / mu) / M  # Lemma B.3
        noise += math.exp(9) * lr**4 * Q**2 * K**2 * sigma**2 / mu
    value = jnp.exp(-speed(lr, mu, K) * K * R / 3) * potential + noise * sigma**2
    return where_valid(value, valid, VALID_LR)


def prescribed_lr(
    constants: ProblemConstants,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
) -> Array:
    r"""The rate that Theorem B.12 or, with Q, Theorem B.1 prescribes for FedAc-II.

    .. math:: \min\Bigl\{\frac1L,\ \frac{9}{\mu K R^2} \log^2(e + \min\{a, b\}
        \ \text{or}\ \min\{a, c, d\})\Bigr\}

    with ``a = mu M K R Phi_0 / sigma^2``, ``b = mu^3 K R^4 Phi_0 / (L^2 sigma^2)``,
    ``c = mu^2 M K R^3 Phi_0 / (L sigma^2)``, ``d = mu^5 K^2 R^8 Phi_0 / (Q^2 sigma^4)``.

    Needs L, mu, sigma; with Q also sigma4; Delta and B for the default potential.  Source: thesis,
    Theorems B.1 and B.12, with a minimum of separate arguments (see the errata).

    Args:
        potential: ``Phi_0``, positive.

    Example:
        >>> constants = ProblemConstants(L=2.0, mu=0.5, sigma=0.0)
        >>> float(prescribed_lr(constants, potential=1.0, local_steps=2, rounds=10, clients=4))
        0.5
    """
    potential = initial_potential(constants, potential)
    L, mu, K, R = positive(constants, "L", "mu", local_steps=local_steps, rounds=rounds)
    M, potential = positive(clients=clients, potential=potential)
    Q, sigma = hessian_and_noise(constants)
    ratio = smallest(*_log_ratios(potential, L, mu, sigma, M, K, R, Q))
    return smallest(1 / L, 9 / (mu * K * R**2) * log_plus(1, ratio) ** 2)


def tuned_bound(
    constants: ProblemConstants,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
) -> Array:
    r"""An upper bound of ``E Phi`` after R rounds of FedAc-II at the rate :func:`prescribed_lr`.

    .. math:: E \Phi_0 + \frac{4 \sigma^2}{\mu M K R} \log(e + a) + \Bigl\{
        \frac{8101 L^2 \sigma^2}{\mu^3 K R^4} \log^4(e + b)\ \text{or}\
        \frac{55 L \sigma^2}{\mu^2 M K R^3} \log^3(e + c)
        + \frac{e^{18} Q^2 \sigma^4}{\mu^5 K^2 R^8} \log^8(e + d)\Bigr\}

    with a .. d of the rate and ``E = min(exp(-mu K R / (3 L)), exp(-sqrt(mu K / L) R / 3))``.

    Needs L, mu, sigma; with Q also sigma4; Delta and B for the default potential.  NaN with a
    warning where ``mu > L``.  Source: thesis, Theorem B.12 (3.1(b)); with Q Theorem B.1 (3.3).

    Args:
        potential: ``Phi_0``, positive.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, sigma=0.0)
        >>> sizes = dict(local_steps=2, rounds=10, clients=4)
        >>> round(float(tuned_bound(constants, potential=1.0, **sizes)), 4)  # exp(-10 / 3)
        0.0357
    """
    potential = initial_potential(constants, potential)
    L, mu, K, R = positive(constants, "L", "mu", local_steps=local_steps, rounds=rounds)
    M, potential = positive(clients=clients, potential=potential)
    Q, sigma = hessian_and_noise(constants)
    a, second, *rest = _log_ratios(potential, L, mu, sigma, M, K, R, Q)
    value = jnp.exp(-speed(1 / L, mu, K) * K * R / 3) * potential
    value += times_log(4 * sigma**2 / (mu * M * K * R), log_plus(1, a), 1)
    if Q is None:  # Theorem B.12
        overhead = jnp.exp(log_monomial((L, 2), (sigma, 2), (mu, -3), (K, -1), (R, -4)))
        value += times_log(8101 * overhead, log_plus(1, second), 4)
    else:  # Theorem B.1
        overhead = jnp.exp(log_monomial((L, 1), (sigma, 2), (mu, -2), (M, -1), (K, -1), (R, -3)))
        value += times_log(55 * overhead, log_plus(1, second), 3)
        overhead = log_monomial((Q, 2), (sigma, 4), (mu, -5), (K, -2), (R, -8))
        value += times_log(jnp.exp(18 + overhead), log_plus(1, rest[0]), 8)
    return where_valid(value, at_most(mu, L), "mu <= L")


def hessian_and_noise(constants: ProblemConstants) -> tuple[Array | None, Array]:
    """Q, or None, and the sigma that the theorems ask for: with Q it bounds both moments.

    Example:
        >>> float(hessian_and_noise(ProblemConstants(sigma=1.0, sigma4=2.0, Q=0.5))[1])
        2.0
    """
    Q = optional(constants, "Q")
    return Q, non_negative(constants, "sigma")[0] if Q is None else both_moments(constants)


def _log_ratios(
    potential: Array,
    L: Array,
    mu: Array,
    sigma: Array,
    M: Array,
    K: Array,
    R: Array,
    Q: Array | None,
) -> tuple[Array, ...]:
    """The logarithms of a and b, or of a, c and d."""
    a = log_monomial((mu, 1), (M, 1), (K, 1), (R, 1), (potential, 1), (sigma, -2))
    if Q is None:
        return a, log_monomial((mu, 3), (K, 1), (R, 4), (potential, 1), (L, -2), (sigma, -2))
    c = log_monomial((mu, 2), (M, 1), (K, 1), (R, 3), (potential, 1), (L, -1), (sigma, -2))
    d = log_monomial((mu, 5), (K, 2), (R, 8), (potential, 1), (Q, -2), (sigma, -4))
    return a, c, d
