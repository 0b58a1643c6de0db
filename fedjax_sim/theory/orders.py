r"""Rates of FedAvg, FedAc and their baselines that are known up to constants, those taken as 1.

From Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Chapter 2 and Tables 2.1 and 3.1, with the corrections in the errata.  Compare how such rates
change, not their values: none is a bound before it is multiplied by an unknown constant, and Table
3.1 hides logarithms.

In formulas M is ``clients``, K ``local_steps`` and R ``rounds``.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import (
    at_most,
    check_choice,
    non_negative,
    optional,
    positive,
    strong_convexity,
    where_valid,
)
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import log_monomial, smallest

Baseline = Literal["minibatch", "single_client", "best_of_both", "older_lower_bound"]
Method = Literal["fedavg", "fedac"]


def fedavg_lower_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""An order that FedAvg's last error exceeds on some convex problems, for every rate.

    .. math:: \frac{L B^2}{K R} + \min\Bigl\{L B^2,\ \frac{\sigma B}{\sqrt{M K R}}
        + \min\Bigl\{\frac{\sigma B}{\sqrt{K R}},
        \frac{L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R^{2/3}}\Bigr\}
        + \min\Bigl\{\frac{\zeta_*^2}{L},
        \frac{L^{1/3} \zeta_*^{2/3} B^{4/3}}{R^{2/3}}\Bigr\}\Bigr\}

    Needs L, sigma, B, zeta_star. zeta_star is 0 if clients have one objective; otherwise the
    theorem needs an even M.  NaN with a warning where ``K < 2``.  Source: thesis, Theorems 2.8 and
    2.10.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta_star=0.0, B=1.0)
        >>> float(fedavg_lower_bound(constants, local_steps=2, rounds=2, clients=2))
        0.25
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, zeta_star = non_negative(constants, "sigma", "zeta_star")
    bias = smallest(sigma * B / jnp.sqrt(K * R), _drift(L, sigma, B, R) / K ** (1 / 3))
    heterogeneity = smallest(zeta_star**2 / L, _drift(L, zeta_star, B, R))
    noise = sigma * B / jnp.sqrt(M * K * R)
    # Theorem 2.10; 2.8 for zeta_star = 0
    value = L * B**2 / (K * R) + smallest(L * B**2, noise + bias + heterogeneity)
    return where_valid(value, K >= 2, "K >= 2")


def fedavg_upper_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The order of FedAvg's best error on one convex objective, which the lower bound matches.

    .. math:: \min\Bigl\{L B^2,\ \frac{L B^2}{K R} + \frac{\sigma B}{\sqrt{K R}},\
        \frac{L B^2}{K R} + \frac{\sigma B}{\sqrt{M K R}}
        + \frac{L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R^{2/3}}\Bigr\}

    Needs L, sigma, B.  Source: thesis, Remark 2.2 and Theorem 2.8.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B=1.0)
        >>> float(fedavg_upper_bound(constants, local_steps=2, rounds=2, clients=2))
        0.25
    """
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    steps = L * B**2 / (K * R)
    many = sigma * B / jnp.sqrt(M * K * R) + _drift(L, sigma, B, R) / K ** (1 / 3)
    return smallest(L * B**2, steps + sigma * B / jnp.sqrt(K * R), steps + many)


