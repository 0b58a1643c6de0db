r"""Distance of two FedSWA runs whose data differ in one example, for any learning rates.

Source: the recursion behind the theorems in Appendices D and E (see
:mod:`fedjax_sim.theory.fedswa`).  The bounds are sharper than
:mod:`~fedjax_sim.theory.fedswa.generalization`, which bounds products by exponentials.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import (
    at_most,
    non_negative,
    positive,
    strong_convexity,
    where_valid,
)
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar

VALID_RATES = "rates <= 2 / (beta + mu)"


def distance_bound(
    constants: ProblemConstants,
    rates: Array,
    *,
    clients: Scalar,
    examples: Scalar,
    alpha: Scalar = 1.0,
) -> Array:
    r"""Bounds of ``E||theta_t - theta'_t||`` for any rates.

    .. math:: d_{t+1} = |1 - \alpha| d_t + \alpha \Bigl( P_t d_t + \frac{2}{m n} c_t S_t
        (L + \sigma_g + \sigma) \Bigr), \qquad d_0 = 0

    with ``P_t = prod_k a_k``, ``S_t = sum_k eta_k prod_{l > k} a_l``, ``c_t = 1 + beta S_t``, and
    ``a_k = 1 + beta eta_k``; ``a_k = 1 - eta_k beta mu / (beta + mu)`` for strongly convex losses
    (Lemma D.1).

    Needs L (beta), G (L), sigma, sigma_g; losses are strongly convex if mu is known and
    not 0.

    Args:
        rates: [T, K] the clients' rates.
        alpha: the server's rate, 1 in the paper.

    Returns:
        [T + 1] bounds after 0 .. T rounds, averaged over the client that holds the changed example;
        NaN with a warning if losses are strongly convex and a rate is above 2 / (beta + mu).

    Raises:
        ValueError: a missing or negative constant; ``rates`` is not [T, K].

    Example:
        >>> constants = ProblemConstants(L=1.0, G=1.0, sigma=1.0, sigma_g=0.5)
        >>> rates = jnp.full((20, 5), 1 / 100)
        >>> value = distance_bound(constants, rates, clients=5, examples=20)
        >>> round(float(value[-1]), 4)  # below 0.0927
        0.0896
    """
    products, sums, condition = _products(constants, rates)
    beta, L = positive(constants, "L", "G")
    sigma, sigma_g = non_negative(constants, "sigma", "sigma_g")
    m, n = positive(clients=clients, examples=examples)
    added = 2 / (m * n) * (1 + beta * sums) * sums * (L + sigma_g + sigma)
    return where_valid(_accumulate(products, added, alpha), condition, VALID_RATES)


def lipschitz_distance_bound(
    constants: ProblemConstants,
    rates: Array,
    *,
    clients: Scalar,
    examples: Scalar,
    alpha: Scalar = 1.0,
) -> Array:
    r"""The smaller bound for L-Lipschitz losses, without sigma and sigma_g.

    The recursion of :func:`distance_bound` with L for ``c_t (L + sigma_g + sigma)``: the gradient
    at the changed example has norm at most L at every model.

    Needs L (beta), G (L); losses are strongly convex if mu is known and not 0.

    Args:
        rates, alpha: as in :func:`distance_bound`.

    Returns:
        [T + 1] bounds, as for :func:`distance_bound`.

    Raises:
        ValueError: a missing or negative constant; ``rates`` is not [T, K].

    Example:
        >>> rates = jnp.full((20, 5), 1 / 100)
        >>> constants = ProblemConstants(L=1.0, G=1.0)
        >>> value = lipschitz_distance_bound(constants, rates, clients=5, examples=20)
        >>> round(float(value[-1]), 4)
        0.0341
    """
    products, sums, condition = _products(constants, rates)
    (L,) = positive(constants, "G")
    m, n = positive(clients=clients, examples=examples)
    return where_valid(_accumulate(products, 2 / (m * n) * sums * L, alpha), condition, VALID_RATES)


def _products(constants: ProblemConstants, rates: Array) -> tuple[Array, Array, Array]:
    """P_t and S_t for every round, and whether the rates are allowed."""
    if jnp.ndim(rates) != 2:
        raise ValueError(f"rates has shape {jnp.shape(rates)}; expected [T, K]")
    (rates,) = non_negative(rates=rates)
    (beta,) = positive(constants, "L")
    condition = jnp.array(True)
    factors = 1 + beta * rates
    mu = strong_convexity(constants)
    if mu is not None:
        condition = at_most(rates.max(), 2 / (beta + mu))
        factors = 1 - rates * beta * mu / (beta + mu)
    # prod_{l >= k}, then without its own factor.
    tails = jnp.cumprod(factors[:, ::-1], axis=1)[:, ::-1]
    later = jnp.concatenate([tails[:, 1:], jnp.ones_like(tails[:, :1])], axis=1)
    return tails[:, 0], (rates * later).sum(axis=1), condition


def _accumulate(products: Array, added: Array, alpha: Scalar) -> Array:
    """d_0 .. d_T from P_t and what each round adds."""
    (alpha,) = positive(alpha=alpha)

    def one_round(distance: Array, item: tuple[Array, Array]) -> tuple[Array, Array]:
        product, new = item
        distance = jnp.abs(1 - alpha) * distance + alpha * (product * distance + new)
        return distance, distance

    _, distances = jax.lax.scan(one_round, jnp.zeros_like(added[0]), (products, added))
    return jnp.concatenate([jnp.zeros_like(distances[:1]), distances])
