r"""One round of FedAvg under the clients' alpha-Lojasiewicz inequalities, and its iteration.

From Labbi et al. (2025), Appendix F; setting, constants and slips are those of
:mod:`~fedjax_sim.theory.lojasiewicz`, which has the closed forms.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.theory.constants import (
    Form,
    at_most,
    check_choice,
    non_negative,
    positive,
    where_valid,
)
from fedjax_sim.types import Scalar

_ONE_ROUND = "lr <= 1 / (18 L K), or 1 / L if K = 1"


def exponent(alpha: Scalar, *, above_one: bool = False) -> Array:
    """The exponent of a Lojasiewicz inequality as a floating array.

    Raises:
        ValueError: a concrete one outside [1, 2], or (1, 2] if ``above_one``.

    Example:
        >>> float(exponent(1.5))
        1.5
    """
    if not isinstance(alpha, Tracer):
        found = np.asarray(alpha)
        low = found > 1 if above_one else found >= 1
        if not np.all(low & (found <= 2)):
            interval = "(1, 2]" if above_one else "[1, 2]"
            raise ValueError(f"alpha is {alpha}; expected a number in {interval}")
    return jnp.asarray(alpha).astype(jnp.result_type(float))


def gradient_lower_bound(gap: Scalar, *, alpha: Scalar, mu: Scalar, zeta: Scalar = 0.0) -> Array:
    r"""What ``||grad F(theta)||^2`` is at least, negative where it says nothing.

    .. math:: \mu\, (F(\theta) - F^*)^\alpha - \zeta^2

    The mean of the clients' inequalities, by ``||grad F||^2 = (1 / M) sum_c ||grad f_c||^2 -
    (1 / M) sum_c ||grad f_c - grad F||^2`` and Jensen's inequality.

    Args:
        gap: ``F(theta) - F*``.

    Raises:
        ValueError: alpha outside [1, 2], mu not positive, gap or zeta negative.

    References:
        Equation 19, of which the appendix shows the use.

    Example:
        >>> float(gradient_lower_bound(2.0, alpha=2.0, mu=0.5, zeta=1.0))
        1.0
    """
    alpha = exponent(alpha)
    (mu,) = positive(mu=mu)
    gap, zeta = non_negative(gap=gap, zeta=zeta)
    return mu * gap**alpha - zeta**2


def drift_bound(
    squared_gradient: Scalar,
    *,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    K: Scalar,
    zeta: Scalar = 0.0,
    form: Form = "corrected",
) -> Array:
    r"""How far the clients go from the round's start, given the model there.

    .. math:: \frac{1}{M K} \sum_c \sum_{k=1}^{K-1} E \|\theta_r - \theta_{r,k}^c\|^2
        \le 4 \eta^2 (K-1)^2 (\|\nabla F(\theta_r)\|^2 + \zeta^2) + 4 \eta^2 (K-1) \sigma^2

    Args:
        squared_gradient: ``||grad F(theta_r)||^2``, or its mean over runs.
        form: "printed": for ``lr <= 1 / (L K)``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (2 L K)``.

    Raises:
        ValueError: a constant that is not positive (negative for squared_gradient, sigma, zeta),
            an unknown form.

    References:
        Lemma F.1.

    Example:
        >>> round(float(drift_bound(1.0, lr=0.1, L=1.0, sigma=1.0, K=3)), 3)  # 0.16 + 0.08
        0.24
    """
    check_choice("form", form, Form)
    lr, L, K = positive(lr=lr, L=L, K=K)
    squared, sigma, zeta = non_negative(squared_gradient=squared_gradient, sigma=sigma, zeta=zeta)
    value = 4 * lr**2 * ((K - 1) ** 2 * (squared + zeta**2) + (K - 1) * sigma**2)
    if form == "printed":
        return where_valid(value, at_most(lr, 1 / (L * K)), "lr <= 1 / (L K)")
    return where_valid(value, at_most(lr, 1 / (2 * L * K)), "lr <= 1 / (2 L K)")


def round_bound(
    gap: Scalar,
    squared_gradient: Scalar,
    *,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    zeta: Scalar = 0.0,
    rounded: bool = False,
) -> Array:
    r"""The gap after one round, given the model at its start.

    .. math:: E F(\theta_{r+1}) - F^* \le F(\theta_r) - F^* - A \|\nabla F(\theta_r)\|^2
        + c\, \zeta^2 + n

    * K = 1: ``A = lr (1 - L lr)``, ``c = 0``, ``n = L lr^2 sigma^2 / M``;
    * K > 1: ``c = 2 lr^3 K (K - 1)^2 L^2 + 16 lr^4 K^2 (K - 1)^2 L^3``, ``A = lr K / 2 - c`` and
      ``n = (4 lr^2 K L / M + 2 lr^3 K (K - 1) L^2 + 16 lr^4 K^2 (K - 1) L^3) sigma^2``;
    * rounded, every K: ``A = lr K / 4``, ``c = lr K`` and
      ``n = (4 lr^2 K L / M + 3 lr^3 K (K - 1) L^2) sigma^2``.

    Args:
        gap: ``F(theta_r) - F*``.
        squared_gradient: ``||grad F(theta_r)||^2``.
        rounded: with the paper's rounder and larger numbers.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (18 L K)``; for
        K = 1, unless rounded, where ``lr > 1 / L``.

    Raises:
        ValueError: a constant that is not positive (negative for gap, squared_gradient, sigma,
            zeta).

    References:
        Equation 39 and, not rounded, the display before it; for K = 1 Equation 35.

    Example:
        >>> constants = dict(lr=0.1, L=1.0, sigma=1.0, M=2, K=1)
        >>> round(float(round_bound(1.0, 2.0, **constants)), 3)  # 1 - 0.09 * 2 + 0.005
        0.825
    """
    lr, L, M, K = positive(lr=lr, L=L, M=M, K=K)
    gap, squared = non_negative(gap=gap, squared_gradient=squared_gradient)
    sigma, zeta = non_negative(sigma=sigma, zeta=zeta)
    if rounded:
        noise = 4 * lr**2 * K * L / M + 3 * lr**3 * K * (K - 1) * L**2
        value = gap + lr * K * (zeta**2 - squared / 4) + noise * sigma**2  # Equation 39
        return where_valid(value, at_most(lr, 1 / (18 * L * K)), "lr <= 1 / (18 L K)")
    descent, spread, noise = _one_round(lr, L, sigma, M, K)
    value = gap - descent * squared + spread * zeta**2 + noise
    return where_valid(value, _one_round_condition(lr, L, K), _ONE_ROUND)


def recursion_bound(
    gap: Scalar,
    *,
    alpha: Scalar,
    mu: Scalar,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    M: Scalar,
    K: Scalar,
    R: int,
    zeta: Scalar = 0.0,
) -> Array:
    r"""The gap after every round, by iterating the inequality of one round.

    .. math:: s_{r+1} = s_r - A \mu s_r^\alpha + (A + c)\, \zeta^2 + n, \qquad
        s_0 = F(\theta_0) - F^*

    with ``A``, ``c``, ``n`` of :func:`round_bound`, not rounded.  By
    :func:`gradient_lower_bound` and Jensen's inequality ``E F(theta_r) - F* <= s_r`` as long as the
    map grows on ``[0, s_r]``, which is ``A mu alpha s_r^(alpha - 1) <= 1``.  Far below the closed
    forms, which solve the rounded inequality.

    Args:
        gap: ``F(theta_0) - F*``.
        R: rounds; static.

    Returns:
        ``[R + 1]``: ``s_0, ..., s_R``.  NaN, and for concrete arguments a warning, where
        ``lr > 1 / (18 L K)``, for K = 1 ``lr > 1 / L``, and after the first round that starts
        where the map falls.

    Raises:
        ValueError: alpha outside [1, 2], no rounds, a constant that is not positive (negative for
            gap, sigma, zeta).

    References:
        The proofs of Theorems F.2 and F.4, without their roundings.

    Example:
        >>> constants = dict(alpha=1.0, mu=1.0, lr=0.5, L=1.0, sigma=0.0, M=2, K=1, R=2)
        >>> recursion_bound(1.0, **constants).tolist()  # 1 - 0.5 (1 - 0.5)
        [1.0, 0.75, 0.5625]
    """
    if R < 1:
        raise ValueError(f"R is {R}; expected at least 1 round")
    alpha = exponent(alpha)
    mu, lr, L, M, K = positive(mu=mu, lr=lr, L=L, M=M, K=K)
    gap, sigma, zeta = non_negative(gap=gap, sigma=sigma, zeta=zeta)
    descent, spread, noise = _one_round(lr, L, sigma, M, K)
    added = (descent + spread) * zeta**2 + noise

    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], tuple]:
        s, valid = carry
        following = valid & at_most(descent * mu * alpha * s ** (alpha - 1), jnp.ones_like(s))
        # Once invalid, the sequence stands still: a falling map may leave the positive numbers.
        new = jnp.where(following, s - descent * mu * s**alpha + added, s)
        return (new, following), (new, following)

    condition = _one_round_condition(lr, L, K)
    shape = jnp.broadcast_shapes(*(x.shape for x in (gap, condition, alpha, mu, added)))
    first = (jnp.broadcast_to(gap, shape), jnp.broadcast_to(condition, shape))
    _, (values, valid) = jax.lax.scan(step, first, length=R)
    values = jnp.concatenate([first[0][None], values])
    valid = jnp.concatenate([first[1][None], valid])
    return where_valid(values, valid, f"{_ONE_ROUND}, and A mu alpha s^(alpha - 1) <= 1")


def _one_round_condition(lr: Array, L: Array, K: Array) -> Array:
    return at_most(lr, jnp.where(K == 1, 1 / L, 1 / (18 * L * K)))


def _one_round(lr: Array, L: Array, sigma: Array, M: Array, K: Array) -> tuple[Array, Array, Array]:
    """A, c and n of ``- A ||grad F||^2 + c zeta^2 + n``."""
    single = K == 1
    x = lr * L
    drift = lr * K * (K - 1) * x**2 * (2 + 16 * x * K)  # 0 for K = 1
    spread = (K - 1) * drift
    descent = jnp.where(single, lr * (1 - x), lr * K / 2 - spread)
    noise = jnp.where(single, 1.0, 4 * K) * lr * x / M + drift
    return descent, spread, noise * sigma**2
