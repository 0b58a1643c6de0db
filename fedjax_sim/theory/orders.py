r"""Rates of FedAvg, FedAc and their baselines that are known up to constants, those taken as 1.

From Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Chapter 2 and Table 3.1.  Constants are those of :mod:`~fedjax_sim.theory.fedavg`; ``zeta_star^2``
is the mean of ``||grad F_m(x*)||^2``.  Compare how such rates change, not their values: none is a
bound before it is multiplied by an unknown constant, and Table 3.1 hides logarithms.

Slips of the thesis, corrected by default and kept under ``form="printed"``:

* Table 2.1 prints ``K^(1/3)`` in the older lower bound, the text ``K^(2/3)``.
* Table 3.1 prints ``mu^3`` in FedAvg's last term under a Lipschitz Hessian; Theorem B.18 has
  ``mu^5``.
* Table 3.1 prints ``R^(2/3)`` in FedAc's last term for mu = 0; Theorem B.23 has ``R^(4/3)``.
"""

from typing import Literal

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
from fedjax_sim.theory.step_sizes import log_monomial, smallest
from fedjax_sim.types import Scalar

Baseline = Literal["minibatch", "single_client", "best_of_both", "older_lower_bound"]
Method = Literal["fedavg", "fedac"]


def fedavg_lower_bound(
    *,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
    zeta_star: Scalar = 0.0,
) -> Array:
    r"""There are convex problems on which FedAvg's last error is of this order for every rate.

    .. math:: \frac{L B^2}{K R} + \min\Bigl\{L B^2,\ \frac{\sigma B}{\sqrt{M K R}}
        + \min\Bigl\{\frac{\sigma B}{\sqrt{K R}},
        \frac{L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R^{2/3}}\Bigr\}
        + \min\Bigl\{\frac{\zeta_*^2}{L},
        \frac{L^{1/3} \zeta_*^{2/3} B^{4/3}}{R^{2/3}}\Bigr\}\Bigr\}

    Args:
        zeta_star: 0: clients have one objective.  Else the theorem needs an even M.

    Returns:
        The order; NaN, and for concrete arguments a warning, where ``K < 2``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, zeta_star).

    References:
        Thesis, Theorems 2.8 and 2.10.

    Example:
        >>> float(fedavg_lower_bound(L=1.0, sigma=0.0, M=2, K=2, R=2, B=1.0))
        0.25
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    sigma, zeta_star = non_negative(sigma=sigma, zeta_star=zeta_star)
    bias = smallest(sigma * B / jnp.sqrt(K * R), _drift(L, sigma, B, R) / K ** (1 / 3))
    heterogeneity = smallest(zeta_star**2 / L, _drift(L, zeta_star, B, R))
    noise = sigma * B / jnp.sqrt(M * K * R)
    # Theorem 2.10; 2.8 for zeta_star = 0
    value = L * B**2 / (K * R) + smallest(L * B**2, noise + bias + heterogeneity)
    return where_valid(value, K >= 2, "K >= 2")


def fedavg_upper_bound(
    *, L: Scalar, sigma: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""The order of FedAvg's best error on one convex objective, which the lower bound matches.

    .. math:: \min\Bigl\{L B^2,\ \frac{L B^2}{K R} + \frac{\sigma B}{\sqrt{K R}},\
        \frac{L B^2}{K R} + \frac{\sigma B}{\sqrt{M K R}}
        + \frac{L^{1/3} \sigma^{2/3} B^{4/3}}{K^{1/3} R^{2/3}}\Bigr\}

    Raises:
        ValueError: a constant that is not positive (sigma: negative).

    References:
        Thesis, Remark 2.2 and Theorem 2.8.

    Example:
        >>> float(fedavg_upper_bound(L=1.0, sigma=0.0, M=2, K=2, R=2, B=1.0))
        0.25
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    (sigma,) = non_negative(sigma=sigma)
    steps = L * B**2 / (K * R)
    many = sigma * B / jnp.sqrt(M * K * R) + _drift(L, sigma, B, R) / K ** (1 / 3)
    return smallest(L * B**2, steps + sigma * B / jnp.sqrt(K * R), steps + many)


def baseline_rate(
    method: Baseline,
    *,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
    form: Form = "corrected",
) -> Array:
    r"""Rates to put beside FedAvg's on one convex objective.

    * ``"minibatch"``: ``L B^2 / R + sigma B / sqrt(M K R)``
    * ``"single_client"``: ``L B^2 / (K R) + sigma B / sqrt(K R)``
    * ``"best_of_both"``:
      ``L B^2 / (K R) + sigma B / sqrt(M K R) + min(L B^2 / R, sigma B / sqrt(K R))``
    * ``"older_lower_bound"`` of FedAvg:
      ``L B^2 / (K R) + sigma B / sqrt(M K R) + (L sigma^2 B^4 / (K R)^2)^(1/3)``; printed with
      ``K`` for ``K^2``

    Raises:
        ValueError: a constant that is not positive (sigma: negative), an unknown method or form.

    References:
        Thesis, Section 2.3 and Table 2.1.

    Example:
        >>> float(baseline_rate("minibatch", L=1.0, sigma=1.0, M=4, K=2, R=2, B=1.0))
        0.75
    """
    check_choice("method", method, Baseline)
    check_choice("form", form, Form)
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    (sigma,) = non_negative(sigma=sigma)
    noise, alone = sigma * B / jnp.sqrt(M * K * R), sigma * B / jnp.sqrt(K * R)
    steps, rounds = L * B**2 / (K * R), L * B**2 / R
    if method == "minibatch":
        return rounds + noise
    if method == "single_client":
        return steps + alone
    if method == "best_of_both":
        return steps + noise + smallest(rounds, alone)
    return steps + noise + _drift(L, sigma, B, R) / K ** (1 / 3 if form == "printed" else 2 / 3)


def table_rate(
    method: Method,
    *,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
    mu: Scalar | None = None,
    Q: Scalar | None = None,
    form: Form = "corrected",
) -> Array:
    r"""Table 3.1's rates for one objective: what acceleration and a Lipschitz Hessian change.

    Strongly convex, ``E(t) L B^2 + sigma^2 / (mu M K R) +`` the overhead of local steps:

    * FedAvg: ``L sigma^2 / (mu^2 K R^2)``; with ``Q`` ``Q^2 sigma^4 / (mu^5 K^2 R^4)``
      (printed: ``mu^3``),
    * FedAc: ``min(L sigma^2 / (mu^2 K R^3), L^2 sigma^2 / (mu^3 K R^4))``; with ``Q``
      ``Q^2 sigma^4 / (mu^5 K^2 R^8)``,

    where E is ``exp(-mu K R / L)`` for FedAvg (Proposition 3.2) and for FedAc the smaller of it and
    ``exp(-sqrt(mu K / L) R)`` (Theorem 3.1).  Convex:

    * FedAvg: ``L B^2 / (K R) + sigma B / sqrt(M K R) +``
      ``(L sigma^2 B^4 / (K R^2))^(1/3)``, with ``Q`` ``(Q sigma^2 B^5 / (K R^2))^(1/3)``,
    * FedAc: ``L B^2 / (K R^2) + sigma B / sqrt(M K R) +``
      ``min((L sigma^2 B^4 / K)^(1/3) / R, (L sigma B^3)^(1/2) / (K^(1/4) R))``, with ``Q``
      ``(L sigma^2 B^4 / (M K))^(1/3) / R + (Q sigma^2 B^5 / (K R^4))^(1/3)`` (printed: ``R^2``).

    FedAc's two entries in a minimum are those of FedAc-I and FedAc-II.

    Args:
        mu: strong convexity; None: convex.
        Q: Lipschitz constant of the Hessian; None: unknown.

    Returns:
        The rate; NaN, and for concrete arguments a warning, where ``mu > L``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, Q), an unknown method or
            form.

    Example:
        >>> constants = dict(L=1.0, sigma=1.0, M=4, K=4, R=4, B=1.0)
        >>> float(table_rate("fedac", **constants, Q=0.0)) < float(table_rate("fedac", **constants))
        True
    """
    check_choice("method", method, Method)
    check_choice("form", form, Form)
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    (sigma,) = non_negative(sigma=sigma)
    Q = None if Q is None else non_negative(Q=Q)[0]
    fast, printed = method == "fedac", form == "printed"
    if mu is None:
        start = L * B**2 / (K * R ** (2 if fast else 1)) + sigma * B / jnp.sqrt(M * K * R)
        third = (L * sigma**2 * B**4 / K) ** (1 / 3)
        if Q is None:
            fourth = jnp.sqrt(L * sigma * B**3) / (K**0.25 * R)
            return start + (smallest(third / R, fourth) if fast else third / R ** (2 / 3))
        hessian = (Q * sigma**2 * B**5 / K) ** (1 / 3) / R ** (2 / 3)
        if not fast:
            return start + hessian
        return start + third / (M ** (1 / 3) * R) + hessian / (1 if printed else R ** (2 / 3))
    (mu,) = positive(mu=mu)
    exponent = mu * K * R / L
    if fast:
        exponent = jnp.maximum(exponent, jnp.sqrt(mu * K / L) * R)
    start = jnp.exp(-exponent) * L * B**2 + sigma**2 / (mu * M * K * R)
    if Q is not None:  # the logarithm: R^8 leaves single precision
        powers = (-5, -8) if fast else (-3 if printed else -5, -4)
        log = log_monomial((Q, 2), (sigma, 4), (mu, powers[0]), (K, -2), (R, powers[1]))
        value = start + jnp.exp(log)
    else:
        base = L * sigma**2 / (mu**2 * K * R**2)
        value = start + (smallest(base / R, base * L / (mu * R**2)) if fast else base)
    return where_valid(value, at_most(mu, L), "mu <= L")


def _drift(L: Array, noise: Array, B: Array, R: Array) -> Array:
    return (L * noise**2 * B**4 / R**2) ** (1 / 3)
