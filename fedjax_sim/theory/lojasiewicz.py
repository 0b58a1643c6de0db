r"""Convergence of FedAvg where every client satisfies an alpha-Lojasiewicz inequality.

Bounds from Labbi, Mangold, Tiapkin and Moulines (2025), "On Global Convergence Rates for Federated
Policy Gradient under Heterogeneous Environment" (arXiv 2505.23459, version 1), Appendix F, with the
corrections in the errata.  The mean of the clients' objectives may violate the inequality

.. math:: \|\nabla f_c(\theta)\|^2 \ge \mu\, (f_c(\theta) - f_c^*)^\alpha, \qquad
    \alpha \in [1, 2],\ f_c^* = \inf f_c

which has no factor 1/2: for alpha = 1, mu is twice the usual Polyak-Lojasiewicz constant.  All
clients take part in every round.  A ``gap`` is ``F(theta) - F*`` with ``F* = (1 / M) sum_c f_c^*``:
it stays above ``min F - F* >= 0``, which is positive unless one model minimises all clients at
once.

In formulas mu is ``constants.lojasiewicz_mu``, alpha ``constants.lojasiewicz_alpha``, zeta
``constants.zeta_mean``, M ``clients``, K ``local_steps`` (the paper's H), R ``rounds`` and eta
``lr``.

:func:`linear_bound` and :func:`sublinear_bound` are far above measured gaps, and above
:func:`recursion_bound`, which is the one to plot.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar

__all__ = [
    "exponent",
    "linear_bound",
    "recursion_bound",
    "sublinear_bound",
]

ONE_ROUND = "lr <= 1 / (18 L K), or 1 / L if K = 1"
_SMALL_LR = "lr <= 1 / (18 L K), or 1 / (2 L) if K = 1"


def exponent(constants: ProblemConstants, *, above_one: bool = False) -> Array:
    """``lojasiewicz_alpha`` as a floating array.

    Raises:
        ValueError: it is missing, or a concrete value outside [1, 2], or (1, 2] if
            ``above_one``.

    Example:
        >>> float(exponent(ProblemConstants(lojasiewicz_alpha=1.5)))
        1.5
    """
    (alpha,) = positive(constants, "lojasiewicz_alpha")
    if not isinstance(alpha, Tracer):
        value = np.asarray(constants.lojasiewicz_alpha)
        low = value > 1 if above_one else value >= 1
        if not np.all(low & (value <= 2)):
            interval = "(1, 2]" if above_one else "[1, 2]"
            raise ValueError(f"lojasiewicz_alpha is {value}; expected a number in {interval}")
    return alpha


def recursion_bound(
    constants: ProblemConstants,
    *,
    gap: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    rounds: int,
    clients: Scalar,
) -> Array:
    r"""The gap after every round, by iterating the inequality of one round.

    .. math:: s_{r+1} = s_r - A \mu s_r^\alpha + (A + c)\, \zeta^2 + n, \qquad
        s_0 = F(\theta_0) - F^*

    * K = 1: ``A = lr (1 - L lr)``, ``c = 0``, ``n = L lr^2 sigma^2 / M``;
    * K > 1: ``c = 2 lr^3 K (K - 1)^2 L^2 + 16 lr^4 K^2 (K - 1)^2 L^3``, ``A = lr K / 2 - c`` and
      ``n = (4 lr^2 K L / M + 2 lr^3 K (K - 1) L^2 + 16 lr^4 K^2 (K - 1) L^3) sigma^2``.

    By Jensen's inequality ``E F(theta_r) - F* <= s_r`` as long as the map grows on ``[0, s_r]``,
    which is ``A mu alpha s_r^(alpha - 1) <= 1``.  The values are far below the closed forms, which
    solve a rounded inequality.

    Needs L, lojasiewicz_mu, lojasiewicz_alpha, sigma, zeta_mean.  Source: The proofs of Theorems
    F.2 and F.4, without their roundings.

    Args:
        gap: ``F(theta_0) - F*``.
        rounds: R; static.

    Returns:
        ``[R + 1]``: ``s_0, ..., s_R``.  NaN with a warning where ``lr > 1 / (18 L K)``, for K = 1
        ``lr > 1 / L``, and after the first round that starts where the map falls.

    Raises:
        ValueError: a missing or negative constant; alpha outside [1, 2]; no rounds.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta_mean=0.0)
        >>> constants = constants._replace(lojasiewicz_mu=1.0, lojasiewicz_alpha=1.0)
        >>> sizes = dict(local_steps=1, rounds=2, clients=2)
        >>> recursion_bound(constants, gap=1.0, lr=0.5, **sizes).tolist()  # 1 - 0.5 (1 - 0.5)
        [1.0, 0.75, 0.5625]
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; expected at least 1")
    alpha = exponent(constants)
    L, mu, lr = positive(constants, "L", "lojasiewicz_mu", lr=lr)
    K, M = positive(local_steps=local_steps, clients=clients)
    sigma, zeta, gap = non_negative(constants, "sigma", "zeta_mean", gap=gap)
    descent, spread, noise = one_round(lr, L, sigma, M, K)
    added = (descent + spread) * zeta**2 + noise

    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple]:
        s, valid = carry
        following = valid & at_most(descent * mu * alpha * s ** (alpha - 1), jnp.ones_like(s))
        # Once invalid, the sequence stands still: a falling map may leave the positive numbers.
        new = jnp.where(following, s - descent * mu * s**alpha + added, s)
        return (new, following), (new, following)

    condition = one_round_condition(lr, L, K)
    shape = jnp.broadcast_shapes(*(x.shape for x in (gap, condition, alpha, mu, added)))
    first = (jnp.broadcast_to(gap, shape), jnp.broadcast_to(condition, shape))
    _, (values, valid) = jax.lax.scan(step, first, length=rounds)
    values = jnp.concatenate([first[0][None], values])
    valid = jnp.concatenate([first[1][None], valid])
    return where_valid(values, valid, f"{ONE_ROUND}, and A mu alpha s^(alpha - 1) <= 1")


