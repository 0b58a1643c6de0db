r"""Convergence of FedAvg.

Bounds from Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Chapter 2 and Appendices A and B.2.  All clients take part in every round.  The shadow iterate
``xbar(r, k)`` is the mean of the clients' iterates after k local steps of round r.  The regimes are

* ``"convex"`` (Equation 2.1, Proposition 2.1, adapted there from Woodworth, Patel and Srebro,
  2020): needs L, sigma, zeta, B;
* ``"third order"`` (Theorem 2.19): convex objectives that are nearly quadratic, the Hessian is
  Q-Lipschitz; needs L, sigma, sigma4, Q, B;
* ``"strongly convex"`` (Theorem B.18, the complete version of Theorem 3.4), with Q-Lipschitz
  Hessian: needs L, mu, sigma, sigma4, Q, B;
* ``"nonconvex"`` (Theorem 2.22 or, where Q is known, 2.23): needs L, sigma, G, Delta.

In all but the first, clients have one objective.  In the second and third, with the learning rates
that the proofs use (see the errata), sigma is ``max(sigma, sigma4)``.

SGD and gradient descent that start from one point and take k steps differ by the bias
``||E x_k - z_k||``.  A round of infinitely many clients with one objective moves the model by
exactly ``E x_k``, so the bias is the cost of its local steps.  With Q, ``f(., xi)`` is convex and
smooth for every xi.

In formulas M is ``clients``, K ``local_steps``, R ``rounds``, eta ``lr`` and k ``steps``.
"""

from __future__ import annotations

from typing import Literal

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
from fedjax_sim.theory.step_sizes import log_monomial, log_plus, smallest, times_log

__all__ = [
    "bias_bound",
    "bias_lower_bound",
    "bound",
    "drift_bound",
    "fourth_moment_bound",
    "gradient_gap_bound",
    "growth_bias_bound",
    "prescribed_lr",
    "shadow_bound",
    "third_order_bias_lower_bound",
    "tuned_bound",
]

Regime = Literal["convex", "third order", "strongly convex", "nonconvex"]

SMALL_LR = "lr <= 1 / (4 L)"


