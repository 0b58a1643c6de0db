r"""Convergence of FedAc on strongly convex objectives, as functions of the constants.

From Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Sections 3.4, 3.5 and Appendix B.1; also Yuan and Ma (2020), "Federated Accelerated Stochastic
Gradient Descent".  All clients have one objective, which is ``mu``-strongly convex and
``L``-smooth; other constants are those of :mod:`~fedjax_sim.theory.fedavg` and, with ``Q``,
:mod:`~fedjax_sim.theory.fedavg_third_order`.  The bounds are of

* FedAc-I: ``Psi = mean_m F(x_ag,m) - F* + mu / 2 ||xbar - x*||^2``,
* FedAc-II: ``Phi = F(xbar_ag) - F* + mu / 6 ||xbar - x*||^2``

after R rounds; ``potential`` is the value at the start, at most ``L B^2``.  Both are at least the
error of the model.  ``gamma``, alpha, beta: :func:`fedjax_sim.algorithms.fedac.coupling`.

The constants, up to e^18, are those of the proofs and make the bounds far larger than errors that
are measured; :func:`~fedjax_sim.theory.orders.table_rate` has the rates with constants 1.

FedAc-I is here, FedAc-II in :mod:`~fedjax_sim.theory.fedac_ii`, merely convex objectives in
:mod:`~fedjax_sim.theory.fedac_convex`.
"""

from typing import Literal

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import at_most, check_choice, non_negative, positive, where_valid
from fedjax_sim.theory.step_sizes import largest, log_monomial, log_plus, smallest, times_log
from fedjax_sim.types import Scalar

RATE = "lr <= 1 / L and mu <= L"
RATES = RATE + " and lr <= gamma <= sqrt(lr / mu)"


def difference_growth(
    variant: Literal["I", "II"], *, lr: Scalar, gamma: Scalar, mu: Scalar
) -> Array:
    r"""By how much a local step may enlarge the difference of two clients.

    .. math:: 1 + c \frac{\gamma^2 \mu}{\eta} \ \text{if}\ \gamma > \eta, \qquad 1 \ \text{if}\
        \gamma = \eta

    with c = 2 for FedAc-I and 1 for FedAc-II: the spectral norm of ``X^-1 A X`` for every Hessian
    between mu and L, ``(x_ag, x) <- A (x_ag, x)`` being the step and
    ``X = [[eta / gamma I, 0], [I, I]]``.

    Returns:
        The factor; NaN, and for concrete arguments a warning, outside ``lr <= gamma <= sqrt(lr /
        mu)``.

    Raises:
        ValueError: a constant that is not positive, another variant.

    References:
        Thesis, Propositions 3.16 and B.7.

    Example:
        >>> round(float(difference_growth("I", lr=0.1, gamma=1.0, mu=0.01)), 3)
        1.2
    """
    check_choice("variant", variant, Literal["I", "II"])
    lr, gamma, mu = positive(lr=lr, gamma=gamma, mu=mu)
    valid = at_most(lr, gamma) & at_most(gamma, jnp.sqrt(lr / mu))
    growth = jnp.exp(log_growth(2 if variant == "I" else 1, lr, gamma, mu))
    return where_valid(growth, valid, "lr <= gamma <= sqrt(lr / mu)")


def fedac_i_bound(
    potential: Scalar,
    *,
    lr: Scalar,
    L: Scalar,
    mu: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    gamma: Scalar | None = None,
) -> Array:
    r"""``E Psi`` after R rounds of FedAc-I, for any rate.

    With gamma, which shows acceleration against stability (Lemmas 3.7 and 3.10):

    .. math:: e^{-\gamma \mu K R} \Psi_0 + \frac{\eta^2 L \sigma^2}{2 \gamma \mu}
        + \frac{\gamma \sigma^2}{2 M} + 7 \eta \gamma L K \sigma^2 g^{2 K}

    with g of :func:`difference_growth`; without, for ``gamma = max(sqrt(eta / (mu K)), eta)``
    (Lemma 3.11):

    .. math:: e^{-\max\{\eta \mu, \sqrt{\eta \mu / K}\} K R} \Psi_0
        + \frac{\eta^{1/2} \sigma^2}{2 \mu^{1/2} M K^{1/2}} + \frac{\eta \sigma^2}{2 M}
        + \frac{390 \eta^{3/2} L K^{1/2} \sigma^2}{\mu^{1/2}} + 7 \eta^2 L K \sigma^2

    Args:
        potential: ``Psi_0``.
        gamma: None: FedAc-I's own.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / L``, ``mu > L`` or
        gamma is outside ``lr <= gamma <= sqrt(lr / mu)``.

    Raises:
        ValueError: a constant that is not positive (negative for potential, sigma).

    Example:
        >>> constants = dict(L=1.0, mu=0.5, sigma=0.0, M=4, K=2, R=10)
        >>> round(float(fedac_i_bound(1.0, lr=0.25, **constants)), 5)  # exp(-5)
        0.00674
    """
    lr, L, mu, M, K, R = positive(lr=lr, L=L, mu=mu, M=M, K=K, R=R)
    potential, sigma = non_negative(potential=potential, sigma=sigma)
    valid = at_most(lr, 1 / L) & at_most(mu, L)
    if gamma is not None:
        (gamma,) = positive(gamma=gamma)
        valid &= at_most(lr, gamma) & at_most(gamma, jnp.sqrt(lr / mu))
        noise = lr**2 * L / (2 * gamma * mu) + gamma / (2 * M)  # Lemma 3.7
        # One exponential: growth that overflows must not meet a sigma of 0.
        drift = log_monomial((lr, 1), (gamma, 1), (L, 1), (K, 1), (sigma, 2))
        drift = 7 * jnp.exp(drift + 2 * K * log_growth(2, lr, gamma, mu))  # Lemma 3.10
        value = jnp.exp(-gamma * mu * K * R) * potential + noise * sigma**2 + drift
        return where_valid(value, valid, RATES)
    noise = (  # Lemma 3.11
        jnp.sqrt(lr / (mu * K)) / (2 * M)
        + lr / (2 * M)
        + 390 * lr**1.5 * L * jnp.sqrt(K / mu)
        + 7 * lr**2 * L * K
    )
    value = jnp.exp(-speed(lr, mu, K) * K * R) * potential + noise * sigma**2
    return where_valid(value, valid, RATE)


