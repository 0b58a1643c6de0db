r"""Lemmas behind the bounds of :mod:`fedjax_sim.theory.feddualavg`, in its symbols."""

from typing import Literal

from jax import Array

from fedjax_sim.theory import (
    VALID_LR,
    ProblemConstants,
    Scalar,
    at_most,
    check_choice,
    dual_discrepancy,
    non_negative,
    positive,
    where_valid,
)


def dual_shadow_bound(
    constants: ProblemConstants,
    *,
    discrepancy: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""``E Phi(xhat) - Phi(x*)`` with unit server rate, from the measured discrepancy.

    .. math:: \frac{B_h^2}{\eta K R} + \frac{\eta \sigma^2}{M} + L \cdot discrepancy

    Needs L, sigma, B_h.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, Lemma 4.9.

    Args:
        discrepancy: mean over clients, rounds and steps k = 0 .. K - 1 of
            ``E||y_m(r, k) - ybar(r, k)||_*^2``.
    """
    L, B, lr, K = positive(constants, "L", "B_h", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, discrepancy = non_negative(constants, "sigma", discrepancy=discrepancy)
    value = B**2 / (lr * K * R) + lr * sigma**2 / M + L * discrepancy  # Lemma 4.9
    return where_valid(value, at_most(lr, 1 / (4 * L)), VALID_LR)


def discrepancy_bound(
    constants: ProblemConstants,
    regime: Literal["bounded gradients", "quadratic"],
    *,
    lr: Scalar,
    local_steps: Scalar,
) -> Array:
    r"""``E||y_m - ybar||_*^2``, the discrepancy of the clients' dual states.

    * bounded gradients (Lemma C.12): ``4 eta^2 (K - 1)^2 G^2``; needs G;
    * quadratic (proof of Theorem 4.7): ``eta^2 (7 K sigma^2 + 14 K^2 zeta^2)``; needs L, sigma,
      zeta.  NaN with a warning where ``lr > 1 / (4 L)``.
    """
    check_choice("regime", regime, Literal["bounded gradients", "quadratic"])
    lr, K = positive(lr=lr, local_steps=local_steps)
    value = dual_discrepancy(constants, regime, lr, K)
    if regime == "bounded gradients":
        return value
    (L,) = positive(constants, "L")
    return where_valid(value, at_most(lr, 1 / (4 * L)), VALID_LR)
