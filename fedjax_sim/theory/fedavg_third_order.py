r"""FedAvg on convex objectives that are close to quadratic: the Hessian is ``Q``-Lipschitz.

From Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Section 2.4.3.  All clients have one objective.  ``sigma^2`` bounds the noise's
variance and ``sigma^4`` its fourth central moment; noise of fixed norm meets both with equality,
isotropic Gaussian noise in d dimensions has the fourth moment ``(1 + 2 / d)`` times its squared
variance.  Other constants are those of :mod:`~fedjax_sim.theory.fedavg`.

Slips of the thesis:

* Theorem 2.19 and Lemma 2.20 allow ``lr <= 1 / (2 L)``; their proofs use ``lr <= 1 / (4 L)``, which
  is the default.  ``form="printed"`` has the former.
* Theorem 2.19 has its constants in O(); those of :func:`tuned_third_order_bound` follow from
  inserting its step size.
"""

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
from fedjax_sim.theory.step_sizes import smallest
from fedjax_sim.types import Scalar


def fourth_moment_bound(*, lr: Scalar, L: Scalar, sigma: Scalar, K: Scalar) -> Array:
    r"""``E||x_m(r, k) - xbar(r, k)||^4``, the mean over clients: ``192 lr^4 K^2 sigma^4``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``.

    Raises:
        ValueError: a constant that is not positive (sigma: negative).

    References:
        Thesis, Lemma 2.20.

    Example:
        >>> round(float(fourth_moment_bound(lr=0.1, L=1.0, sigma=1.0, K=5)), 3)
        0.48
    """
    lr, L, K = positive(lr=lr, L=L, K=K)
    (sigma,) = non_negative(sigma=sigma)
    value = 192 * lr**4 * K**2 * sigma**4  # Lemma 2.20
    return where_valid(value, at_most(lr, 1 / (4 * L)), "lr <= 1 / (4 L)")


def gradient_gap_bound(fourth_moment: Scalar, *, Q: Scalar) -> Array:
    r"""``||grad F(xbar) - mean_m grad F(x_m)||^2``, from the mean of ``||x_m - xbar||^4``.

    .. math:: \frac{Q^2}{4 M} \sum_m \|x_m - \bar x\|^4

    Raises:
        ValueError: a negative argument.

    References:
        Thesis, Lemma A.14.

    Example:
        >>> float(gradient_gap_bound(0.5, Q=2.0))
        0.5
    """
    fourth_moment, Q = non_negative(fourth_moment=fourth_moment, Q=Q)
    return Q**2 / 4 * fourth_moment  # Lemma A.14


def third_order_bound(
    *,
    lr: Scalar,
    L: Scalar,
    Q: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
    form: Form = "corrected",
) -> Array:
    r"""``E F(xhat) - F*`` of a weighted mean of all iterates, for any rate.

    .. math:: \frac{3 B^2}{\eta K R} + \frac{\eta \sigma^2}{M} + 96 \eta^5 Q^2 K^3 R \sigma^4

    ``xhat`` weights ``xbar(r, k)``, k = 0 .. K - 1, by ``(1 + 1 / (K R))^-(r K + k + 1)``.

    Args:
        form: which rates are allowed.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``; printed,
        where ``lr > 1 / (2 L)``.

    Raises:
        ValueError: a constant that is not positive (negative for Q, sigma), an unknown form.

    References:
        Thesis, proof of Theorem 2.19.

    Example:
        >>> constants = dict(L=1.0, Q=0.0, sigma=1.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(third_order_bound(lr=0.1, **constants)), 3)  # 0.3 + 0.01
        0.31
    """
    check_choice("form", form, Form)
    lr, L, M, K, R, B = positive(lr=lr, L=L, M=M, K=K, R=R, B=B)
    sigma, Q = non_negative(sigma=sigma, Q=Q)
    overhead = 96 * lr**5 * Q**2 * K**3 * R * sigma**4
    value = 3 * B**2 / (lr * K * R) + lr * sigma**2 / M + overhead  # Theorem 2.19
    factor = 2 if form == "printed" else 4
    return where_valid(value, at_most(lr, 1 / (factor * L)), f"lr <= 1 / ({factor} L)")


def third_order_lr(
    *,
    L: Scalar,
    Q: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    B: Scalar,
    form: Form = "corrected",
) -> Array:
    r"""The rate that Theorem 2.19 prescribes for :func:`third_order_bound`.

    .. math:: \min\Bigl\{\frac{1}{4 L},\ \frac{\sqrt{M} B}{\sqrt{K R} \sigma},\
        \frac{B^{1/3}}{K^{2/3} R^{1/3} Q^{1/3} \sigma^{2/3}}\Bigr\}

    Args:
        form: "printed": with 1 / (2 L).

    Raises:
        ValueError: a constant that is not positive (negative for Q, sigma), an unknown form.

    Example:
        >>> float(third_order_lr(L=1.0, Q=0.0, sigma=0.0, M=10, K=5, R=20, B=1.0))
        0.25
    """
    check_choice("form", form, Form)
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    sigma, Q = non_negative(sigma=sigma, Q=Q)
    return smallest(
        1 / ((2 if form == "printed" else 4) * L),
        jnp.sqrt(M / (K * R)) * B / sigma,
        (B / (K**2 * R)) ** (1 / 3) / (Q * sigma**2) ** (1 / 3),
    )


def tuned_third_order_bound(
    *, L: Scalar, Q: Scalar, sigma: Scalar, M: Scalar, K: Scalar, R: Scalar, B: Scalar
) -> Array:
    r"""What :func:`third_order_bound` is at most at the rate :func:`third_order_lr`.

    .. math:: \frac{12 L B^2}{K R} + \frac{4 \sigma B}{\sqrt{M K R}}
        + \frac{99 Q^{1/3} \sigma^{2/3} B^{5/3}}{K^{1/3} R^{2/3}}

    Raises:
        ValueError: a constant that is not positive (negative for Q, sigma).

    References:
        Thesis, Theorem 2.19; constants by insertion.

    Example:
        >>> constants = dict(L=1.0, Q=0.0, sigma=0.0, M=10, K=5, R=20, B=1.0)
        >>> round(float(tuned_third_order_bound(**constants)), 3)
        0.12
    """
    L, M, K, R, B = positive(L=L, M=M, K=K, R=R, B=B)
    sigma, Q = non_negative(sigma=sigma, Q=Q)
    overhead = (Q * sigma**2 * B**5 / (K * R**2)) ** (1 / 3)
    return (  # Theorem 2.19
        12 * L * B**2 / (K * R) + 4 * sigma * B / jnp.sqrt(M * K * R) + 99 * overhead
    )