def bound(
    constants: ProblemConstants,
    regime: Regime,
    *,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""A bound of the error after R rounds, for any rate.

    * convex: the mean of ``E F(xbar(r, k)) - F*`` over all rounds and k = 1 .. K; by convexity also
      the error of the mean of all shadow iterates (Lemma 2.3 with Lemma 2.4)

      .. math:: \frac{B^2}{2 \eta K R} + \frac{\eta \sigma^2}{M} + 4 K \eta^2 L \sigma^2
          + 18 K^2 \eta^2 L \zeta^2

    * third order: ``E F(xhat) - F*`` for the mean ``xhat`` of all ``xbar(r, k)``, k = 0 .. K - 1,
      with weights ``(1 + 1 / (K R))^-(r K + k + 1)`` (proof of Theorem 2.19)

      .. math:: \frac{3 B^2}{\eta K R} + \frac{\eta \sigma^2}{M} + 96 \eta^5 Q^2 K^3 R \sigma^4

    * strongly convex: ``E F(xhat) - F* + mu / 2 E||xbar(R, 0) - x*||^2``, with weights proportional
      to ``(1 - lr mu / 2)^(K R - (r K + k) - 1)`` (Lemma B.19 with Lemma 2.20)

      .. math:: \frac{B^2}{\eta} e^{-\eta \mu K R / 2} + \frac{\eta \sigma^2}{M}
          + \frac{192 \eta^4 Q^2 K^2 \sigma^4}{\mu}

    * nonconvex: the mean of ``E||grad F(xbar(r, k))||^2`` over all rounds and k = 0 .. K - 1

      .. math:: \frac{2 \Delta}{\eta K R} + D + c\, \frac{L \eta \sigma^2}{M}

      with ``D = 8 L^2 eta^2 G^2 K^2``, c = 1 without Q and ``D = 8 Q^2 eta^4 G^4 K^4``, c = 2 with
      Q: the last displays of the proofs of Theorems 2.22 and 2.23.  The proofs, which have L for
      L/2 in the smoothness inequality, give c = 2; with L/2 they give c = 1, which no smaller one
      replaces (see the errata).

    NaN with a warning where ``lr > 1 / (4 L)`` (nonconvex: ``1 / L``) or, strongly convex,
    ``mu > L``.

    Raises:
        ValueError: a missing or negative constant; another regime.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, zeta=0.0, B=1.0)
        >>> value = bound(constants, "convex", lr=0.1, local_steps=5, rounds=20, clients=10)
        >>> round(float(value), 3)  # 0.05 + 0.01 + 0.2
        0.26
    """
    check_choice("regime", regime, Regime)
    L, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    if regime == "nonconvex":
        sigma, G, Delta = non_negative(constants, "sigma", "G", "Delta")
        Q = optional(constants, "Q")
        if Q is None:
            c, drift = 1, 8 * L**2 * lr**2 * G**2 * K**2  # Theorem 2.22
        else:
            c, drift = 2, 8 * Q**2 * lr**4 * G**4 * K**4  # Theorem 2.23
        value = 2 * Delta / (lr * K * R) + drift + c * L * lr * sigma**2 / M
        return where_valid(value, at_most(lr, 1 / L), "lr <= 1 / L")
    (B,) = positive(constants, "B")
    small = at_most(lr, 1 / (4 * L))
    if regime == "convex":
        sigma, zeta = non_negative(constants, "sigma", "zeta")
        drift = _drift_terms(lr, sigma, zeta, K)
        return where_valid(_shadow_terms(drift, lr, L, sigma, M, K, R, B), small, SMALL_LR)
    (Q,), sigma = non_negative(constants, "Q"), both_moments(constants)
    noise = lr * sigma**2 / M
    if regime == "third order":
        value = 3 * B**2 / (lr * K * R) + noise + 96 * lr**5 * Q**2 * K**3 * R * sigma**4
        return where_valid(value, small, SMALL_LR)
    (mu,) = positive(constants, "mu")
    start = B**2 / lr * jnp.exp(-lr * mu * K * R / 2)
    value = start + noise + 192 * lr**4 * Q**2 * K**2 * sigma**4 / mu  # Lemma B.19
    return where_valid(value, small & at_most(mu, L), f"{SMALL_LR} and mu <= L")


def prescribed_lr(
    constants: ProblemConstants,
    regime: Regime,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""The rate that the regime's theorem prescribes for :func:`bound`.

    * convex:

      .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B}{\sqrt{K R} \sigma},\
          \frac{B^{2/3}}{K^{2/3} R^{1/3} L^{1/3} \sigma^{2/3}},\
          \frac{B^{2/3}}{K R^{1/3} L^{1/3} \zeta^{2/3}}\Bigr\}

    * third order: the first two, and
      ``B^(1/3) / (K^(2/3) R^(1/3) Q^(1/3) sigma^(2/3))``
    * strongly convex:

      .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{2}{\mu K R} \log\Bigl(e + \min\Bigl\{
          \frac{\mu^2 M K^2 R^2 B^2}{\sigma^2}, \frac{\mu^6 K^3 R^5 B^2}{Q^2 \sigma^4}
          \Bigr\}\Bigr)\Bigr\}

    * nonconvex:

      .. math:: \min\Bigl\{\frac{1}{L},\ \frac{\sqrt{M \Delta}}{\sigma \sqrt{L K R}},\ e\Bigr\},
          \qquad e = \frac{\Delta^{1/3}}{K R^{1/3} L^{2/3} G^{2/3}}
          \ \text{or, with}\ Q,\ \frac{\Delta^{1/5}}{K R^{1/5} Q^{2/5} G^{4/5}}

    Raises:
        ValueError: as :func:`bound`.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta=0.0, B=1.0)
        >>> float(prescribed_lr(constants, "convex", local_steps=5, rounds=20, clients=10))
        0.25
    """
    check_choice("regime", regime, Regime)
    L, K, R, M = positive(constants, "L", local_steps=local_steps, rounds=rounds, clients=clients)
    if regime == "nonconvex":
        (Delta,), (sigma, G) = positive(constants, "Delta"), non_negative(constants, "sigma", "G")
        Q = optional(constants, "Q")
        if Q is None:
            entry = (Delta / R) ** (1 / 3) / (K * (L * G) ** (2 / 3))
        else:
            entry = (Delta / R) ** (1 / 5) / (K * (Q * G**2) ** (2 / 5))
        return smallest(1 / L, jnp.sqrt(M * Delta / (L * K * R)) / sigma, entry)
    (B,) = positive(constants, "B")
    if regime == "convex":
        sigma, zeta = non_negative(constants, "sigma", "zeta")
        cube = (B**2 / (R * L)) ** (1 / 3)
        others = cube / (K * sigma) ** (2 / 3), cube / (K * zeta ** (2 / 3))
    else:
        (Q,), sigma = non_negative(constants, "Q"), both_moments(constants)
        if regime == "strongly convex":
            (mu,) = positive(constants, "mu")
            ratio = smallest(*_log_ratios(mu, Q, sigma, M, K, R, B))
            return smallest(1 / (4 * L), 2 / (mu * K * R) * log_plus(1, ratio))
        others = ((B / (K**2 * R)) ** (1 / 3) / (Q * sigma**2) ** (1 / 3),)
    return smallest(1 / (4 * L), jnp.sqrt(M / (K * R)) * B / sigma, *others)


