r"""Lemmas behind the bounds of :mod:`fedjax_sim.theory.lojasiewicz`, in its symbols."""

from jax import Array

from fedjax_sim.theory import (
    ONE_ROUND,
    ProblemConstants,
    Scalar,
    at_most,
    exponent,
    non_negative,
    one_round,
    one_round_condition,
    positive,
    where_valid,
)


def gradient_lower_bound(constants: ProblemConstants, *, gap: Scalar) -> Array:
    r"""Lower bound of ``||grad F(theta)||^2``; where it is negative it has no content.

    .. math:: \mu\, (F(\theta) - F^*)^\alpha - \zeta^2

    It is the mean of the clients' inequalities, by ``||grad F||^2 = (1 / M) sum_c ||grad f_c||^2 -
    (1 / M) sum_c ||grad f_c - grad F||^2`` and Jensen's inequality.

    Needs lojasiewicz_mu, lojasiewicz_alpha, zeta_mean.  Source: Equation 19, of which the appendix
    shows the use.

    Args:
        gap: ``F(theta) - F*``.
    """
    alpha = exponent(constants)
    (mu,) = positive(constants, "lojasiewicz_mu")
    zeta, gap = non_negative(constants, "zeta_mean", gap=gap)
    return mu * gap**alpha - zeta**2


def drift_bound(
    constants: ProblemConstants, *, squared_gradient: Scalar, lr: Scalar, local_steps: Scalar
) -> Array:
    r"""Distance of the clients from the round's first model, given that model.

    .. math:: \frac{1}{M K} \sum_c \sum_{k=1}^{K-1} E \|\theta_r - \theta_{r,k}^c\|^2
        \le 4 \eta^2 (K-1)^2 (\|\nabla F(\theta_r)\|^2 + \zeta^2) + 4 \eta^2 (K-1) \sigma^2

    Needs L, sigma, zeta_mean.  NaN with a warning where ``lr > 1 / (2 L K)``.  Source: Lemma F.1
    (see the errata).

    Args:
        squared_gradient: ``||grad F(theta_r)||^2``, or its mean over runs.
    """
    L, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    sigma, zeta, squared = non_negative(
        constants, "sigma", "zeta_mean", squared_gradient=squared_gradient
    )
    value = 4 * lr**2 * ((K - 1) ** 2 * (squared + zeta**2) + (K - 1) * sigma**2)
    return where_valid(value, at_most(lr, 1 / (2 * L * K)), "lr <= 1 / (2 L K)")


def round_bound(
    constants: ProblemConstants,
    *,
    gap: Scalar,  # ``F(theta_r) - F*``
    squared_gradient: Scalar,  # ``||grad F(theta_r)||^2``
    lr: Scalar,
    local_steps: Scalar,
    clients: Scalar,
    rounded: bool = False,  # with the paper's rounder and larger numbers
) -> Array:
    r"""The gap after one round, given the model before it.

    .. math:: E F(\theta_{r+1}) - F^* \le F(\theta_r) - F^* - A \|\nabla F(\theta_r)\|^2
        + c\, \zeta^2 + n

    * A, c and n as in :func:`fedjax_sim.theory.lojasiewicz.recursion_bound`;
    * rounded, every K: ``A = lr K / 4``, ``c = lr K`` and
      ``n = (4 lr^2 K L / M + 3 lr^3 K (K - 1) L^2) sigma^2``.

    Needs L, sigma, zeta_mean.  NaN with a warning where ``lr > 1 / (18 L K)``; for K = 1, unless
    rounded, where ``lr > 1 / L``.  Source: Equation 39 and, not rounded, the display before it; for
    K = 1 Equation 35.
    """
    L, lr, K, M = positive(constants, "L", lr=lr, local_steps=local_steps, clients=clients)
    gap, squared = non_negative(gap=gap, squared_gradient=squared_gradient)
    sigma, zeta = non_negative(constants, "sigma", "zeta_mean")
    if rounded:
        noise = 4 * lr**2 * K * L / M + 3 * lr**3 * K * (K - 1) * L**2
        value = gap + lr * K * (zeta**2 - squared / 4) + noise * sigma**2  # Equation 39
        return where_valid(value, at_most(lr, 1 / (18 * L * K)), "lr <= 1 / (18 L K)")
    descent, spread, noise = one_round(lr, L, sigma, M, K)
    value = gap - descent * squared + spread * zeta**2 + noise
    return where_valid(value, one_round_condition(lr, L, K), ONE_ROUND)
