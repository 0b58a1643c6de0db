r"""Convergence of FedAc-II on strongly convex objectives, as functions of the constants.

Sources, constants and the potential ``Phi`` are those of :mod:`~fedjax_sim.theory.fedac`; these
bounds are from the thesis' Section 3.5 and Appendix B.1.

Slips of the thesis:

* Theorems B.1 and B.12 print "+" between the first two arguments of the minimum in the step size.
  Their proofs divide the potential by each of the ratios, which needs a minimum of separate
  arguments.  ``form="printed"`` has the sum.
* A display in Lemma B.14's proof lacks ``L^2``; its statement, used here, has it.
"""

import math

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import (
    Form,
    at_most,
    check_choice,
    non_negative,
    positive,
    where_valid,
)
from fedjax_sim.theory.fedac import RATE, RATES, log_growth, speed
from fedjax_sim.theory.step_sizes import log_monomial, log_plus, smallest, times_log
from fedjax_sim.types import Scalar


def fedac_ii_bound(
    potential: Scalar,
    *,
    lr: Scalar,
    L: Scalar,
    mu: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    Q: Scalar | None = None,
    gamma: Scalar | None = None,
) -> Array:
    r"""``E Phi`` after R rounds of FedAc-II, for any rate.

    With gamma (Lemma 3.23 with Lemma B.14 or, with ``Q``, Lemma 3.24), g of
    :func:`~fedjax_sim.theory.fedac.difference_growth`:

    .. math:: e^{-\gamma \mu K R / 3} \Phi_0 + \frac{3 \eta^2 L \sigma^2}{2 \gamma \mu M}
        + \frac{\gamma \sigma^2}{2 M} + \frac{3}{\mu} \{4 \eta^2 L^2 K \sigma^2 g^{2 K}
        \ \text{or}\ 44 \eta^4 Q^2 K^2 \sigma^4 g^{4 K}\}

    Without, for ``gamma = max(sqrt(eta / (mu K)), eta)`` (Lemma B.15 or, with ``Q``, Lemma B.3):

    .. math:: e^{-\max\{\eta \mu, \sqrt{\eta \mu / K}\} K R / 3} \Phi_0
        + \frac{\eta^{1/2} \sigma^2}{\mu^{1/2} M K^{1/2}}
        + \Bigl\{\frac{100 \eta^2 L^2 K \sigma^2}{\mu}\ \text{or}\
        \frac{2 \eta^{3/2} L K^{1/2} \sigma^2}{\mu^{1/2} M}
        + \frac{e^9 \eta^4 Q^2 K^2 \sigma^4}{\mu}\Bigr\}

    Args:
        potential: ``Phi_0``.
        Q: Lipschitz constant of the Hessian; None: unknown.
        gamma: None: FedAc-II's own.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / L``, ``mu > L`` or
        gamma is outside ``lr <= gamma <= sqrt(lr / mu)``.

    Raises:
        ValueError: a constant that is not positive (negative for potential, sigma, Q).

    Example:
        >>> constants = dict(L=1.0, mu=0.5, sigma=0.0, M=4, K=2, R=10)
        >>> round(float(fedac_ii_bound(1.0, lr=0.25, **constants)), 4)  # exp(-5 / 3)
        0.1889
    """
    lr, L, mu, M, K, R = positive(lr=lr, L=L, mu=mu, M=M, K=K, R=R)
    potential, sigma = non_negative(potential=potential, sigma=sigma)
    Q = None if Q is None else non_negative(Q=Q)[0]
    valid = at_most(lr, 1 / L) & at_most(mu, L)
    if gamma is not None:
        (gamma,) = positive(gamma=gamma)
        valid &= at_most(lr, gamma) & at_most(gamma, jnp.sqrt(lr / mu))
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
        return where_valid(value, valid, RATES)
    noise = jnp.sqrt(lr / (mu * K)) / M
    if Q is None:
        noise += 100 * lr**2 * L**2 * K / mu  # Lemma B.15
    else:
        noise += 2 * lr**1.5 * L * jnp.sqrt(K / mu) / M  # Lemma B.3
        noise += math.exp(9) * lr**4 * Q**2 * K**2 * sigma**2 / mu
    value = jnp.exp(-speed(lr, mu, K) * K * R / 3) * potential + noise * sigma**2
    return where_valid(value, valid, RATE)


