r"""Generalisation bounds of FedSWA, FedMoSWA, FedSAM and MoFedSAM, as functions of their constants.

From Liu et al. (2025), "Improving Generalization in Federated Learning with Highly Heterogeneous
Data via Momentum-Based Stochastic Controlled Weight Averaging" (ICML), Section 5.1 and
Appendices E, F and I.  All bounds are for full participation, server rate 1, control variates of
option I, one example a step, and hold for the expectation over minibatches and data.

Constants, the same everywhere: losses are ``lipschitz``-Lipschitz and ``beta``-smooth, ``mu``-
strongly convex where ``mu`` is given; ``sigma`` bounds the noise of one example's gradient,
``sigma_g`` the mean over clients of ``||grad F_i - grad F||``; m clients, n examples each, K local
steps, T rounds.  Constants may be traced: sweep or plot a bound by ``vmap`` over any of them.

Slips of the paper, corrected by default and kept under ``form="printed"``:

* Lemmas E.4 and I.1 set c = 1 + beta eta and use (1 + c)^(K-1) where their own recursion gives
  c^(K-1).  The printed factor ct = 1 + (2 + 1 / (K T))^(K-1) / T is 5.6e11 for K = 50, T = 1000;
  the corrected one, 1 + e^(1/T) / T, is 1.001.  "ct >> 1", the ground on which FedMoSWA is
  placed before FedSWA, is an artefact of this step.
* Lemma E.1 has (1 - b)^(K-1) with b = eta beta mu / (beta + mu), which Theorem 5.1 writes as
  (mu / ((beta + mu) K))^(K-1).  Neither bounds the sum it comes from, whose last term has the
  factor 1: the corrected factor is 1 + 1 / T.  (Nor is bt >> 1 in print: it is 1 to rounding.)
* Equation 20 takes ``e^(-b K)`` as an upper bound of ``prod_{l > k} (1 - b)``, whose last is 1, and
  Equation 22 turns the contraction of Equation 21 into an expansion.  The printed result is
  nevertheless above the corrected one.
* Theorem F.3 has its first exponent without T, Theorem 5.1 with it; the latter is used.
* The proofs for FedMoSWA treat the control variates as equal on both data sets.  They are functions
  of the data.  Its bounds are hence printed here, but not proven, in either form.
* The proofs for FedSAM and MoFedSAM do not contain the perturbation: they are those of FedAvg.
"""

from typing import Literal

import jax
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

Method = Literal["fedswa", "fedmoswa", "fedsam", "mofedsam"]
Value = Array | float


def rate_sum(lr: Value, K: Value, rho: Value = 1.0) -> Array:
    """``sum_k eta_k`` of a round whose rate falls linearly from ``lr`` towards ``rho lr``.

    ``eta_k = lr (1 - k / K) + rho lr k / K`` for k = 0 .. K - 1 (Equation 3), hence
    ``lr (K (1 + rho) + 1 - rho) / 2``.

    Example:
        >>> round(float(rate_sum(1.0, K=50, rho=0.1)), 3)
        27.95
    """
    lr, K = positive(lr=lr, K=K)
    (rho,) = non_negative(rho=rho)
    return lr * (K * (1 + rho) + 1 - rho) / 2


def gradient_growth(
    *,
    beta: Value,
    K: Value,
    T: Value,
    mu: Value | None = None,
    rates: Value | None = None,
    form: Form = "corrected",
) -> Array:
    """The factor by which a client's gradients may grow over its local steps: bt, ct, cbar.

    ``E||g_i(theta_ik)|| <= factor (||grad F(theta_t)|| + sigma_gi + sigma)``; ``x = beta rates``:

    * non-convex: ``1 + x e^x``; printed ``1 + (2 + 1 / (K T))^(K-1) x`` (Lemmas E.5, I.2),
    * strongly convex: ``1 + x``; printed ``1 + (mu / ((beta + mu) K))^(K-1) x`` (Lemma E.2).

    Args:
        mu: None: non-convex.
        rates: the sum of a round's rates, :func:`rate_sum`; by default its maximum, 1 / (beta T).
            This is all that distinguishes FedSWA's ct from FedSAM's cbar >= ct (Theorem I.3).
        form: which factor.

    Raises:
        ValueError: a constant that is not positive, an unknown form.

    Example:
        >>> round(float(gradient_growth(beta=1.0, K=5, T=20, form="printed")), 3)
        1.816
        >>> round(float(gradient_growth(beta=1.0, K=5, T=20)), 3)
        1.053
    """
    check_choice("form", form, Form)
    beta, K, T = positive(beta=beta, K=K, T=T)
    x = 1 / T if rates is None else beta * positive(rates=rates)[0]
    if mu is None:
        return 1 + x * (jnp.exp(x) if form == "corrected" else (2 + 1 / (K * T)) ** (K - 1))
    (mu,) = positive(mu=mu)
    return 1 + x * (1.0 if form == "corrected" else (mu / ((beta + mu) * K)) ** (K - 1))


