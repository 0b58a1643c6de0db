r"""Number of server steps until FAVANO's mean squared gradient is at most epsilon.

The bound of :func:`fedjax_sim.theory.favano.rates.mean_gradient_bound` is
``start / (eta T) + linear eta + quadratic eta^2`` up to a largest rate.  All functions need that
bound's constants: L, sigma, dissimilarity (G), dissimilarity_factor (B) and Delta.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory import (
    POSSIBLE,
    ProblemConstants,
    ProgressConstants,
    Scalar,
    checked,
    non_negative,
    positive,
    possible,
    rate_terms,
    smallest,
    where_valid,
)


class FewestSteps(NamedTuple):
    """The smallest T for which some rate's bound is epsilon."""

    steps: Array  # T, not rounded
    lr: Array  # that rate


def tuned_lr(
    constants: ProblemConstants,
    *,
    progress: ProgressConstants,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""The rate for T server steps in :func:`tuned_bound` and :func:`lemma_steps`.

    .. math:: \min\Bigl\{\sqrt{\frac{start}{linear \cdot T}},\
        \Bigl(\frac{start}{quadratic \cdot T}\Bigr)^{1/3},\ \eta_{\max}\Bigr\}

    Source: Equation 45 and the lines before it, with T for T + 1.
    """
    sizes = {"local_steps": local_steps, "clients": clients, "cohort_size": cohort_size}
    terms, limit = rate_terms(constants, progress=progress, **sizes)
    (T,) = positive(rounds=rounds)
    root = jnp.sqrt(terms.start / (T * terms.linear))
    return smallest(root, (terms.start / (T * terms.quadratic)) ** (1 / 3), limit)


def tuned_bound(
    constants: ProblemConstants,
    *,
    progress: ProgressConstants,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""An upper bound of the mean squared gradient at :func:`tuned_lr`.

    .. math:: 2 \sqrt{\frac{linear \cdot start}{T}}
        + 2\, quadratic^{1/3} \Bigl(\frac{start}{T}\Bigr)^{2/3} + \frac{start}{\eta_{\max} T}

    NaN with a warning where ``B < 1`` or ``s > n``.  Source: Equation 47, with its missing factor 2
    (see the errata) and T for T + 1.
    """
    sizes = {"local_steps": local_steps, "clients": clients, "cohort_size": cohort_size}
    terms, limit = rate_terms(constants, progress=progress, **sizes)
    (T,) = positive(rounds=rounds)
    noise = jnp.sqrt(terms.linear * terms.start / T)
    drift = terms.quadratic ** (1 / 3) * (terms.start / T) ** (2 / 3)
    value = 2 * noise + 2 * drift + terms.start / (limit * T)
    return where_valid(value, possible(constants, clients, cohort_size), POSSIBLE)


def lemma_steps(
    constants: ProblemConstants,
    *,
    eps: Scalar,
    progress: ProgressConstants,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""Server steps after which the bound at :func:`tuned_lr` is at most eps.

    .. math:: \frac{36\, linear \cdot start}{\epsilon^2}
        + \frac{15\, start \sqrt{quadratic}}{\epsilon^{3/2}}
        + \frac{3\, start}{\eta_{\max} \epsilon}

    NaN with a warning where ``B < 1`` or ``s > n``.  Source: Equation 45 with the constants of
    Theorem 1.
    """
    sizes = {"local_steps": local_steps, "clients": clients, "cohort_size": cohort_size}
    terms, limit = rate_terms(constants, progress=progress, **sizes)
    (eps,) = positive(eps=eps)
    noise = 36 * terms.linear / eps**2
    drift = 15 * jnp.sqrt(terms.quadratic) / eps**1.5
    value = terms.start * (noise + drift + 3 / (limit * eps))
    return where_valid(value, possible(constants, clients, cohort_size), POSSIBLE)


def fewest_steps(
    constants: ProblemConstants,
    *,
    eps: Scalar,
    progress: ProgressConstants,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> FewestSteps:
    r"""The smallest number of server steps for which some rate's bound is at most eps.

    ``T(eta) = start / (eta (eps - linear eta - quadratic eta^2))`` is smallest at

    .. math:: \eta = \min\Bigl\{\frac{\epsilon}{linear + \sqrt{linear^2 + 3\, quadratic\,
        \epsilon}},\ \eta_{\max}\Bigr\}

    T is at most :func:`lemma_steps` and at least an 18th of it: that function's terms are 9, 5.8
    and 3 times the fewest steps that each term of the bound would need alone.

    T is NaN with a warning where ``B < 1`` or ``s > n``.
    """
    sizes = {"local_steps": local_steps, "clients": clients, "cohort_size": cohort_size}
    terms, limit = rate_terms(constants, progress=progress, **sizes)
    (eps,) = positive(eps=eps)
    free = eps / (terms.linear + jnp.sqrt(terms.linear**2 + 3 * terms.quadratic * eps))
    lr = smallest(free, limit)
    value = terms.start / (lr * (eps - terms.linear * lr - terms.quadratic * lr**2))
    valid = possible(constants, clients, cohort_size)
    return FewestSteps(where_valid(value, valid, POSSIBLE), lr)


def corollary_steps(
    constants: ProblemConstants,
    *,
    eps: Scalar,
    progress: ProgressConstants,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""The order of the number of server steps, numbers taken as 1.

    .. math:: \frac{\Delta L (a \sigma^2 + 8 b G^2)}{\epsilon^2}
        + \frac{n}{s} \frac{\Delta L \sqrt{K^2 \sigma^2 + K^2 G^2 + s^2 a \sigma^2 + s^2 b G^2}}
        {\epsilon^{3/2}} + \frac{n \Delta B^2 K L b}{\epsilon}

    Not a bound: compare how it changes, not its value.  Source: Corollary to Theorem 1, Equations
    11 and 12; Table 1 (see the errata).
    """
    L, B, F = positive(constants, "L", "dissimilarity_factor", "Delta")
    n, s, K = positive(clients=clients, cohort_size=cohort_size, local_steps=local_steps)
    sigma, G = non_negative(constants, "sigma", "dissimilarity")
    (eps,), (a, b) = positive(eps=eps), checked(progress)
    drift = K**2 * (sigma**2 + G**2) + s**2 * (sigma**2 * a + G**2 * b)
    noise = F * L * (sigma**2 * a + 8 * G**2 * b) / eps**2
    start = n * F * B**2 * K * L * b / eps
    return noise + n / s * F * L * jnp.sqrt(drift) / eps**1.5 + start