def one_round_condition(lr: Array, L: Array, K: Array) -> Array:
    return at_most(lr, jnp.where(K == 1, 1 / L, 1 / (18 * L * K)))


def one_round(lr: Array, L: Array, sigma: Array, M: Array, K: Array) -> tuple[Array, Array, Array]:
    """A, c and n of ``- A ||grad F||^2 + c zeta^2 + n``."""
    single = K == 1
    x = lr * L
    drift = lr * K * (K - 1) * x**2 * (2 + 16 * x * K)  # 0 for K = 1
    spread = (K - 1) * drift
    descent = jnp.where(single, lr * (1 - x), lr * K / 2 - spread)
    noise = jnp.where(single, 1.0, 4 * K) * lr * x / M + drift
    return descent, spread, noise * sigma**2


def linear_bound(
    constants: ProblemConstants,
    *,
    gap: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""``E F(theta_R) - F*`` for alpha = 1: linear decay to a floor.

    .. math:: (1 - \kappa)^R (F(\theta_0) - F^*) + e

    * K = 1: ``kappa = lr mu / 2``, ``e = zeta^2 / mu + 2 L lr sigma^2 / (M mu)``;
    * K > 1: ``kappa = lr K mu / 4``,
      ``e = (8 zeta^2 + 16 lr L sigma^2 / M + 12 lr^2 (K - 1) L^2 sigma^2) / mu``.

    Needs L, lojasiewicz_mu, sigma, zeta_mean.  NaN with a warning where ``lr > 1 / (18 L K)``, for
    K = 1 ``lr > 1 / (2 L)``, or ``mu > 2 L``, which no function has.  Source: Theorem F.2 (see the
    errata); K = 1 is a case of its proof.

    Args:
        gap: ``F(theta_0) - F*``.
        rounds: R; may be 0.

    Example:
        >>> constants = ProblemConstants(L=1.0, lojasiewicz_mu=1.0, sigma=1.0, zeta_mean=0.1)
        >>> value = linear_bound(constants, gap=1.0, lr=0.5, local_steps=1, rounds=1, clients=10)
        >>> round(float(value), 3)  # 0.75 + 0.01 + 0.1
        0.86
    """
    L, mu, lr = positive(constants, "L", "lojasiewicz_mu", lr=lr)
    K, M = positive(local_steps=local_steps, clients=clients)
    sigma, zeta, gap, R = non_negative(constants, "sigma", "zeta_mean", gap=gap, rounds=rounds)
    kappa, spread, noise = _solved(lr, L, sigma, M, K, mu, zeta)
    # Single precision would round 1 - kappa.  Where the bound holds, kappa is at most 1/2.
    left = jnp.exp(R * jnp.log1p(-jnp.minimum(kappa, 0.75)))
    value = left * gap + spread + noise
    valid = at_most(lr, _largest_lr(L, K)) & at_most(mu, 2 * L)
    return where_valid(value, valid, f"{_SMALL_LR}, and mu <= 2 L")


def sublinear_bound(
    constants: ProblemConstants,
    *,
    gap: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""``E F(theta_R) - F*`` for alpha > 1: decay like ``R^(-1 / (alpha - 1))`` to a floor.

    .. math:: \frac{s_0}{(1 + \kappa R (\alpha - 1) s_0^{\alpha - 1})^{1 / (\alpha - 1)}} + 2 C,
        \qquad s_0 = F(\theta_0) - F^*,\quad C = u^{1/\alpha} + v^{1/\alpha}

    * K = 1: ``kappa = lr mu / 2``, ``u = zeta^2 / mu``, ``v = 2 L lr sigma^2 / (M mu)``;
    * K > 1: ``kappa = lr K mu / 4``, ``u = 8 zeta^2 / mu``,
      ``v = (16 L lr / M + 12 lr^2 (K - 1) L^2) sigma^2 / mu``.

    Needs L, lojasiewicz_mu, lojasiewicz_alpha from (1, 2], sigma, zeta_mean.  NaN with a warning
    where ``lr > 1 / (18 L K)``, for K = 1 ``lr > 1 / (2 L)``, or ``kappa C^(alpha - 1) > 1``.
    Source: Lemma F.3 (K = 1) and Theorem F.4, with the first term of their proofs (see the errata).

    Args:
        gap: ``F(theta_0) - F*``.
        rounds: R; may be 0.

    Raises:
        ValueError: a missing or negative constant; alpha outside (1, 2].

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, zeta_mean=0.0)
        >>> constants = constants._replace(lojasiewicz_mu=1.0, lojasiewicz_alpha=2.0)
        >>> sizes = dict(local_steps=1, rounds=12, clients=10)
        >>> float(sublinear_bound(constants, gap=1.0, lr=0.5, **sizes))  # 1 / (1 + 12 / 4)
        0.25
    """
    alpha = exponent(constants, above_one=True)
    L, mu, lr = positive(constants, "L", "lojasiewicz_mu", lr=lr)
    K, M = positive(local_steps=local_steps, clients=clients)
    sigma, zeta, gap, R = non_negative(constants, "sigma", "zeta_mean", gap=gap, rounds=rounds)
    kappa, spread, noise = _solved(lr, L, sigma, M, K, mu, zeta)
    level = spread ** (1 / alpha) + noise ** (1 / alpha)
    step = kappa * level ** (alpha - 1)
    return where_valid(
        _bernoulli(gap, kappa * R, alpha) + 2 * level,
        at_most(lr, _largest_lr(L, K)) & at_most(step, jnp.ones_like(step)),
        f"{_SMALL_LR}, and kappa C^(alpha - 1) <= 1",
    )


def _largest_lr(L: Array, K: Array) -> Array:
    return jnp.where(K == 1, 1 / (2 * L), 1 / (18 * L * K))


def _solved(
    lr: Array, L: Array, sigma: Array, M: Array, K: Array, mu: Array, zeta: Array
) -> tuple[Array, Array, Array]:
    """kappa of the rounded recursion; the parts of zeta and sigma, over kappa."""
    single = K == 1
    kappa = jnp.where(single, lr * mu / 2, lr * K * mu / 4)
    spread = jnp.where(single, 1.0, 8.0) * zeta**2 / mu
    several = 16 * L * lr / M + 12 * lr**2 * (K - 1) * L**2
    return kappa, spread, jnp.where(single, 2 * L * lr / M, several) * sigma**2 / mu


def _bernoulli(gap: Array, time: Array, alpha: Array) -> Array:
    """``s(time)`` of ``s' = -s^alpha``, ``s(0) = gap``; accurate also for alpha near 1."""
    return gap * jnp.exp(-jnp.log1p((alpha - 1) * time * gap ** (alpha - 1)) / (alpha - 1))