def generalization_bound(
    *,
    beta: Value,
    lipschitz: Value,
    sigma: Value,
    sigma_g: Value,
    m: Value,
    n: Value,
    K: Value,
    T: Value,
    mu: Value | None = None,
    lr: Value | None = None,
    rho: Value = 1.0,
    method: Method = "fedswa",
    form: Form = "corrected",
) -> Array:
    r"""Upper bound of the generalisation gap ``E[F_D(theta_T) - F_S(theta_T)]``.

    .. math:: \varepsilon_{gen} \le \frac{2 L}{m n \beta} A \, (c L + c \sigma_g + c \sigma)

    with the factor c of :func:`gradient_growth` (FedMoSWA: ``sigma_g`` for ``c sigma_g``), and A

    * printed, non-convex: ``e^(1 + 1/T)`` (Theorem 5.1, Theorem I.3),
    * printed, strongly convex: ``e^(1 - mu / ((beta + mu) T))`` (Theorem 5.1),
    * corrected, non-convex: ``sum_{j=1..T} x e^(j x)``, ``x = beta rate_sum(lr, K, rho)``; at
      x = 1 / T it is ``(e - 1) e^(1/T) / (T (e^(1/T) - 1))``,
    * corrected, strongly convex: ``(beta + mu) / mu (1 - (1 - q)^(K T))``,
      ``q = lr beta mu / (beta + mu)``, constant rates being the worst of those up to ``lr``.

    The corrected forms are :func:`distance_bound`'s recursion summed; dividing a value by
    ``lipschitz`` gives the bound of ``E||theta_T - theta'_T||``.

    Args:
        mu: strong convexity; None: non-convex.
        lr: the largest rate of a client; by default the largest that the theorems allow,
            1 / (beta K T).  The printed constants are those of that rate whatever ``lr`` is.
        rho: final rate of a round over its first (1 for FedSAM, MoFedSAM).
        method: whose bound.
        form: "corrected", or as "printed".

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr`` is too large: above
        1 / (beta K T) in print, above 2 / (beta + mu) in the corrected strongly convex form.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, sigma_g, rho), an unknown
            method or form.

    Example:
        >>> constants = dict(beta=1.0, lipschitz=1.0, sigma=1.0, sigma_g=0.5, m=5, n=20, K=5, T=20)
        >>> round(float(generalization_bound(**constants)), 4)
        0.0927
        >>> round(float(generalization_bound(**constants, form="printed")), 4)
        0.2595
    """
    check_choice("form", form, Form)
    check_choice("method", method, Method)
    beta, L, m, n, K, T = positive(beta=beta, lipschitz=lipschitz, m=m, n=n, K=K, T=T)
    sigma, sigma_g = non_negative(sigma=sigma, sigma_g=sigma_g)
    largest = 1 / (beta * K * T)
    lr = largest if lr is None else positive(lr=lr)[0]
    rates = None if form == "printed" else rate_sum(lr, K, rho)
    if form == "printed":
        condition, text = at_most(lr, largest), "lr <= 1 / (beta K T)"
        exponent = 1 / T if mu is None else -positive(mu=mu)[0] / ((beta + mu) * T)
        growth_of_distance = jnp.exp(1 + exponent)  # Theorem 5.1
    elif mu is None:
        condition, text = jnp.array(True), ""
        growth_of_distance = _expansion(beta * rate_sum(lr, K, rho), T)
    else:
        (mu,) = positive(mu=mu)
        condition, text = at_most(lr, 2 / (beta + mu)), "lr <= 2 / (beta + mu)"
        q = lr * beta * mu / (beta + mu)
        growth_of_distance = -(beta + mu) / mu * jnp.expm1(K * T * jnp.log1p(-q))
    c = gradient_growth(beta=beta, K=K, T=T, mu=mu, rates=rates, form=form)
    heterogeneity = sigma_g if method == "fedmoswa" else c * sigma_g
    value = 2 * L / (m * n * beta) * growth_of_distance * (c * L + heterogeneity + c * sigma)
    return where_valid(value, condition, text)


