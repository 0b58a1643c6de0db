r"""FedAc-I on strongly convex objectives: bounds of ``E Psi`` (:mod:`fedjax_sim.theory.fedac`).

Source: thesis, Section 3.4.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
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
    r"""``E Psi`` after R rounds of FedAc-I, for any rate.

    With gamma, which shows acceleration against stability (Lemmas 3.7 and 3.10):

    .. math:: e^{-\gamma \mu K R} \Psi_0 + \frac{\eta^2 L \sigma^2}{2 \gamma \mu}
        + \frac{\gamma \sigma^2}{2 M} + 7 \eta \gamma L K \sigma^2 g^{2 K}

    with g of :func:`~fedjax_sim.theory.fedac.stability.difference_growth`; without, for
    ``gamma = max(sqrt(eta / (mu K)), eta)`` (Lemma 3.11):

    .. math:: e^{-\max\{\eta \mu, \sqrt{\eta \mu / K}\} K R} \Psi_0
        + \frac{\eta^{1/2} \sigma^2}{2 \mu^{1/2} M K^{1/2}} + \frac{\eta \sigma^2}{2 M}
        + \frac{390 \eta^{3/2} L K^{1/2} \sigma^2}{\mu^{1/2}} + 7 \eta^2 L K \sigma^2

    Needs L, mu, sigma; Delta and B for the default potential.  NaN with a warning where ``lr > 1 /
    L``, ``mu > L`` or gamma is outside ``lr <= gamma <= sqrt(lr / mu)``.

    Args:
        potential: ``Psi_0``.
        gamma: None: FedAc-I's own.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, sigma=0.0)
        >>> sizes = dict(local_steps=2, rounds=10, clients=4)
        >>> round(float(bound(constants, potential=1.0, lr=0.25, **sizes)), 5)  # exp(-5)
        0.00674
    """
    potential = initial_potential(constants, potential)
    L, mu, lr, K = positive(constants, "L", "mu", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, potential = non_negative(constants, "sigma", potential=potential)
    valid = at_most(lr, 1 / L) & at_most(mu, L)
    if gamma is not None:
        (gamma,) = positive(gamma=gamma)
        noise = lr**2 * L / (2 * gamma * mu) + gamma / (2 * M)  # Lemma 3.7
        # One exponential: growth that overflows must not meet a sigma of 0.
        drift = log_monomial((lr, 1), (gamma, 1), (L, 1), (K, 1), (sigma, 2))
        drift = 7 * jnp.exp(drift + 2 * K * log_growth(2, lr, gamma, mu))  # Lemma 3.10
        value = jnp.exp(-gamma * mu * K * R) * potential + noise * sigma**2 + drift
        valid &= gamma_condition(gamma, lr, mu)
        return where_valid(value, valid, f"{VALID_LR} and {VALID_GAMMA}")
    noise = (  # Lemma 3.11
        jnp.sqrt(lr / (mu * K)) / (2 * M)
        + lr / (2 * M)
        + 390 * lr**1.5 * L * jnp.sqrt(K / mu)
        + 7 * lr**2 * L * K
    )
    value = jnp.exp(-speed(lr, mu, K) * K * R) * potential + noise * sigma**2
    return where_valid(value, valid, VALID_LR)


def prescribed_lr(
    constants: ProblemConstants,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
) -> Array:
    r"""The rate that Theorem 3.5 prescribes for FedAc-I.

    .. math:: \min\Bigl\{\frac1L,\ \frac{1}{\mu K R^2} \log^2\Bigl(e + \min\Bigl\{
        \frac{\mu M K R \Psi_0}{\sigma^2}, \frac{\mu^2 K R^3 \Psi_0}{L \sigma^2}\Bigr\}\Bigr)\Bigr\}

    Needs L, mu, sigma; Delta and B for the default potential.

    Args:
        potential: ``Psi_0``, positive.

    Example:
        >>> constants = ProblemConstants(L=2.0, mu=0.5, sigma=0.0)
        >>> float(prescribed_lr(constants, potential=1.0, local_steps=2, rounds=10, clients=4))
        0.5
    """
    potential = initial_potential(constants, potential)
    L, mu, K, R = positive(constants, "L", "mu", local_steps=local_steps, rounds=rounds)
    M, potential = positive(clients=clients, potential=potential)
    (sigma,) = non_negative(constants, "sigma")
    ratio = smallest(*_log_ratios(potential, L, mu, sigma, M, K, R))
    return smallest(1 / L, log_plus(1, ratio) ** 2 / (mu * K * R**2))


def tuned_bound(
    constants: ProblemConstants,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
) -> Array:
    r"""An upper bound of ``E Psi`` after R rounds of FedAc-I at the rate :func:`prescribed_lr`.

    .. math:: \min\{e^{-\mu K R / L}, e^{-\sqrt{\mu K / L} R}\} \Psi_0
        + \frac{2 \sigma^2}{\mu M K R} \log^2(e + a)
        + \frac{400 L \sigma^2}{\mu^2 K R^3} \log^4(e + b)

    with a and b the two ratios in the rate's minimum.

    Needs L, mu, sigma; Delta and B for the default potential.  NaN with a warning where ``mu > L``.
    Source: thesis, Theorem 3.5, the complete version of Theorem 3.1(a).

    Args:
        potential: ``Psi_0``, positive.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, sigma=0.0)
        >>> sizes = dict(local_steps=2, rounds=10, clients=4)
        >>> f"{tuned_bound(constants, potential=1.0, **sizes):.2e}"  # exp(-10)
        '4.54e-05'
    """
    potential = initial_potential(constants, potential)
    L, mu, K, R = positive(constants, "L", "mu", local_steps=local_steps, rounds=rounds)
    M, potential = positive(clients=clients, potential=potential)
    (sigma,) = non_negative(constants, "sigma")
    a, b = _log_ratios(potential, L, mu, sigma, M, K, R)
    overhead = jnp.exp(log_monomial((L, 1), (sigma, 2), (mu, -2), (K, -1), (R, -3)))
    value = (  # Theorem 3.5
        jnp.exp(-speed(1 / L, mu, K) * K * R) * potential
        + times_log(2 * sigma**2 / (mu * M * K * R), log_plus(1, a), 2)
        + times_log(400 * overhead, log_plus(1, b), 4)
    )
    return where_valid(value, at_most(mu, L), "mu <= L")


def _log_ratios(
    potential: Array, L: Array, mu: Array, sigma: Array, M: Array, K: Array, R: Array
) -> tuple[Array, Array]:
    a = log_monomial((mu, 1), (M, 1), (K, 1), (R, 1), (potential, 1), (sigma, -2))
    b = log_monomial((mu, 2), (K, 1), (R, 3), (potential, 1), (L, -1), (sigma, -2))
    return a, b
