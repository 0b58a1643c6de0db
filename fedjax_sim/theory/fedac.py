r"""Convergence of FedAc.

Bounds from Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Chapter 3 and Appendix B; also Yuan and Ma (2020), "Federated Accelerated Stochastic Gradient
Descent".  All clients have one objective and take part in every round.  The regimes are

* ``"strongly convex"`` (Sections 3.4 and 3.5, Appendix B.1): bounds of the potentials
  ``Psi = mean_m F(x_ag,m) - F* + mu / 2 ||xbar - x*||^2`` of FedAc-I and
  ``Phi = F(xbar_ag) - F* + mu / 6 ||xbar - x*||^2`` of FedAc-II, which are at least the error of
  the model.  ``potential`` is the value at the initial model, at most ``L B^2``; by default it is
  ``Delta + mu / 2 B^2``, FedAc-I's and more than FedAc-II's.  ``gamma``, alpha and beta are those
  of :func:`fedjax_sim.algorithms.fedac.coupling`.
* ``"convex"`` (Appendix B.3): bounds of ``E F(xbar_ag) - F*`` after R rounds, where FedAc runs on
  ``F + augmentation / 2 ||x - x_0||^2``; ``augmentation``, lambda in formulas, is FedAc's mu.

Functions need L and sigma; strongly convex mu and, for the default potential, Delta and B; convex
B.  Where Q is known, functions of FedAc-II use the bounds for Q-Lipschitz Hessians, with
``max(sigma, sigma4)`` for sigma; FedAc-I has none.

The numbers in the bounds, up to e^19, are those of the proofs and make the bounds far larger than
measured errors; :func:`fedjax_sim.theory.orders.table_rate` has the rates with all numbers 1.

In formulas M is ``clients``, K ``local_steps``, R ``rounds`` and eta ``lr``.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import (
    at_most,
    both_moments,
    check_choice,
    non_negative,
    optional,
    positive,
    where_valid,
)
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import largest, log_monomial, log_plus, smallest, times_log

__all__ = ["bound", "difference_growth", "prescribed_augmentation", "prescribed_lr", "tuned_bound"]

Regime = Literal["strongly convex", "convex"]
Variant = Literal["I", "II"]

VALID_LR = "lr <= 1 / L and mu <= L"
VALID_GAMMA = "lr <= gamma <= sqrt(lr / mu)"

SLOWNESS = {"I": 1, "II": 3}  # the potential falls by exp(-gamma mu / slowness) per step


def bound(
    constants: ProblemConstants,
    regime: Regime,
    *,
    variant: Variant,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
    gamma: Scalar | None = None,
    augmentation: Scalar | None = None,
) -> Array:
    r"""The potential or the error after R rounds, for any rate.

    Strongly convex, ``E Psi`` or ``E Phi``.  With gamma, which shows acceleration against
    stability, and g of :func:`difference_growth`:

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

    Convex, the error at an augmentation lambda:

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

    NaN with a warning where, strongly convex, ``lr > 1 / L``, ``mu > L`` or gamma is outside
    ``lr <= gamma <= sqrt(lr / mu)``; convex, ``lr > 1 / (L + augmentation)``.

    Args:
        potential, gamma: of strongly convex objectives.
        augmentation: of convex objectives, where it is required.

    Raises:
        ValueError: a missing or negative constant; an unknown regime or variant; an argument of the
            other regime.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, sigma=0.0)
        >>> run = dict(potential=1.0, lr=0.25, local_steps=2, rounds=10, clients=4)
        >>> round(float(bound(constants, "strongly convex", variant="I", **run)), 5)  # exp(-5)
        0.00674
    """
    _check(regime, variant, potential=potential, gamma=gamma, augmentation=augmentation)
    if regime == "convex":
        if augmentation is None:
            raise ValueError("augmentation is None; expected a number for convex objectives")
        run = _run_of(constants, variant, local_steps, rounds, clients, augmentation=augmentation)
        B, lr = positive(constants, "B", lr=lr)
        L, lam = run.L, run.mu
        # The strongly convex noise of the augmented objective.  Lemma B.27 has 2 (L^2 + lambda^2)
        # for (L + lambda)^2.
        own = variant == "II" and run.Q is None
        smooth = jnp.sqrt(2 * (L**2 + lam**2)) if own else L + lam
        noise = _own_noise(run._replace(L=smooth), lr) * run.sigma**2
        left = jnp.exp(-jnp.sqrt(lr * lam * run.K) * run.R / SLOWNESS[variant])
        value = (lam + L * left) * B**2 / 2 + noise
        return where_valid(value, at_most(lr, 1 / (L + lam)), "lr <= 1 / (L + augmentation)")
    potential = _initial_potential(constants, potential)
    run = _run_of(constants, variant, local_steps, rounds, clients)
    lr, (potential,) = positive(lr=lr)[0], non_negative(potential=potential)
    valid, text = at_most(lr, 1 / run.L) & at_most(run.mu, run.L), VALID_LR
    if gamma is None:
        pace, noise = _speed(lr, run.mu, run.K), _own_noise(run, lr) * run.sigma**2
    else:
        (gamma,) = positive(gamma=gamma)
        pace, noise = gamma * run.mu, _noise(run, lr, gamma)
        valid, text = valid & _gamma_condition(gamma, lr, run.mu), f"{VALID_LR} and {VALID_GAMMA}"
    value = jnp.exp(-pace * run.K * run.R / SLOWNESS[variant]) * potential + noise
    return where_valid(value, valid, text)


def prescribed_lr(
    constants: ProblemConstants,
    regime: Regime,
    *,
    variant: Variant,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
    augmentation: Scalar | None = None,
) -> Array:
    r"""The rate that a theorem prescribes for :func:`bound`.

    Strongly convex, Theorem 3.5 (I), B.12 (II) or B.1 (II with Q); B.1 and B.12 with a minimum of
    separate arguments (see the errata):

    .. math:: \text{I:}\quad  &\min\Bigl\{\frac1L,\ \frac{1}{\mu K R^2}
        \log^2(e + \min\{a, b\})\Bigr\} \\
        \text{II:}\quad &\min\Bigl\{\frac1L,\ \frac{9}{\mu K R^2} \log^2(e + \min\{a, b'\}
        \ \text{or}\ \min\{a, c, d\})\Bigr\}

    with ``a = mu M K R P / sigma^2``, ``b = mu^2 K R^3 P / (L sigma^2)``,
    ``b' = mu^3 K R^4 P / (L^2 sigma^2)``, ``c = mu^2 M K R^3 P / (L sigma^2)``,
    ``d = mu^5 K^2 R^8 P / (Q^2 sigma^4)`` and P the potential.

    Convex, Lemma B.25 (I), B.28 (II) or B.31 (II with Q), at any augmentation:

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
        potential: of strongly convex objectives.
        augmentation: of convex objectives; None: :func:`prescribed_augmentation`.

    Raises:
        ValueError: as :func:`bound`.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> sizes = dict(local_steps=10, rounds=10, clients=4)
        >>> float(prescribed_lr(constants, "convex", variant="I", augmentation=1.0, **sizes))
        0.5
    """
    _check(regime, variant, potential=potential, augmentation=augmentation)
    if regime == "convex":
        if augmentation is None:
            augmentation = prescribed_augmentation(
                constants, variant=variant, local_steps=local_steps, rounds=rounds, clients=clients
            )
        run = _run_of(constants, variant, local_steps, rounds, clients, augmentation=augmentation)
        (B,) = positive(constants, "B")
        _, L, lam, sigma, Q, M, K, R = run
        # The strongly convex rate at mu = lambda and the potential L B^2.
        rate = _largest_useful_lr(run, log_monomial((L, 1), (B, 2)))
        cube = (L * (B / (lam * K * sigma)) ** 2) ** (1 / 3)
        if variant == "I":  # Lemma B.25
            others = [cube / R, (L * B**2 / (lam * K) ** 3) ** (1 / 4) / (R * jnp.sqrt(sigma))]
        elif Q is None:  # Lemma B.28
            others = [cube / R ** (2 / 3)]
        else:  # Lemma B.31
            others = [cube * M ** (1 / 3) / R]
        return smallest(1 / (L + lam), rate, *others)
    potential = _initial_potential(constants, potential)
    run = _run_of(constants, variant, local_steps, rounds, clients)
    (potential,) = positive(potential=potential)
    return smallest(1 / run.L, _largest_useful_lr(run, jnp.log(potential)))


def tuned_bound(
    constants: ProblemConstants,
    regime: Regime,
    *,
    variant: Variant,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    potential: Scalar | None = None,
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    Strongly convex, Theorem 3.5, the complete version of 3.1(a); B.12 (3.1(b)); with Q B.1 (3.3):

    .. math:: \text{I:}\quad &E \Psi_0 + \frac{2 \sigma^2}{\mu M K R} \log^2(e + a)
        + \frac{400 L \sigma^2}{\mu^2 K R^3} \log^4(e + b) \\
        \text{II:}\quad &E \Phi_0 + \frac{4 \sigma^2}{\mu M K R} \log(e + a) + \Bigl\{
        \frac{8101 L^2 \sigma^2}{\mu^3 K R^4} \log^4(e + b')\ \text{or}\
        \frac{55 L \sigma^2}{\mu^2 M K R^3} \log^3(e + c)
        + \frac{e^{18} Q^2 \sigma^4}{\mu^5 K^2 R^8} \log^8(e + d)\Bigr\}

    with a .. d of the rate and ``E = min(exp(-mu K R / (k L)), exp(-sqrt(mu K / L) R / k))``,
    k = 1 for I and 3 for II.

    Convex, at the prescribed augmentation:

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

    NaN with a warning where, strongly convex, ``mu > L``; convex, ``K R < 24`` (I) or
    ``K R < 1000`` (II).

    Raises:
        ValueError: as :func:`bound`.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.5, sigma=0.0)
        >>> sizes = dict(potential=1.0, local_steps=2, rounds=10, clients=4)
        >>> value = tuned_bound(constants, "strongly convex", variant="II", **sizes)
        >>> round(float(value), 4)  # exp(-10 / 3)
        0.0357
    """
    _check(regime, variant, potential=potential)
    if regime == "convex":
        return _tuned_convex_bound(constants, variant, local_steps, rounds, clients)
    potential = _initial_potential(constants, potential)
    run = _run_of(constants, variant, local_steps, rounds, clients)
    (potential,) = positive(potential=potential)
    _, L, mu, sigma, Q, M, K, R = run
    a, second, *third = _log_ratios(run, jnp.log(potential))
    value = jnp.exp(-_speed(1 / L, mu, K) * K * R / SLOWNESS[variant]) * potential
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
    check_choice("variant", variant, Variant)
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    Q, sigma = _hessian_and_noise(constants, variant)
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


def difference_growth(
    constants: ProblemConstants, *, variant: Variant, lr: Scalar, gamma: Scalar
) -> Array:
    r"""Largest factor by which a local step enlarges the difference of two clients.

    .. math:: 1 + c \frac{\gamma^2 \mu}{\eta} \ \text{if}\ \gamma > \eta, \qquad 1 \ \text{if}\
        \gamma = \eta

    with c = 2 for FedAc-I and 1 for FedAc-II: the spectral norm of ``X^-1 A X`` for every Hessian
    between mu and L, where ``(x_ag, x) <- A (x_ag, x)`` is the step and
    ``X = [[eta / gamma I, 0], [I, I]]``.

    Needs mu.  NaN with a warning outside ``lr <= gamma <= sqrt(lr / mu)``.  Source: thesis,
    Propositions 3.16 and B.7.

    Raises:
        ValueError: a missing or non-positive constant; an unknown variant.

    Example:
        >>> constants = ProblemConstants(mu=0.01)
        >>> round(float(difference_growth(constants, variant="I", lr=0.1, gamma=1.0)), 3)
        1.2
    """
    check_choice("variant", variant, Variant)
    mu, lr, gamma = positive(constants, "mu", lr=lr, gamma=gamma)
    growth = jnp.exp(_log_growth(variant, lr, gamma, mu))
    return where_valid(growth, _gamma_condition(gamma, lr, mu), VALID_GAMMA)


def _tuned_convex_bound(
    constants: ProblemConstants,
    variant: Variant,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    """The bound of Theorem B.21 (I), B.22 (II) or B.23 (II with Q)."""
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    Q, sigma = _hessian_and_noise(constants, variant)
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


def _check(regime: str, variant: str, **own: Any) -> None:
    """Refuses unknown choices, and arguments that only the other regime has."""
    check_choice("regime", regime, Regime)
    check_choice("variant", variant, Variant)
    for name, value in own.items():
        if value is not None and (name == "augmentation") != (regime == "convex"):
            raise ValueError(f"{name} is {value}; expected None for {regime} objectives")


class _Run(NamedTuple):
    """A run on strongly convex objectives: checked constants and sizes."""

    variant: Variant
    L: Array
    mu: Array  # lambda of convex objectives, which are augmented
    sigma: Array
    Q: Array | None
    M: Array
    K: Array
    R: Array


def _run_of(
    constants: ProblemConstants,
    variant: Variant,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    **augmentation: Scalar,
) -> _Run:
    names = ["L"] if augmentation else ["L", "mu"]
    L, mu, K = positive(constants, *names, **augmentation, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    Q, sigma = _hessian_and_noise(constants, variant)
    return _Run(variant, L, mu, sigma, Q, M, K, R)


def _log_growth(variant: Variant, lr: Array, gamma: Array, mu: Array) -> Array:
    """The logarithm of :func:`difference_growth`; arguments are not checked."""
    factor = 2 if variant == "I" else 1
    return jnp.where(at_most(gamma, lr), 0.0, jnp.log1p(factor * gamma**2 * mu / lr))


def _speed(lr: Array, mu: Array, K: Array) -> Array:
    """``gamma mu`` at FedAc's own ``gamma = max(sqrt(lr / (mu K)), lr)``; arguments not checked."""
    return largest(lr * mu, jnp.sqrt(lr * mu / K))


def _gamma_condition(gamma: Array, lr: Array, mu: Array) -> Array:
    """The condition of all lemmas with a free gamma; arguments are not checked."""
    return at_most(lr, gamma) & at_most(gamma, jnp.sqrt(lr / mu))


def _initial_potential(constants: ProblemConstants, potential: Scalar | None) -> Scalar:
    """The given potential, or ``Delta + mu / 2 B^2``."""
    if potential is not None:
        return potential
    Delta, mu, B = non_negative(constants, "Delta", "mu", "B")
    return Delta + mu / 2 * B**2


def _hessian_and_noise(constants: ProblemConstants, variant: Variant) -> tuple[Array | None, Array]:
    """Q, or None, and the sigma that the theorems ask for: with Q it bounds both moments."""
    Q = optional(constants, "Q") if variant == "II" else None
    return Q, non_negative(constants, "sigma")[0] if Q is None else both_moments(constants)


def _own_noise(run: _Run, lr: Array) -> Array:
    """The bound's terms beside the potential at the variant's own gamma, over sigma^2."""
    variant, L, mu, sigma, Q, M, K, _ = run
    statistical = jnp.sqrt(lr / (mu * K)) / M
    if variant == "I":  # Lemma 3.11
        drift = 390 * lr**1.5 * L * jnp.sqrt(K / mu) + 7 * lr**2 * L * K
        return statistical / 2 + lr / (2 * M) + drift
    if Q is None:  # Lemma B.15
        return statistical + 100 * lr**2 * L**2 * K / mu
    drift = 2 * lr**1.5 * L * jnp.sqrt(K / mu) / M  # Lemma B.3
    return statistical + drift + math.exp(9) * lr**4 * Q**2 * K**2 * sigma**2 / mu


def _noise(run: _Run, lr: Array, gamma: Array) -> Array:
    """The bound's terms beside the potential at any gamma."""
    variant, L, mu, sigma, Q, M, K, _ = run
    growth = 2 * K * _log_growth(variant, lr, gamma, mu)
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


def _log_ratios(run: _Run, log_potential: Array) -> list[Array]:
    """The logarithms of a and b (I), a and b' (II), or a, c and d (II with Q)."""
    variant, L, mu, sigma, Q, M, K, R = run
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


def _largest_useful_lr(run: _Run, log_potential: Array) -> Array:
    """``k^2 / (mu K R^2) log^2(e + ratio)`` at the smallest ratio, k = 1 for I and 3 for II."""
    front = SLOWNESS[run.variant] ** 2 / (run.mu * run.K * run.R**2)
    return front * log_plus(1, smallest(*_log_ratios(run, log_potential))) ** 2


def _acceleration(L: Array, K: Array, R: Array) -> Array:
    return L / (K * R**2) * jnp.log(math.exp(2) + K * R**2) ** 2