def baseline_rate(
    constants: ProblemConstants,
    method: Baseline,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""Rates to compare with FedAvg's on one convex objective.

    * ``"minibatch"``: ``L B^2 / R + sigma B / sqrt(M K R)``
    * ``"single_client"``: ``L B^2 / (K R) + sigma B / sqrt(K R)``
    * ``"best_of_both"``:
      ``L B^2 / (K R) + sigma B / sqrt(M K R) + min(L B^2 / R, sigma B / sqrt(K R))``
    * ``"older_lower_bound"`` of FedAvg:
      ``L B^2 / (K R) + sigma B / sqrt(M K R) + (L sigma^2 B^4 / (K R)^2)^(1/3)``

    Needs L, sigma, B.  Source: thesis, Section 2.3 and Table 2.1 (see the errata).

    Raises:
        ValueError: a missing or negative constant; an unknown method.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, B=1.0)
        >>> float(baseline_rate(constants, "minibatch", local_steps=2, rounds=2, clients=4))
        0.75
    """
    check_choice("method", method, Baseline)
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    noise, alone = sigma * B / jnp.sqrt(M * K * R), sigma * B / jnp.sqrt(K * R)
    first, per_round = L * B**2 / (K * R), L * B**2 / R
    if method == "minibatch":
        return per_round + noise
    if method == "single_client":
        return first + alone
    if method == "best_of_both":
        return first + noise + smallest(per_round, alone)
    return first + noise + _drift(L, sigma, B, R) / K ** (2 / 3)


def table_rate(
    constants: ProblemConstants,
    method: Method,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""Table 3.1's rates for one objective: what acceleration and a Lipschitz Hessian change.

    Strongly convex, ``E(t) L B^2 + sigma^2 / (mu M K R) +`` the overhead of local steps:

    * FedAvg: ``L sigma^2 / (mu^2 K R^2)``; with Q ``Q^2 sigma^4 / (mu^5 K^2 R^4)``,
    * FedAc: ``min(L sigma^2 / (mu^2 K R^3), L^2 sigma^2 / (mu^3 K R^4))``; with Q
      ``Q^2 sigma^4 / (mu^5 K^2 R^8)``,

    where E is ``exp(-mu K R / L)`` for FedAvg (Proposition 3.2) and for FedAc the smaller of it and
    ``exp(-sqrt(mu K / L) R)`` (Theorem 3.1).  Convex:

    * FedAvg: ``L B^2 / (K R) + sigma B / sqrt(M K R) +``
      ``(L sigma^2 B^4 / (K R^2))^(1/3)``, with Q ``(Q sigma^2 B^5 / (K R^2))^(1/3)``,
    * FedAc: ``L B^2 / (K R^2) + sigma B / sqrt(M K R) +``
      ``min((L sigma^2 B^4 / K)^(1/3) / R, (L sigma B^3)^(1/2) / (K^(1/4) R))``, with Q
      ``(L sigma^2 B^4 / (M K))^(1/3) / R + (Q sigma^2 B^5 / (K R^4))^(1/3)``.

    FedAc's two entries in a minimum are those of FedAc-I and FedAc-II.

    Needs L, sigma, B; objectives are strongly convex if mu is known and not 0, their Hessian is
    Lipschitz if Q is known.  NaN with a warning where ``mu > L``.  Source: thesis, Table 3.1 (see
    the errata).

    Raises:
        ValueError: a missing or negative constant; an unknown method.

    Example:
        >>> convex = ProblemConstants(L=1.0, sigma=1.0, B=1.0)
        >>> sizes = dict(local_steps=4, rounds=4, clients=4)
        >>> smooth, quadratic = (
        ...     float(table_rate(c, "fedac", **sizes)) for c in (convex, convex._replace(Q=0.0))
        ... )
        >>> quadratic < smooth
        True
    """
    check_choice("method", method, Method)
    L, B, K = positive(constants, "L", "B", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    Q, fast = optional(constants, "Q"), method == "fedac"
    mu = strong_convexity(constants)
    if mu is None:
        start = L * B**2 / (K * R ** (2 if fast else 1)) + sigma * B / jnp.sqrt(M * K * R)
        third = (L * sigma**2 * B**4 / K) ** (1 / 3)
        if Q is None:
            fourth = jnp.sqrt(L * sigma * B**3) / (K**0.25 * R)
            return start + (smallest(third / R, fourth) if fast else third / R ** (2 / 3))
        hessian = (Q * sigma**2 * B**5 / K) ** (1 / 3) / R ** (2 / 3)
        if not fast:
            return start + hessian
        return start + third / (M ** (1 / 3) * R) + hessian / R ** (2 / 3)
    exponent = mu * K * R / L
    if fast:
        exponent = jnp.maximum(exponent, jnp.sqrt(mu * K / L) * R)
    start = jnp.exp(-exponent) * L * B**2 + sigma**2 / (mu * M * K * R)
    if Q is not None:  # the logarithm: R^8 leaves single precision
        power = -8 if fast else -4
        log = log_monomial((Q, 2), (sigma, 4), (mu, -5), (K, -2), (R, power))
        value = start + jnp.exp(log)
    else:
        base = L * sigma**2 / (mu**2 * K * R**2)
        value = start + (smallest(base / R, base * L / (mu * R**2)) if fast else base)
    return where_valid(value, at_most(mu, L), "mu <= L")


def _drift(L: Array, noise: Array, B: Array, R: Array) -> Array:
    return (L * noise**2 * B**4 / R**2) ** (1 / 3)