def distance_bound(
    rates: Array,
    *,
    beta: Value,
    lipschitz: Value,
    sigma: Value,
    sigma_g: Value,
    m: Value,
    n: Value,
    mu: Value | None = None,
    alpha: Value = 1.0,
) -> Array:
    r"""Bounds of ``E||theta_t - theta'_t||`` for any rates, by the recursion behind the theorems.

    .. math:: d_{t+1} = |1 - \alpha| d_t + \alpha \Bigl( P_t d_t + \frac{2}{m n} c_t S_t
        (L + \sigma_g + \sigma) \Bigr), \qquad d_0 = 0

    with ``P_t = prod_k a_k``, ``S_t = sum_k eta_k prod_{l > k} a_l``, ``c_t = 1 + beta S_t``, and
    ``a_k = 1 + beta eta_k``; ``a_k = 1 - eta_k beta mu / (beta + mu)`` for strongly convex losses
    (Lemma D.1).  Sharper than :func:`generalization_bound`, which bounds the products by
    exponentials.  ``alpha``, the server's rate, is 1 in the paper.

    Args:
        rates: [T, K] the clients' rates.

    Returns:
        [T + 1] bounds after 0 .. T rounds, averaged over the client that holds the changed example;
        NaN, and for concrete arguments a warning, if ``mu`` is given and a rate is above
        2 / (beta + mu).

    Raises:
        ValueError: rates that are not [T, K], a constant that is not positive.

    Example:
        >>> rates = jnp.full((20, 5), 1 / 100)
        >>> constants = dict(beta=1.0, lipschitz=1.0, sigma=1.0, sigma_g=0.5, m=5, n=20)
        >>> round(float(distance_bound(rates, **constants)[-1]), 4)  # below 0.0927
        0.0896
    """
    if jnp.ndim(rates) != 2:
        raise ValueError(f"rates has shape {jnp.shape(rates)}; expected [T, K]")
    (rates,) = non_negative(rates=rates)
    beta, L, m, n, alpha = positive(beta=beta, lipschitz=lipschitz, m=m, n=n, alpha=alpha)
    sigma, sigma_g = non_negative(sigma=sigma, sigma_g=sigma_g)
    condition = jnp.array(True)
    factors = 1 + beta * rates
    if mu is not None:
        (mu,) = positive(mu=mu)
        condition = at_most(rates.max(), 2 / (beta + mu))
        factors = 1 - rates * beta * mu / (beta + mu)
    # prod_{l >= k}, then without its own factor.
    tails = jnp.cumprod(factors[:, ::-1], axis=1)[:, ::-1]
    later = jnp.concatenate([tails[:, 1:], jnp.ones_like(tails[:, :1])], axis=1)
    sums = (rates * later).sum(axis=1)
    added = 2 / (m * n) * (1 + beta * sums) * sums * (L + sigma_g + sigma)

    def one_round(distance: Array, item: tuple[Array, Array]) -> tuple[Array, Array]:
        product, new = item
        distance = jnp.abs(1 - alpha) * distance + alpha * (product * distance + new)
        return distance, distance

    _, distances = jax.lax.scan(one_round, jnp.zeros_like(added[0]), (tails[:, 0], added))
    distances = jnp.concatenate([jnp.zeros_like(distances[:1]), distances])
    return where_valid(distances, condition, "rates <= 2 / (beta + mu)")


def _expansion(x: Array, T: Array) -> Array:
    """``sum_{j=1..T} x e^(j x)``."""
    return x * jnp.exp(x) * jnp.expm1(T * x) / jnp.expm1(x)