def fedac_i_lr(
    potential: Scalar, *, L: Scalar, mu: Scalar, sigma: Scalar, M: Scalar, K: Scalar, R: Scalar
) -> Array:
    r"""The rate that Theorem 3.5 prescribes for FedAc-I.

    .. math:: \min\Bigl\{\frac1L,\ \frac{1}{\mu K R^2} \log^2\Bigl(e + \min\Bigl\{
        \frac{\mu M K R \Psi_0}{\sigma^2}, \frac{\mu^2 K R^3 \Psi_0}{L \sigma^2}\Bigr\}\Bigr)\Bigr\}

    Raises:
        ValueError: a constant that is not positive (sigma: negative).

    Example:
        >>> float(fedac_i_lr(1.0, L=2.0, mu=0.5, sigma=0.0, M=4, K=2, R=10))
        0.5
    """
    L, mu, M, K, R, potential = positive(L=L, mu=mu, M=M, K=K, R=R, potential=potential)
    (sigma,) = non_negative(sigma=sigma)
    ratio = smallest(*_log_ratios(potential, L, mu, sigma, M, K, R))
    return smallest(1 / L, log_plus(1, ratio) ** 2 / (mu * K * R**2))


def tuned_fedac_i_bound(
    potential: Scalar, *, L: Scalar, mu: Scalar, sigma: Scalar, M: Scalar, K: Scalar, R: Scalar
) -> Array:
    r"""What ``E Psi`` is at most after R rounds of FedAc-I at the rate :func:`fedac_i_lr`.

    .. math:: \min\{e^{-\mu K R / L}, e^{-\sqrt{\mu K / L} R}\} \Psi_0
        + \frac{2 \sigma^2}{\mu M K R} \log^2(e + a)
        + \frac{400 L \sigma^2}{\mu^2 K R^3} \log^4(e + b)

    with a and b the two ratios in the rate's minimum.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``mu > L``.

    Raises:
        ValueError: a constant that is not positive (sigma: negative).

    References:
        Thesis, Theorem 3.5, the complete version of Theorem 3.1(a).

    Example:
        >>> constants = dict(L=1.0, mu=0.5, sigma=0.0, M=4, K=2, R=10)
        >>> f"{tuned_fedac_i_bound(1.0, **constants):.2e}"  # exp(-10)
        '4.54e-05'
    """
    L, mu, M, K, R, potential = positive(L=L, mu=mu, M=M, K=K, R=R, potential=potential)
    (sigma,) = non_negative(sigma=sigma)
    a, b = _log_ratios(potential, L, mu, sigma, M, K, R)
    overhead = jnp.exp(log_monomial((L, 1), (sigma, 2), (mu, -2), (K, -1), (R, -3)))
    value = (  # Theorem 3.5
        jnp.exp(-speed(1 / L, mu, K) * K * R) * potential
        + times_log(2 * sigma**2 / (mu * M * K * R), log_plus(1, a), 2)
        + times_log(400 * overhead, log_plus(1, b), 4)
    )
    return where_valid(value, at_most(mu, L), "mu <= L")


def log_growth(factor: int, lr: Array, gamma: Array, mu: Array) -> Array:
    """The logarithm of :func:`difference_growth`, ``factor`` being its c; arguments unchecked.

    Example:
        >>> one = jnp.array(1.0)
        >>> float(log_growth(2, one, one, one))  # gamma = lr
        0.0
    """
    return jnp.where(at_most(gamma, lr), 0.0, jnp.log1p(factor * gamma**2 * mu / lr))


def speed(lr: Array, mu: Array, K: Array) -> Array:
    """``gamma mu`` at FedAc's own ``gamma = max(sqrt(lr / (mu K)), lr)``; arguments unchecked.

    Example:
        >>> float(speed(jnp.array(0.5), jnp.array(0.5), jnp.array(1.0)))
        0.5
    """
    return largest(lr * mu, jnp.sqrt(lr * mu / K))


def _log_ratios(
    potential: Array, L: Array, mu: Array, sigma: Array, M: Array, K: Array, R: Array
) -> tuple[Array, Array]:
    a = log_monomial((mu, 1), (M, 1), (K, 1), (R, 1), (potential, 1), (sigma, -2))
    b = log_monomial((mu, 2), (K, 1), (R, 3), (potential, 1), (L, -1), (sigma, -2))
    return a, b
