r"""Generalisation bounds of FedSWA, FedMoSWA, FedSAM and MoFedSAM.

Source: Section 5.1 and Appendices E, F and I (see :mod:`fedjax_sim.theory.fedswa`), with the
corrections in the errata.  All bounds are for full participation, server rate 1, control variates
of option I and one example per step, and hold for the expectation over minibatches and data.

* The paper assumes L-Lipschitz losses and additionally bounds gradients by
  ``c (L + sigma_g + sigma)``.  L-Lipschitz losses have gradients of norm at most L at every model,
  so sigma, sigma_g and the growth factor c are superfluous: :func:`lipschitz_bound` and
  :func:`fedjax_sim.theory.fedswa.stability.lipschitz_distance_bound` are the smaller bounds.
* The proofs for FedMoSWA treat the control variates as equal on both data sets, but they are
  functions of the data.  Its bounds are given here as published and are not proven.
* The proofs for FedSAM and MoFedSAM do not contain the perturbation: they are those of FedAvg.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import (
    at_most,
    check_choice,
    non_negative,
    positive,
    strong_convexity,
    where_valid,
)
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar

Method = Literal["fedswa", "fedmoswa", "fedsam", "mofedsam"]

VALID_LR = "lr <= 2 / (beta + mu)"


def rate_sum(lr: Scalar, local_steps: Scalar, rho: Scalar = 1.0) -> Array:
    """``sum_k eta_k`` over one round whose rate falls linearly from ``lr`` towards ``rho lr``.

    ``eta_k = lr (1 - k / K) + rho lr k / K`` for k = 0 .. K - 1 (Equation 3), so the sum is
    ``lr (K (1 + rho) + 1 - rho) / 2``.

    Example:
        >>> round(float(rate_sum(1.0, local_steps=50, rho=0.1)), 3)
        27.95
    """
    lr, K = positive(lr=lr, local_steps=local_steps)
    (rho,) = non_negative(rho=rho)
    return lr * (K * (1 + rho) + 1 - rho) / 2


def gradient_growth(
    constants: ProblemConstants, *, rounds: Scalar, rates: Scalar | None = None
) -> Array:
    """The factor c by which a client's gradients may grow over its local steps.

    ``E||g_i(theta_ik)|| <= c (||grad F(theta_t)|| + sigma_gi + sigma)`` with
    ``c = 1 + x e^x``, or ``1 + x`` for strongly convex losses, and ``x = beta rates``.

    Args:
        constants: needs L (beta); uses mu.
        rates: sum of the rates per round, :func:`rate_sum`; by default its maximum, 1 / (beta T).
            This is all that distinguishes FedSWA's c_t from FedSAM's cbar >= c_t (Theorem I.3).

    References:
        Lemmas E.2, E.5 and I.2, corrected (see the errata).

    Example:
        >>> round(float(gradient_growth(ProblemConstants(L=1.0), rounds=20)), 3)
        1.053
    """
    beta, T = positive(constants, "L", rounds=rounds)
    x = 1 / T if rates is None else beta * positive(rates=rates)[0]
    return 1 + x * jnp.exp(x) if strong_convexity(constants) is None else 1 + x


def bound(
    constants: ProblemConstants,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    examples: Scalar,
    lr: Scalar | None = None,
    rho: Scalar = 1.0,
    method: Method = "fedswa",
) -> Array:
    r"""Upper bound of the generalisation gap ``E[F_D(theta_T) - F_S(theta_T)]``.

    .. math:: \varepsilon_{gen} \le \frac{2 L}{m n \beta} A \, (c L + c \sigma_g + c \sigma)

    with the factor c of :func:`gradient_growth` (FedMoSWA: ``sigma_g`` for ``c sigma_g``), and A

    * non-convex: ``sum_{j=1..T} x e^(j x)``, ``x = beta rate_sum(lr, K, rho)``; at x = 1 / T it is
      ``(e - 1) e^(1/T) / (T (e^(1/T) - 1))``,
    * strongly convex: ``(beta + mu) / mu (1 - (1 - q)^(K T))``, ``q = lr beta mu / (beta + mu)``;
      constant rates are the worst of those up to ``lr``.

    This is the recursion of :func:`~fedjax_sim.theory.fedswa.stability.distance_bound` summed;
    dividing a value by L gives the bound of ``E||theta_T - theta'_T||``.

    Needs L (beta), G (L), sigma, sigma_g; losses are strongly convex if mu is known and
    not 0.  NaN with a warning where losses are strongly convex and ``lr > 2 / (beta + mu)``.
    Source: Theorems 5.1, F.3 and I.3, corrected (see the errata).

    Args:
        lr: the largest rate of a client; by default the largest that the theorems allow,
            1 / (beta K T).
        rho: last rate of each round over its first (1 for FedSAM, MoFedSAM).
        method: the algorithm.

    Raises:
        ValueError: a missing or negative constant; an unknown method.

    Example:
        >>> constants = ProblemConstants(L=1.0, G=1.0, sigma=1.0, sigma_g=0.5)
        >>> sizes = dict(local_steps=5, rounds=20, clients=5, examples=20)
        >>> round(float(bound(constants, **sizes)), 4)
        0.0927
    """
    check_choice("method", method, Method)
    (beta,) = positive(constants, "L")
    lr, rates = _rates(beta, lr, local_steps, rounds, rho)
    front, condition = _front(constants, lr, rates, local_steps, rounds, clients, examples)
    (L,) = positive(constants, "G")
    sigma, sigma_g = non_negative(constants, "sigma", "sigma_g")
    c = gradient_growth(constants, rounds=rounds, rates=rates)
    heterogeneity = sigma_g if method == "fedmoswa" else c * sigma_g
    return where_valid(front * (c * L + heterogeneity + c * sigma), condition, VALID_LR)


def lipschitz_bound(
    constants: ProblemConstants,
    *,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    examples: Scalar,
    lr: Scalar | None = None,
    rho: Scalar = 1.0,
) -> Array:
    r"""The generalisation gap of FedSWA and FedAvg without sigma and sigma_g.

    .. math:: \varepsilon_{gen} \le \frac{2 L}{m n \beta} A \, L

    with A of :func:`bound`.  The proof replaces the paper's bound of ``E||g_i(theta_ik)||`` by L,
    which holds because the losses are L-Lipschitz.  It does not cover methods whose local steps are
    not gradients at the client's model (SAM, control variates).

    Needs L (beta), G (L); losses are strongly convex if mu is known and not 0.  NaN with a
    warning where losses are strongly convex and ``lr > 2 / (beta + mu)``.

    Args:
        lr, rho: as in :func:`bound`.

    Example:
        >>> sizes = dict(local_steps=5, rounds=20, clients=5, examples=20)
        >>> round(float(lipschitz_bound(ProblemConstants(L=1.0, G=1.0), **sizes)), 4)
        0.0352
    """
    (beta,) = positive(constants, "L")
    lr, rates = _rates(beta, lr, local_steps, rounds, rho)
    front, condition = _front(constants, lr, rates, local_steps, rounds, clients, examples)
    return where_valid(front * positive(constants, "G")[0], condition, VALID_LR)


def _rates(
    beta: Array, lr: Scalar | None, local_steps: Scalar, rounds: Scalar, rho: Scalar
) -> tuple[Array, Array]:
    """The largest rate, and the sum of the rates per round."""
    K, T = positive(local_steps=local_steps, rounds=rounds)
    (lr,) = positive(lr=1 / (beta * K * T) if lr is None else lr)
    return lr, rate_sum(lr, K, rho)


def _front(
    constants: ProblemConstants,
    lr: Array,
    rates: Array,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    examples: Scalar,
) -> tuple[Array, Array]:
    """``2 L A / (m n beta)``, and whether the rate is allowed."""
    beta, L, m, n = positive(constants, "L", "G", clients=clients, examples=examples)
    K, T = positive(local_steps=local_steps, rounds=rounds)
    mu = strong_convexity(constants)
    if mu is None:
        condition, x = jnp.array(True), beta * rates
        growth = x * jnp.exp(x) * jnp.expm1(T * x) / jnp.expm1(x)  # sum_{j=1..T} x e^(j x)
    else:
        condition = at_most(lr, 2 / (beta + mu))
        q = lr * beta * mu / (beta + mu)
        growth = -(beta + mu) / mu * jnp.expm1(K * T * jnp.log1p(-q))
    return 2 * L / (m * n * beta) * growth, condition
