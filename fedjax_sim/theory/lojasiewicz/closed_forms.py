r"""FedAvg's gap after R rounds under Lojasiewicz inequalities, in closed form.

Source: see :mod:`fedjax_sim.theory.lojasiewicz`.  The closed forms are far above measured gaps, and
above :func:`~fedjax_sim.theory.lojasiewicz.rounds.recursion_bound`, which is the one to plot.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.lojasiewicz.rounds import exponent
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar

_SMALL_LR = "lr <= 1 / (18 L K), or 1 / (2 L) if K = 1"


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
    value = jnp.maximum(1 - kappa, 0) ** R * gap + spread + noise
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
