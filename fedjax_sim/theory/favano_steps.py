r"""How many server steps FAVANO needs until the mean squared gradient is at most epsilon.

The bound of :func:`fedjax_sim.theory.favano.mean_gradient_bound` is ``start / (eta T) + linear eta
+ quadratic eta^2`` up to a largest rate.  Constants are those of that module.

Slips of "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv:2305.16099:

* Equation 47 lacks a factor 2 on its middle term; 15 in Equation 45 is right with it.
* The middle term of the Corollary is that of the bound with the terms in ``K^2``, which Theorem 1
  lost; it has ``L^2`` for ``L`` and ``L^2 K^2 G^2`` for ``K^2 G^2``, so that its units do not
  match.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import Form, check_choice, non_negative, positive, where_valid
from fedjax_sim.theory.favano import RateTerms, largest_lr, possible, rate_terms
from fedjax_sim.theory.step_sizes import smallest
from fedjax_sim.types import Scalar


class FewestSteps(NamedTuple):
    """The smallest T for which some rate's bound is epsilon."""

    steps: Array  # T, not rounded
    lr: Array  # that rate


def tuned_lr(
    *,
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
    r"""The rate for T server steps that :func:`tuned_bound` and :func:`lemma_steps` are about.

    .. math:: \min\Bigl\{\sqrt{\frac{start}{linear \cdot T}},\
        \Bigl(\frac{start}{quadratic \cdot T}\Bigr)^{1/3},\ \eta_{\max}\Bigr\}

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G), an unknown form.

    References:
        Equation 45 and the lines before it, with T for T + 1.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, B=1.0, F=1.0, a=1.0, b=1.0, n=100, s=20, K=20)
        >>> round(1 / float(tuned_lr(T=10, **constants)))  # without noise the largest
        2154
    """
    terms, limit = _terms(L, sigma, G, B, F, a, b, n, s, K, form)
    (T,) = positive(T=T)
    root = jnp.sqrt(terms.start / (T * terms.linear))
    return smallest(root, (terms.start / (T * terms.quadratic)) ** (1 / 3), limit)


def tuned_bound(
    *,
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
    r"""What the bound is at most at :func:`tuned_lr`.

    .. math:: 2 \sqrt{\frac{linear \cdot start}{T}}
        + 2\, quadratic^{1/3} \Bigl(\frac{start}{T}\Bigr)^{2/3} + \frac{start}{\eta_{\max} T}

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``B < 1`` or ``s > n``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G), an unknown form.

    References:
        Equation 47, with its missing factor 2 and T for T + 1.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, B=1.0, F=1.0, a=1.0, b=1.0, n=9, s=2, K=1)
        >>> tuned_bound(T=100, **constants).item() < tuned_bound(T=50, **constants).item()
        True
    """
    terms, limit = _terms(L, sigma, G, B, F, a, b, n, s, K, form)
    (T,) = positive(T=T)
    noise = jnp.sqrt(terms.linear * terms.start / T)
    drift = terms.quadratic ** (1 / 3) * (terms.start / T) ** (2 / 3)
    value = 2 * noise + 2 * drift + terms.start / (limit * T)
    return where_valid(value, possible(B, n, s), "B >= 1, s <= n")


def lemma_steps(
    eps: Scalar,
    *,
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
    form: Form = "corrected",
) -> Array:
    r"""Server steps after which the bound at :func:`tuned_lr` is at most eps.

    .. math:: \frac{36\, linear \cdot start}{\epsilon^2}
        + \frac{15\, start \sqrt{quadratic}}{\epsilon^{3/2}}
        + \frac{3\, start}{\eta_{\max} \epsilon}

    Returns:
        T; NaN, and for concrete arguments a warning, where ``B < 1`` or ``s > n``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G), an unknown form.

    References:
        Equation 45 with Theorem 1's constants.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, B=1.0, F=1.0, a=1.0, b=1.0, n=9, s=2, K=1)
        >>> round(float(lemma_steps(0.1, **constants, form="printed")))  # 3 * 10 * 40 / 0.1
        12000
    """
    terms, limit = _terms(L, sigma, G, B, F, a, b, n, s, K, form)
    (eps,) = positive(eps=eps)
    noise = 36 * terms.linear / eps**2
    drift = 15 * jnp.sqrt(terms.quadratic) / eps**1.5
    value = terms.start * (noise + drift + 3 / (limit * eps))
    return where_valid(value, possible(B, n, s), "B >= 1, s <= n")


def fewest_steps(
    eps: Scalar,
    *,
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
    form: Form = "corrected",
) -> FewestSteps:
    r"""The smallest number of server steps for which some rate's bound is at most eps.

    ``T(eta) = start / (eta (eps - linear eta - quadratic eta^2))`` is smallest at

    .. math:: \eta = \min\Bigl\{\frac{\epsilon}{linear + \sqrt{linear^2 + 3\, quadratic\,
        \epsilon}},\ \eta_{\max}\Bigr\}

    At most :func:`lemma_steps` and at least an 18th of it, whose terms are 9, 5.8 and 3 times the
    fewest steps that the bound's terms would need alone.

    Returns:
        T and the rate; T is NaN, and for concrete arguments there is a warning, where ``B < 1`` or
        ``s > n``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G), an unknown form.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, B=1.0, F=1.0, a=1.0, b=1.0, n=9, s=2, K=1)
        >>> round(float(fewest_steps(0.1, **constants, form="printed").steps))  # 10 * 40 / 0.1
        4000
    """
    terms, limit = _terms(L, sigma, G, B, F, a, b, n, s, K, form)
    (eps,) = positive(eps=eps)
    free = eps / (terms.linear + jnp.sqrt(terms.linear**2 + 3 * terms.quadratic * eps))
    lr = smallest(free, limit)
    value = terms.start / (lr * (eps - terms.linear * lr - terms.quadratic * lr**2))
    return FewestSteps(where_valid(value, possible(B, n, s), "B >= 1, s <= n"), lr)


def corollary_steps(
    eps: Scalar,
    *,
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
    form: Form = "corrected",
) -> Array:
    r"""The order of the number of server steps, constants taken as 1.

    .. math:: \frac{F L (a \sigma^2 + 8 b G^2)}{\epsilon^2}
        + \frac{n}{s} \frac{F L \sqrt{K^2 \sigma^2 + K^2 G^2 + s^2 a \sigma^2 + s^2 b G^2}}
        {\epsilon^{3/2}} + \frac{n F B^2 K L b}{\epsilon}

    Printed, ``L^2`` for ``L`` in the middle term and ``L^2 K^2 G^2`` for ``K^2 G^2``.  Not a bound:
    compare how it changes, not its value.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G), an unknown form.

    References:
        Corollary to Theorem 1, Equations 11 and 12; Table 1.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=0.0, B=1.0, F=1.0, a=1.0, b=1.0, n=9, s=2, K=1)
        >>> round(float(corollary_steps(0.1, **constants)))
        90
    """
    check_choice("form", form, Form)
    eps, L, B, F, a, b = positive(eps=eps, L=L, B=B, F=F, a=a, b=b)
    n, s, K = positive(n=n, s=s, K=K)
    sigma, G = non_negative(sigma=sigma, G=G)
    slip = L if form == "printed" else jnp.ones_like(L)
    drift = K**2 * (sigma**2 + (slip * G) ** 2) + s**2 * (sigma**2 * a + G**2 * b)
    noise = F * L * (sigma**2 * a + 8 * G**2 * b) / eps**2
    start = n * F * B**2 * K * L * b / eps
    return noise + n / s * F * L * slip * jnp.sqrt(drift) / eps**1.5 + start


def _terms(
    L: Any, sigma: Any, G: Any, B: Any, F: Any, a: Any, b: Any, n: Any, s: Any, K: Any, form: Form
) -> tuple[RateTerms, Array]:
    check_choice("form", form, Form)
    terms = rate_terms(L=L, sigma=sigma, G=G, F=F, a=a, b=b, n=n, s=s, K=K, form=form)
    return terms, largest_lr(L=L, B=B, b=b, n=n, s=s, K=K, form=form)