def tuned_bound(
    constants: ProblemConstants,
    regime: Regime,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    The thesis has O() for the numbers, but for the strongly convex ones; they follow by inserting
    the rate.

    * convex (Proposition 2.1):

      .. math:: \frac{2 L B^2}{K R} + \frac{3 \sigma B}{2 \sqrt{M K R}}
          + \frac{9}{2} \frac{L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R^{2/3}}
          + \frac{37}{2} \frac{L^{1/3} \zeta^{2/3} B^{4/3}}{R^{2/3}}

    * third order (Theorem 2.19):

      .. math:: \frac{12 L B^2}{K R} + \frac{4 \sigma B}{\sqrt{M K R}}
          + \frac{99 Q^{1/3} \sigma^{2/3} B^{5/3}}{K^{1/3} R^{2/3}}

    * strongly convex (Theorem B.18), with a and b the two ratios in the rate's minimum:

      .. math:: 4 L B^2 e^{-\mu K R / (8 L)} + \frac{3 \sigma^2}{\mu M K R} \log(e + a)
          + \frac{3073\, Q^2 \sigma^4}{\mu^5 K^2 R^4} \log^4(e + b)

    * nonconvex (Theorems 2.22 and 2.23, which have G for sigma in the middle term; ``sigma <= G``),
      c as in :func:`bound`:

      .. math:: \frac{2 L \Delta}{K R} + \frac{(2 + c) \sigma \sqrt{L \Delta}}{\sqrt{M K R}}
          + 10\, d, \qquad d = \frac{L^{2/3} G^{2/3} \Delta^{2/3}}{R^{2/3}}
          \ \text{or, with}\ Q,\ \frac{Q^{2/5} G^{4/5} \Delta^{4/5}}{R^{4/5}}

    NaN with a warning where, strongly convex, ``mu > L``.

    Raises:
        ValueError: as :func:`bound`.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta=0.0, B=1.0)
        >>> round(float(tuned_bound(constants, "convex", local_steps=5, rounds=20, clients=10)), 3)
        0.02
    """
    check_choice("regime", regime, Regime)
    L, K, R, M = positive(constants, "L", local_steps=local_steps, rounds=rounds, clients=clients)
    if regime == "nonconvex":
        (Delta,), (sigma, G) = positive(constants, "Delta"), non_negative(constants, "sigma", "G")
        Q = optional(constants, "Q")
        if Q is None:
            c, drift = 1, (L * G * Delta / R) ** (2 / 3)  # Theorem 2.22
        else:
            c, drift = 2, (Q * G**2) ** (2 / 5) * (Delta / R) ** (4 / 5)  # Theorem 2.23
        noise = (2 + c) * sigma * jnp.sqrt(L * Delta / (M * K * R))
        return 2 * L * Delta / (K * R) + noise + 10 * drift
    (B,) = positive(constants, "B")
    if regime == "convex":  # Proposition 2.1
        sigma, zeta = non_negative(constants, "sigma", "zeta")
        cube = (L * B**4 / R**2) ** (1 / 3)
        noise = 1.5 * sigma * B / jnp.sqrt(M * K * R) + 4.5 * cube * (sigma**2 / K) ** (1 / 3)
        return 2 * L * B**2 / (K * R) + noise + 18.5 * cube * zeta ** (2 / 3)
    (Q,), sigma = non_negative(constants, "Q"), both_moments(constants)
    if regime == "third order":  # Theorem 2.19
        overhead = (Q * sigma**2 * B**5 / (K * R**2)) ** (1 / 3)
        noise = 4 * sigma * B / jnp.sqrt(M * K * R)
        return 12 * L * B**2 / (K * R) + noise + 99 * overhead
    (mu,) = positive(constants, "mu")
    a, b = _log_ratios(mu, Q, sigma, M, K, R, B)
    overhead = jnp.exp(log_monomial((Q, 2), (sigma, 4), (mu, -5), (K, -2), (R, -4)))
    value = (  # Theorem B.18
        4 * L * B**2 * jnp.exp(-mu * K * R / (8 * L))
        + times_log(3 * sigma**2 / (mu * M * K * R), log_plus(1, a), 1)
        + times_log(3073 * overhead, log_plus(1, b), 4)
    )
    return where_valid(value, at_most(mu, L), "mu <= L")


def shadow_bound(
    constants: ProblemConstants,
    *,
    drift: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""The error that the convex :func:`bound` bounds, from the measured drift.

    .. math:: \frac{1}{K R} \sum_{r,k} E F(\bar x^{(r,k)}) - F^*
        + \frac{E \|\bar x^{(R,0)} - x^*\|^2}{2 \eta K R}
        \le \frac{B^2}{2 \eta K R} + \frac{\eta \sigma^2}{M} + L \cdot drift

    Needs L, sigma, B.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, Lemma 2.3,
    with the distance after the last round (see the errata).

    Args:
        drift: mean over clients, rounds and steps k = 0 .. K - 1 of
            ``E||x_m(r, k) - xbar(r, k)||^2``.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, B=1.0)
        >>> sizes = dict(local_steps=5, rounds=20, clients=10)
        >>> value = shadow_bound(constants, drift=0.02, lr=0.1, **sizes)  # 0.05 + 0.01 + 0.02
        >>> round(float(value), 3)
        0.08
    """
    L, B, lr, K = positive(constants, "L", "B", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, drift = non_negative(constants, "sigma", drift=drift)
    value = _shadow_terms(drift, lr, L, sigma, M, K, R, B)
    return where_valid(value, at_most(lr, 1 / (4 * L)), SMALL_LR)


def drift_bound(constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar) -> Array:
    r"""``E||x_m(r, k) - xbar(r, k)||^2``, for every client, round and step k < K.

    .. math:: 4 K \eta^2 \sigma^2 + 18 K^2 \eta^2 \zeta^2

    Needs L, sigma, zeta.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, Lemma 2.4.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, zeta=0.0)
        >>> round(float(drift_bound(constants, lr=0.1, local_steps=5)), 3)
        0.2
    """
    L, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    sigma, zeta = non_negative(constants, "sigma", "zeta")
    return where_valid(_drift_terms(lr, sigma, zeta, K), at_most(lr, 1 / (4 * L)), SMALL_LR)


def fourth_moment_bound(constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar) -> Array:
    r"""``E||x_m(r, k) - xbar(r, k)||^4``, the mean over clients: ``192 lr^4 K^2 sigma^4``.

    All clients have one objective; sigma bounds both moments of the noise.

    Needs L, sigma, sigma4.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, Lemma
    2.20, with the learning rates of its proof (see the errata).

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, sigma4=1.0)
        >>> round(float(fourth_moment_bound(constants, lr=0.1, local_steps=5)), 3)
        0.48
    """
    L, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    value = 192 * lr**4 * K**2 * both_moments(constants) ** 4  # Lemma 2.20
    return where_valid(value, at_most(lr, 1 / (4 * L)), SMALL_LR)


def gradient_gap_bound(constants: ProblemConstants, *, fourth_moment: Scalar) -> Array:
    r"""``||grad F(xbar) - mean_m grad F(x_m)||^2``.

    .. math:: \frac{Q^2}{4 M} \sum_m \|x_m - \bar x\|^4

    Needs Q.  Source: thesis, Lemma A.14.

    Args:
        fourth_moment: mean over clients of ``||x_m - xbar||^4``.

    Example:
        >>> float(gradient_gap_bound(ProblemConstants(Q=2.0), fourth_moment=0.5))
        0.5
    """
    Q, fourth_moment = non_negative(constants, "Q", fourth_moment=fourth_moment)
    return Q**2 / 4 * fourth_moment  # Lemma A.14


def bias_bound(constants: ProblemConstants, *, lr: Scalar, steps: Scalar) -> Array:
    r"""Upper bound of ``||E x_k - z_k||`` from any start.

    .. math:: \min\Bigl\{\tfrac14 \eta^3 k^2 Q \sigma^2,\ 4 \eta^2 k^{3/2} L \sigma,\
        \eta \sqrt{k} \sigma\Bigr\}

    Needs L, sigma; without Q the first entry is left out.  NaN with a warning where ``lr > 1 / L``.
    Source: thesis, Theorems A.1 and A.7 (2.6 and 2.15).

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0)
        >>> round(float(bias_bound(constants, lr=0.01, steps=4)), 4)  # 4 * 1e-4 * 8
        0.0032
        >>> float(bias_bound(constants._replace(Q=0.0), lr=0.01, steps=4))  # quadratics
        0.0
    """
    L, lr, k = positive(constants, "L", lr=lr, steps=steps)
    (sigma,) = non_negative(constants, "sigma")
    value = smallest(4 * lr**2 * k**1.5 * L * sigma, lr * jnp.sqrt(k) * sigma)  # Theorem A.1
    Q = optional(constants, "Q")
    if Q is not None:
        value = smallest(value, lr**3 * k**2 * Q * sigma**2 / 4)  # Theorem A.7
    return where_valid(value, at_most(lr, 1 / L), "lr <= 1 / L")


def growth_bias_bound(constants: ProblemConstants, *, lr: Scalar, steps: Scalar) -> Array:
    r"""The bound of ``||E x_k - z_k||`` before its simplification, for small ``lr L k``.

    .. math:: \frac{(1 + \eta L)^k - 1}{\eta L}\, 2 \eta^2 L \sqrt{k} \sigma

    Needs L, sigma.  NaN with a warning where ``lr > 1 / L``.  Source: thesis, Lemma A.2.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0)
        >>> value = growth_bias_bound(constants, lr=0.01, steps=4)
        >>> round(float(value), 5)  # half of bias_bound
        0.00162
    """
    L, lr, k = positive(constants, "L", lr=lr, steps=steps)
    (sigma,) = non_negative(constants, "sigma")
    # Without noise there is no bias, and a growth beyond all numbers times 0 would be NaN.
    exponent = jnp.where(sigma == 0, 0, k * jnp.log1p(lr * L))
    growth = jnp.expm1(exponent) / (lr * L)
    value = growth * 2 * lr**2 * L * jnp.sqrt(k) * sigma  # Lemma A.2
    return where_valid(value, at_most(lr, 1 / L), "lr <= 1 / L")


def bias_lower_bound(constants: ProblemConstants, *, lr: Scalar, steps: Scalar) -> Array:
    r"""A bias from the optimum that some L-smooth objectives exceed.

    .. math:: 0.002 \min\{\eta^2 k^{3/2} L \sigma,\ \eta^{1/2} L^{-1/2} \sigma\}

    Needs L, sigma.  NaN with a warning where ``lr > 1 / (2 L)`` or k < 2.  Source: thesis, Theorem
    A.4 (2.7), for k >= 2 (see the errata).

    Example:
        >>> f"{bias_lower_bound(ProblemConstants(L=1.0, sigma=1.0), lr=0.01, steps=4):.1e}"
        '1.6e-06'
    """
    L, lr, k = positive(constants, "L", lr=lr, steps=steps)
    (sigma,) = non_negative(constants, "sigma")
    value = 0.002 * smallest(lr**2 * k**1.5 * L, jnp.sqrt(lr / L)) * sigma  # Theorem A.4
    return where_valid(value, at_most(lr, 1 / (2 * L)) & (k >= 2), "lr <= 1 / (2 L) and k >= 2")


def third_order_bias_lower_bound(
    constants: ProblemConstants, *, lr: Scalar, steps: Scalar, horizon: Scalar
) -> Array:
    r"""A bias from the optimum that some objectives with Q-Lipschitz Hessian exceed.

    .. math:: 0.005\, \eta^3 \sigma^2 Q \min\Bigl\{\frac{k - 1}{\eta L},\ k (k - 1)\Bigr\}

    Needs L, sigma, Q.  NaN with a warning where ``lr > 1 / (2 L)``, ``Q > L^2 / (12 K sigma)`` or
    ``k >= K``.  Source: thesis, Theorem A.9 (2.16).

    Args:
        horizon: K, the number of steps that the objective is made for; more than k.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, Q=0.01)
        >>> float(third_order_bias_lower_bound(constants, lr=0.01, steps=1, horizon=5))
        0.0
    """
    L, lr, k, K = positive(constants, "L", lr=lr, steps=steps, horizon=horizon)
    sigma, Q = non_negative(constants, "sigma", "Q")
    factor = smallest((k - 1) / (lr * L), k * (k - 1))
    value = 0.005 * lr**3 * sigma**2 * Q * factor  # Theorem A.9
    valid = at_most(lr, 1 / (2 * L)) & at_most(12 * K * sigma * Q, L**2) & (k < K)
    return where_valid(value, valid, "lr <= 1 / (2 L), Q <= L^2 / (12 K sigma) and k < K")


def _drift_terms(lr: Array, sigma: Array, zeta: Array, K: Array) -> Array:
    """The two terms of Lemma 2.4."""
    return 4 * K * lr**2 * sigma**2 + 18 * K**2 * lr**2 * zeta**2


def _shadow_terms(
    drift: Array, lr: Array, L: Array, sigma: Array, M: Array, K: Array, R: Array, B: Array
) -> Array:
    return B**2 / (2 * lr * K * R) + lr * sigma**2 / M + L * drift  # Lemma 2.3


def _log_ratios(
    mu: Array, Q: Array, sigma: Array, M: Array, K: Array, R: Array, B: Array
) -> tuple[Array, Array]:
    a = log_monomial((mu, 2), (M, 1), (K, 2), (R, 2), (B, 2), (sigma, -2))
    b = log_monomial((mu, 6), (K, 3), (R, 5), (B, 2), (Q, -2), (sigma, -4))
    return a, b