def fedac_ii_lr(
    potential: Scalar,
    *,
    L: Scalar,
    mu: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    Q: Scalar | None = None,
    form: Form = "corrected",
) -> Array:
    r"""The rate that Theorem B.12 or, with ``Q``, Theorem B.1 prescribes for FedAc-II.

    .. math:: \min\Bigl\{\frac1L,\ \frac{9}{\mu K R^2} \log^2(e + \min\{a, b\}
        \ \text{or}\ \min\{a, c, d\})\Bigr\}

    with ``a = mu M K R Phi_0 / sigma^2``, ``b = mu^3 K R^4 Phi_0 / (L^2 sigma^2)``,
    ``c = mu^2 M K R^3 Phi_0 / (L sigma^2)``, ``d = mu^5 K^2 R^8 Phi_0 / (Q^2 sigma^4)``.

    Args:
        form: "printed": ``a + b`` for ``min(a, b)``, ``min(a + c, d)`` for ``min(a, c, d)``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, Q), an unknown form.

    Example:
        >>> float(fedac_ii_lr(1.0, L=2.0, mu=0.5, sigma=0.0, M=4, K=2, R=10))
        0.5
    """
    check_choice("form", form, Form)
    L, mu, M, K, R, potential = positive(L=L, mu=mu, M=M, K=K, R=R, potential=potential)
    (sigma,) = non_negative(sigma=sigma)
    first, second, *rest = _log_ratios(potential, L, mu, sigma, M, K, R, Q)
    joined = jnp.logaddexp(first, second) if form == "printed" else smallest(first, second)
    ratio = smallest(joined, *rest)
    return smallest(1 / L, 9 / (mu * K * R**2) * log_plus(1, ratio) ** 2)


def tuned_fedac_ii_bound(
    potential: Scalar,
    *,
    L: Scalar,
    mu: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    Q: Scalar | None = None,
) -> Array:
    r"""What ``E Phi`` is at most after R rounds of FedAc-II at the rate :func:`fedac_ii_lr`.

    .. math:: E \Phi_0 + \frac{4 \sigma^2}{\mu M K R} \log(e + a) + \Bigl\{
        \frac{8101 L^2 \sigma^2}{\mu^3 K R^4} \log^4(e + b)\ \text{or}\
        \frac{55 L \sigma^2}{\mu^2 M K R^3} \log^3(e + c)
        + \frac{e^{18} Q^2 \sigma^4}{\mu^5 K^2 R^8} \log^8(e + d)\Bigr\}

    with a .. d of the rate and ``E = min(exp(-mu K R / (3 L)), exp(-sqrt(mu K / L) R / 3))``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``mu > L``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, Q).

    References:
        Thesis, Theorem B.12 (3.1(b)); with ``Q`` Theorem B.1 (3.3).

    Example:
        >>> constants = dict(L=1.0, mu=0.5, sigma=0.0, M=4, K=2, R=10)
        >>> round(float(tuned_fedac_ii_bound(1.0, **constants)), 4)  # exp(-10 / 3)
        0.0357
    """
    L, mu, M, K, R, potential = positive(L=L, mu=mu, M=M, K=K, R=R, potential=potential)
    (sigma,) = non_negative(sigma=sigma)
    a, second, *rest = _log_ratios(potential, L, mu, sigma, M, K, R, Q)
    value = jnp.exp(-speed(1 / L, mu, K) * K * R / 3) * potential
    value += times_log(4 * sigma**2 / (mu * M * K * R), log_plus(1, a), 1)
    if Q is None:  # Theorem B.12
        overhead = jnp.exp(log_monomial((L, 2), (sigma, 2), (mu, -3), (K, -1), (R, -4)))
        value += times_log(8101 * overhead, log_plus(1, second), 4)
    else:  # Theorem B.1
        overhead = jnp.exp(log_monomial((L, 1), (sigma, 2), (mu, -2), (M, -1), (K, -1), (R, -3)))
        value += times_log(55 * overhead, log_plus(1, second), 3)
        (Q,) = non_negative(Q=Q)
        overhead = log_monomial((Q, 2), (sigma, 4), (mu, -5), (K, -2), (R, -8))
        value += times_log(jnp.exp(18 + overhead), log_plus(1, rest[0]), 8)
    return where_valid(value, at_most(mu, L), "mu <= L")


def _log_ratios(
    potential: Array,
    L: Array,
    mu: Array,
    sigma: Array,
    M: Array,
    K: Array,
    R: Array,
    Q: Scalar | None,
) -> tuple[Array, ...]:
    """The logarithms of a and b, or of a, c and d."""
    a = log_monomial((mu, 1), (M, 1), (K, 1), (R, 1), (potential, 1), (sigma, -2))
    if Q is None:
        return a, log_monomial((mu, 3), (K, 1), (R, 4), (potential, 1), (L, -2), (sigma, -2))
    (Q,) = non_negative(Q=Q)
    c = log_monomial((mu, 2), (M, 1), (K, 1), (R, 3), (potential, 1), (L, -1), (sigma, -2))
    d = log_monomial((mu, 5), (K, 2), (R, 8), (potential, 1), (Q, -2), (sigma, -4))
    return a, c, d
