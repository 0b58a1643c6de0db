r"""FedAvg where every client satisfies an alpha-Lojasiewicz inequality, and their mean may not.

From Labbi, Mangold, Tiapkin and Moulines (2025), "On Global Convergence Rates for Federated Policy
Gradient under Heterogeneous Environment" (arXiv 2505.23459, version 1), Appendix F.

Constants: every ``f_c`` is ``L``-smooth and, at the visited models,

.. math:: \|\nabla f_c(\theta)\|^2 \ge \mu\, (f_c(\theta) - f_c^*)^\alpha, \qquad
    \alpha \in [1, 2],\ f_c^* = \inf f_c

(no factor 1/2: for alpha = 1, ``mu`` is twice the usual Polyak-Lojasiewicz constant);
``sigma^2`` bounds the variance of a stochastic gradient; ``(1 / M) sum_c ||grad f_c - grad F||^2 <=
zeta^2``; M clients, all of them in every round, K local steps (the paper's H), R rounds.  A ``gap``
is ``F(theta) - F*`` with ``F* = (1 / M) sum_c f_c^*``: it stays above ``min F - F* >= 0``, which is
positive unless one model minimises all clients at once.  Constants may be traced.

Slips of the paper:

* Lemma F.1 is stated for ``lr <= 1 / (L K)``; its proof needs ``lr <= 1 / (2 L K)``.  Lemma F.3
  likewise: ``1 / L`` and ``1 / (2 L)``.
* Theorem F.2 lacks ``1 / mu`` in its two noise terms, which unrolling the recursion brings.
* Lemma F.3 and Theorem F.4: that the gap stays below ``2 C`` once it was below C needs
  ``kappa C^(alpha - 1) <= 1``.
* Theorem F.4 does not list the bound on the variance, and drops the noise of the drift; with that,
  ``lr <= 1 / (18 L K)`` suffices, without M.

``form="printed"`` is what the paper states, under the condition that it states.

The closed forms are far above what happens, and above
:func:`~fedjax_sim.theory.lojasiewicz_rounds.recursion_bound`, which is the one to plot.
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
from fedjax_sim.theory.lojasiewicz_rounds import exponent
from fedjax_sim.types import Scalar


def linear_bound(
    gap: Scalar,
    *,
    mu: Scalar,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    zeta: Scalar = 0.0,
    form: Form = "corrected",
) -> Array:
    r"""``E F(theta_R) - F*`` for alpha = 1: linear decay to a floor.

    .. math:: (1 - \kappa)^R (F(\theta_0) - F^*) + e

    * K = 1: ``kappa = lr mu / 2``, ``e = zeta^2 / mu + 2 L lr sigma^2 / (M mu)``;
    * K > 1: ``kappa = lr K mu / 4``,
      ``e = (8 zeta^2 + 16 lr L sigma^2 / M + 12 lr^2 (K - 1) L^2 sigma^2) / mu``.

    Args:
        gap: ``F(theta_0) - F*``.
        R: may be 0.
        form: "printed": the theorem's statement, the second case for every K and without ``1 / mu``
            in the terms of sigma.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (18 L K)``, for
        K = 1 ``lr > 1 / (2 L)``, or ``mu > 2 L``, which no function has.

    Raises:
        ValueError: a constant that is not positive (negative for gap, R, sigma, zeta), an unknown
            form.

    References:
        Theorem F.2; K = 1 is a case of its proof.

    Example:
        >>> constants = dict(mu=1.0, lr=0.5, L=1.0, sigma=1.0, M=10, K=1, R=1, zeta=0.1)
        >>> round(float(linear_bound(1.0, **constants)), 3)  # 0.75 + 0.01 + 0.1
        0.86
    """
    check_choice("form", form, Form)
    mu, lr, L, M, K = positive(mu=mu, lr=lr, L=L, M=M, K=K)
    gap, R, sigma, zeta = non_negative(gap=gap, R=R, sigma=sigma, zeta=zeta)
    if form == "printed":
        noise = 16 * lr * L / M * sigma**2 + 12 * lr**2 * (K - 1) * L**2 * sigma**2
        value = jnp.maximum(1 - lr * K * mu / 4, 0) ** R * gap + 8 * zeta**2 / mu + noise
        return where_valid(value, at_most(lr, 1 / (18 * L * K)), "lr <= 1 / (18 L K)")
    kappa, spread, noise = _solved(lr, L, sigma, M, K, mu, zeta)
    value = jnp.maximum(1 - kappa, 0) ** R * gap + spread + noise
    limit = jnp.where(K == 1, 1 / (2 * L), 1 / (18 * L * K))
    condition = at_most(lr, limit) & at_most(mu, 2 * L)
    return where_valid(value, condition, "lr <= 1 / (18 L K), or 1 / (2 L) if K = 1, and mu <= 2 L")


def sublinear_bound(
    gap: Scalar,
    *,
    alpha: Scalar,
    mu: Scalar,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    zeta: Scalar = 0.0,
    form: Form = "corrected",
) -> Array:
    r"""``E F(theta_R) - F*`` for alpha > 1: decay like ``R^(-1 / (alpha - 1))`` to a floor.

    .. math:: \frac{s_0}{(1 + \kappa R (\alpha - 1) s_0^{\alpha - 1})^{1 / (\alpha - 1)}} + 2 C,
        \qquad s_0 = F(\theta_0) - F^*,\quad C = u^{1/\alpha} + v^{1/\alpha}

    * K = 1: ``kappa = lr mu / 2``, ``u = zeta^2 / mu``, ``v = 2 L lr sigma^2 / (M mu)``;
    * K > 1: ``kappa = lr K mu / 4``, ``u = 8 zeta^2 / mu``,
      ``v = (16 L lr / M + 12 lr^2 (K - 1) L^2) sigma^2 / mu``.

    Args:
        gap: ``F(theta_0) - F*``.
        R: may be 0.
        form: "printed", K = 1: ``kappa`` halved, for ``lr <= 1 / L``; K > 1: first term
            ``s_0 / (1 + (kappa R (alpha - 1))^(1 / (alpha - 1)) s_0)``, ``v`` without its second
            part, for ``lr <= 1 / (18 M L K)``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (18 L K)``, for
        K = 1 ``lr > 1 / (2 L)``, or ``kappa C^(alpha - 1) > 1``.

    Raises:
        ValueError: alpha outside (1, 2], a constant that is not positive (negative for gap, R,
            sigma, zeta), an unknown form.

    References:
        Lemma F.3 (K = 1) and Theorem F.4, with the first term of their proofs.

    Example:
        >>> constants = dict(alpha=2.0, mu=1.0, lr=0.5, L=1.0, sigma=0.0, M=10, K=1)
        >>> float(sublinear_bound(1.0, **constants, R=12))  # 1 / (1 + 12 / 4)
        0.25
    """
    check_choice("form", form, Form)
    alpha = exponent(alpha, above_one=True)
    mu, lr, L, M, K = positive(mu=mu, lr=lr, L=L, M=M, K=K)
    gap, R, sigma, zeta = non_negative(gap=gap, R=R, sigma=sigma, zeta=zeta)
    kappa, spread, noise = _solved(lr, L, sigma, M, K, mu, zeta)
    power = 1 / (alpha - 1)
    if form == "printed":
        single = K == 1
        noise = jnp.where(single, noise, 16 * L * lr * sigma**2 / (M * mu))
        first = jnp.where(
            single,
            _bernoulli(gap, kappa / 2 * R, alpha),
            gap / (1 + (kappa * R * (alpha - 1)) ** power * gap),
        )
        value = first + 2 * spread ** (1 / alpha) + 2 * noise ** (1 / alpha)
        limit = jnp.where(single, 1 / L, 1 / (18 * M * L * K))
        return where_valid(value, at_most(lr, limit), "lr <= 1 / (18 M L K), or 1 / L if K = 1")
    level = spread ** (1 / alpha) + noise ** (1 / alpha)
    limit = jnp.where(K == 1, 1 / (2 * L), 1 / (18 * L * K))
    step = kappa * level ** (alpha - 1)
    return where_valid(
        _bernoulli(gap, kappa * R, alpha) + 2 * level,
        at_most(lr, limit) & at_most(step, jnp.ones_like(step)),
        "lr <= 1 / (18 L K), or 1 / (2 L) if K = 1, and kappa C^(alpha - 1) <= 1",
    )


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
