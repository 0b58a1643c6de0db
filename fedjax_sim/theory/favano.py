r"""Convergence of FAVANO, asynchronous averaging with reweighted progress, on smooth objectives.

From "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv:2305.16099.

Constants: n clients, s of them contacted at each of T server steps, at most K local steps between
two contacts; every ``f_i`` is ``L``-smooth; a stochastic gradient has variance at most ``sigma^2``;
``mean_i ||grad f_i||^2 <= G^2 + B^2 ||grad f||^2`` with ``B >= 1``; ``F = f(mu_0) - inf f``.
``mu_t`` is the mean of the server's model and of the clients' at their last contacts
(:func:`fedjax_sim.diagnostics.potential.mean_model`); all start from one model.  A client does
``S = E ^ K`` steps, drawn anew at each contact (:mod:`fedjax_sim.theory.step_counts`), and its
progress is divided by alpha.  ``a`` and ``b`` are of
:func:`fedjax_sim.theory.favano_progress.progress_constants`.

Slips of the paper:

* Theorem 1 loses ``8 K^2 L^2 sigma^2 eta^2 + 32 K^2 L^2 G^2 eta^2``, which its proof ends with
  (Equations 226 and 227), and has 5600 where Equation 222 gives 2 x 2880 = 5760.
* Theorem 1's rate is not what its proof needs.  Lemma B.2.2 needs ``eta < 1 / (4 L K^2)``, and
  Equation 216 needs ``16 L^2 K^2 B^2 eta^2 + 4 L s b B^2 eta / (n + 1)
  + 2880 L^2 s^2 b B^2 eta^2 <= 1 / 4``, which fails at the theorem's rate for K up to 5 and
  b = B = 1, and allows larger rates for large b K.
* Equations 157 and 160 lack sigma^2, Equation 164 has ``8 n G^2`` outside of b's bracket, Equation
  156 ``B^2`` for ``G^2``, Equation 41 lacks ``1 / P(S > 0)^2``; Equation 16 lacks a factor 1/2.
* The error floor ``12 L^2 r_d`` of quantised weights is stated without a proof.
"""

from typing import NamedTuple

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


class RateTerms(NamedTuple):
    """A bound ``start / (lr T) + linear lr + quadratic lr^2``."""

    start: Array
    linear: Array
    quadratic: Array


def largest_lr(
    *, L: Scalar, B: Scalar, b: Scalar, n: Scalar, s: Scalar, K: Scalar, form: Form = "corrected"
) -> Array:
    r"""The largest rate of :func:`mean_gradient_bound`.

    Printed, ``1 / (20 B^2 b K L s)``.  Corrected, the smaller of ``1 / (4 L K^2)`` and

    .. math:: \frac{1}{2 L (c + \sqrt{c^2 + d})}, \qquad c = \frac{4 s b B^2}{n + 1}, \quad
        d = 16 K^2 B^2 + 2880 s^2 b B^2

    With the contraction ``s / (2 n (s + 1))`` of the potential, whatever s.

    Raises:
        ValueError: a constant that is not positive, an unknown form.

    References:
        Theorem 1, Lemma B.2.2 and Equation 216.

    Example:
        >>> sizes = dict(L=1.0, B=1.0, b=1.0, n=100, s=20, K=20)
        >>> [round(1 / float(largest_lr(**sizes, form=form))) for form in ("corrected", "printed")]
        [2154, 8000]
    """
    check_choice("form", form, Form)
    L, B, b, n, s, K = positive(L=L, B=B, b=b, n=n, s=s, K=K)
    if form == "printed":
        return 1 / (20 * B**2 * b * K * L * s)
    c = 4 * s * b * B**2 / (n + 1)
    d = 16 * (K * B) ** 2 + 2880 * b * (s * B) ** 2
    return smallest(1 / (4 * L * K**2), 1 / (2 * L * (c + jnp.sqrt(c**2 + d))))


def mean_gradient_bound(
    *,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    B: Scalar,
    F: Scalar,
    a: Scalar,
    b: Scalar,
    n: Scalar,
    s: Scalar,
    K: Scalar,
    T: Scalar,
    form: Form = "corrected",
) -> Array:
    r"""``1 / T sum_{t < T} E||grad f(mu_t)||^2``.

    .. math:: \frac{2 (n + 1) F}{T s \eta}
        + \frac{L s}{n + 1} \bigl(a \sigma^2 + 8 b G^2\bigr) \eta
        + L^2 \bigl((8 K^2 + 720 s^2 a) \sigma^2 + (32 K^2 + 5760 s^2 b) G^2\bigr) \eta^2

    Printed without the terms in ``K^2`` and with 5600 for 5760.

    Args:
        lr: eta.
        form: of the bound and of its condition.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr`` exceeds
        :func:`largest_lr`, ``B < 1`` or ``s > n``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G), an unknown form.

    References:
        Theorem 1; Equations 225 to 227.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, B=1.0, F=1.0, a=1.0, b=1.0, n=9, s=2, K=1)
        >>> round(float(mean_gradient_bound(lr=1e-3, T=10**5, **constants)), 6)
        0.1
    """
    check_choice("form", form, Form)
    lr, T = positive(lr=lr, T=T)
    terms = rate_terms(L=L, sigma=sigma, G=G, F=F, a=a, b=b, n=n, s=s, K=K, form=form)
    value = terms.start / (lr * T) + terms.linear * lr + terms.quadratic * lr**2
    limit = largest_lr(L=L, B=B, b=b, n=n, s=s, K=K, form=form)
    valid = at_most(lr, limit) & possible(B, n, s)
    return where_valid(value, valid, f"lr <= largest_lr(form={form!r}), B >= 1, s <= n")


def quantization_floor(*, L: Scalar, error: Scalar) -> Array:
    """What quantised weights add to :func:`mean_gradient_bound`: ``12 L^2 error``.

    Args:
        error: r_d, the largest ``||Q(x) - x||^2``; of the order ``d / 4^bits``.

    Raises:
        ValueError: ``L`` not positive, ``error`` negative.

    References:
        Section 4, the last remark; stated without a proof.

    Example:
        >>> float(quantization_floor(L=2.0, error=0.5))
        24.0
    """
    (L,), (error,) = positive(L=L), non_negative(error=error)
    return 12 * L**2 * error


def rate_terms(
    *,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    F: Scalar,
    a: Scalar,
    b: Scalar,
    n: Scalar,
    s: Scalar,
    K: Scalar,
    form: Form,
) -> RateTerms:
    """The coefficients of :func:`mean_gradient_bound` as a function of the rate."""
    L, F, a, b, n, s, K = positive(L=L, F=F, a=a, b=b, n=n, s=s, K=K)
    sigma, G = non_negative(sigma=sigma, G=G)
    if form == "printed":
        quadratic = s**2 * (720 * sigma**2 * a + 5600 * b * G**2)
    else:
        steps = 8 * K**2 * (sigma**2 + 4 * G**2)
        quadratic = steps + 720 * s**2 * (sigma**2 * a + 8 * b * G**2)
    noise = sigma**2 * a + 8 * G**2 * b
    return RateTerms(2 * (n + 1) * F / s, L * s / (n + 1) * noise, L**2 * quadratic)


def possible(B: Scalar, n: Scalar, s: Scalar) -> Array:
    """``B >= 1`` and ``s <= n``, which every bound assumes."""
    B, n, s = positive(B=B, n=n, s=s)
    return (B >= 1) & (s <= n)
