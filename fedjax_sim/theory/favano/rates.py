r"""Theorem 1: the mean squared gradient of FAVANO's mean model over T server steps.

Source: see :mod:`fedjax_sim.theory.favano`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.favano.progress import ProgressConstants, checked
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import smallest
from fedjax_sim.types import shown

__all__ = ["RateTerms", "largest_lr", "mean_gradient_bound", "quantization_floor"]

POSSIBLE = "B >= 1, s <= n"


@shown
class RateTerms(NamedTuple):
    """A bound ``start / (lr T) + linear lr + quadratic lr^2``.

    Example:
        >>> terms = RateTerms(start=2.0, linear=0.5, quadratic=0.0)
        >>> lr, rounds = 0.1, 100
        >>> round(terms.start / (lr * rounds) + terms.linear * lr + terms.quadratic * lr**2, 3)
        0.25
    """

    start: Array
    linear: Array
    quadratic: Array


def largest_lr(
    constants: ProblemConstants,
    *,
    progress: ProgressConstants,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""The largest rate of :func:`mean_gradient_bound`.

    The smaller of ``1 / (4 L K^2)`` and

    .. math:: \frac{1}{2 L (c + \sqrt{c^2 + d})}, \qquad c = \frac{4 s b B^2}{n + 1}, \quad
        d = 16 K^2 B^2 + 2880 s^2 b B^2

    with the contraction ``s / (2 n (s + 1))`` of the potential, for every s.

    Needs L, dissimilarity_factor (B).  Source: Lemma B.2.2 and Equation 216 (see the errata).

    Raises:
        ValueError: a constant that is unknown, or a number outside of its range.

    Example:
        >>> constants = ProblemConstants(L=1.0, dissimilarity_factor=1.0)
        >>> sizes = dict(local_steps=20, clients=100, cohort_size=20)
        >>> round(1 / float(largest_lr(constants, progress=ProgressConstants(1.0, 1.0), **sizes)))
        2154
    """
    L, B = positive(constants, "L", "dissimilarity_factor")
    n, s, K = positive(clients=clients, cohort_size=cohort_size, local_steps=local_steps)
    _, b = checked(progress)
    c = 4 * s * b * B**2 / (n + 1)
    d = 16 * (K * B) ** 2 + 2880 * b * (s * B) ** 2
    return smallest(1 / (4 * L * K**2), 1 / (2 * L * (c + jnp.sqrt(c**2 + d))))


def mean_gradient_bound(
    constants: ProblemConstants,
    *,
    lr: Scalar,
    progress: ProgressConstants,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""``1 / T sum_{t < T} E||grad f(mu_t)||^2``.

    .. math:: \frac{2 (n + 1) \Delta}{T s \eta}
        + \frac{L s}{n + 1} \bigl(a \sigma^2 + 8 b G^2\bigr) \eta
        + L^2 \bigl((8 K^2 + 720 s^2 a) \sigma^2 + (32 K^2 + 5760 s^2 b) G^2\bigr) \eta^2

    Needs L, sigma, dissimilarity (G), dissimilarity_factor (B), Delta.  NaN with a warning where
    ``lr`` exceeds :func:`largest_lr`, ``B < 1`` or ``s > n``.  Source: Theorem 1; Equations 225 to
    227 (see the errata).

    Example:
        >>> constants = ProblemConstants(
        ...     L=1.0, sigma=0.0, dissimilarity=0.0, dissimilarity_factor=1.0, Delta=1.0
        ... )
        >>> sizes = dict(local_steps=1, rounds=10**5, clients=9, cohort_size=2)
        >>> progress = ProgressConstants(a=1.0, b=1.0)
        >>> round(float(mean_gradient_bound(constants, lr=1e-3, progress=progress, **sizes)), 6)
        0.1
    """
    lr, T = positive(lr=lr, rounds=rounds)
    terms, limit = rate_terms(
        constants,
        progress=progress,
        local_steps=local_steps,
        clients=clients,
        cohort_size=cohort_size,
    )
    value = terms.start / (lr * T) + terms.linear * lr + terms.quadratic * lr**2
    valid = at_most(lr, limit) & possible(constants, clients, cohort_size)
    return where_valid(value, valid, f"lr <= largest_lr, {POSSIBLE}")


def quantization_floor(constants: ProblemConstants, *, error: Scalar) -> Array:
    """Addend of :func:`mean_gradient_bound` for quantised weights: ``12 L^2 error``.

    Needs L.  Source: Section 4, the last remark; stated without a proof.

    Args:
        error: r_d, the largest ``||Q(x) - x||^2``; of the order ``d / 4^bits``.

    Example:
        >>> float(quantization_floor(ProblemConstants(L=2.0), error=0.5))
        24.0
    """
    (L,), (error,) = positive(constants, "L"), non_negative(error=error)
    return 12 * L**2 * error


def rate_terms(
    constants: ProblemConstants,
    *,
    progress: ProgressConstants,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> tuple[RateTerms, Array]:
    """The coefficients of :func:`mean_gradient_bound` in the rate, and the largest rate."""
    L, Delta = positive(constants, "L", "Delta")
    n, s, K = positive(clients=clients, cohort_size=cohort_size, local_steps=local_steps)
    sigma, G = non_negative(constants, "sigma", "dissimilarity")
    a, b = checked(progress)
    steps = 8 * K**2 * (sigma**2 + 4 * G**2)
    quadratic = steps + 720 * s**2 * (sigma**2 * a + 8 * b * G**2)
    noise = sigma**2 * a + 8 * G**2 * b
    terms = RateTerms(2 * (n + 1) * Delta / s, L * s / (n + 1) * noise, L**2 * quadratic)
    limit = largest_lr(
        constants,
        progress=progress,
        local_steps=local_steps,
        clients=clients,
        cohort_size=cohort_size,
    )
    return terms, limit


def possible(constants: ProblemConstants, clients: Scalar, cohort_size: Scalar) -> Array:
    """``B >= 1`` and ``s <= n``, which every bound assumes."""
    B, n, s = positive(constants, "dissimilarity_factor", clients=clients, cohort_size=cohort_size)
    return (B >= 1) & (s <= n)
