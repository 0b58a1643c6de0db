"""Drift of FedAvg's clients: distances of their iterates from the shadow iterate.

Source: thesis, Section 2.1 and Appendix A.4 (see :mod:`fedjax_sim.theory.fedavg`).
"""

from __future__ import annotations

from jax import Array

from fedjax_sim.theory.conditions import at_most, both_moments, non_negative, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar

__all__ = ["drift_bound", "fourth_moment_bound", "gradient_gap_bound"]

SMALL_LR = "lr <= 1 / (4 L)"


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
    return where_valid(drift_terms(lr, sigma, zeta, K), at_most(lr, 1 / (4 * L)), SMALL_LR)


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


def drift_terms(lr: Array, sigma: Array, zeta: Array, K: Array) -> Array:
    """The two terms of Lemma 2.4; arguments are not checked."""
    return 4 * K * lr**2 * sigma**2 + 18 * K**2 * lr**2 * zeta**2
