r"""Optimisation error of FedMoSWA and its relatives, as functions of their constants.

From Liu et al. (2025), "Improving Generalization in Federated Learning with Highly Heterogeneous
Data via Momentum-Based Stochastic Controlled Weight Averaging" (ICML): Table 1, Theorem 5.2 and
Appendix G, which adapts the analysis of SCAFFOLD (Karimireddy et al., 2020).

Notation: ``beta``-smooth objectives of m clients, s of them in each of T rounds, K local steps of
the constant rate ``lr``, server rate ``alpha >= 1``, control momentum ``gamma``; ``sigma`` bounds
the minibatch noise, ``F = F(theta_0) - F*``.  The effective step is ``step = K alpha lr``.

Slips of the paper, corrected by default and kept under ``form="printed"``:

* Theorem 5.2 prints ``m / alpha^2`` in its non-convex rate, Table 1 and Lemma G.18 ``s / alpha^2``;
  the proof gives s.  Likewise ``1 + m`` for SCAFFOLD in the text.
* Theorem 5.2's exponent is a sum, ``s / m + mu / beta``; Lemma G.5 with the theorem's step gives
  the smaller of the two, as in SCAFFOLD's theorem.
* Lemma G.13 drops the lag D_t of the server's control from its potential and gamma from its
  conditions, though Equation 85 uses ``9 mu step / (2 gamma) <= 1 / 3``.  With the term
  ``9 step^2 / gamma D_t`` kept, ``80 beta step <= 24 / 25`` is needed; the paper has 44.
* Lemma G.18 drops the same lag.  With it the drift's coefficient
  ``1 / 2 + 2 x + 97 / 2 x`` must be at most 5 / 3, ``x = beta step max(m / s, 1 / gamma)^(2/3)``:
  x <= 1 / 44 where the paper has 1 / 24; and the noise has the factor 21 / 4 instead of 5.
* Equation 68 and Section G.3 write beta for gamma: the momentum's recursion has gamma.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

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
from fedjax_sim.theory.fedswa import Value

Method = Literal["fedsam", "mofedsam", "fedswa", "fedmoswa", "scaffold"]


class Descent(NamedTuple):
    """What T rounds of Lemma G.13 lead to."""

    potential: Array  # bound of E[||theta_T - theta*||^2 + lags]
    gap: Array  # bound of the weighted mean of F(theta_t) - F*, t = 0 .. T - 1


def control_lag(lag: Value, drift: Value, gap: Value, *, beta: Value, share: Value) -> Array:
    """One round of ``C_t`` (Lemma G.10, ``share = s / m``) or ``D_t`` (Lemma G.11, ``gamma``).

    ``(1 - share) lag + share (4 beta gap + 2 beta^2 drift)`` bounds the lag after the round.

    Args:
        lag: C_{t-1} = mean over clients of ``||E c_i - grad F_i(theta*)||^2``, or
            D_{t-1} = ``E||m_{t-1}||^2``.
        drift: E_t = mean over clients and steps of ``E||theta_ik - theta_{t-1}||^2``.
        gap: ``E F(theta_{t-1}) - F*``.
        share: what the controls take from the round, s / m or gamma.

    Raises:
        ValueError: a negative argument.

    Example:
        >>> float(control_lag(1.0, drift=0.0, gap=0.5, beta=1.0, share=0.25))
        1.25
    """
    lag, drift, gap = non_negative(lag=lag, drift=drift, gap=gap)
    beta, share = positive(beta=beta, share=share)
    value = (1 - share) * lag + share * (4 * beta * gap + 2 * beta**2 * drift)
    return where_valid(value, at_most(share, jnp.ones_like(share)), "share <= 1")


def strongly_convex_descent(
    potential: Value,
    *,
    beta: Value,
    mu: Value,
    sigma: Value,
    m: Value,
    s: Value,
    K: Value,
    T: Value,
    lr: Value,
    alpha: Value = 1.0,
    gamma: Value = 1.0,
    form: Form = "corrected",
) -> Descent:
    r"""Lemma G.13 over T rounds: FedMoSWA on ``mu``-strongly convex objectives.

    .. math:: V_t \le (1 - \mu \tilde\eta / 2) V_{t-1} - \tilde\eta (E F(\theta_{t-1}) - F^*) + N,
        \qquad N = \frac{12 \tilde\eta^2 \sigma^2}{K s} \Bigl(1 + \frac{s}{\alpha^2}\Bigr)

    With ``q = 1 - mu step / 2`` then ``V_T <= q^T V_0 + N (1 - q^T) / (1 - q)``, and the mean of
    the gaps with weights ``q^-(t+1)`` is at most ``(V_0 / sum_t q^-(t+1) + N) / step``.

    Args:
        potential: ``V_0 = ||theta_0 - theta*||^2 + 9 m step^2 / s C_0 + 9 step^2 / gamma D_0``;
            the printed form has no D_0.

    Returns:
        Both bounds; NaN, and for concrete arguments a warning, where a condition fails:
        ``alpha >= 1``, ``step <= s / (15 mu m)`` and ``step <= 1 / (81 beta)`` (printed) or
        ``step <= min(3 / (250 beta), 2 gamma / (27 mu))`` (corrected).

    Raises:
        ValueError: a constant that is not positive (potential, sigma: negative), an unknown form.

    Example:
        >>> constants = dict(beta=1.0, mu=0.1, sigma=0.0, m=10, s=5, K=5, T=2000, lr=2e-3)
        >>> round(float(strongly_convex_descent(1.0, **constants).potential), 3)  # q^T, q = 0.9995
        0.368
    """
    check_choice("form", form, Form)
    beta, mu, m, s, K, T = positive(beta=beta, mu=mu, m=m, s=s, K=K, T=T)
    lr, alpha, gamma = positive(lr=lr, alpha=alpha, gamma=gamma)
    potential, sigma = non_negative(potential=potential, sigma=sigma)
    step = K * alpha * lr
    limits, text = [s / (15 * mu * m)], "alpha >= 1 and K alpha lr <= min(s / (15 mu m), "
    if form == "printed":
        limits, text = [*limits, 1 / (81 * beta)], text + "1 / (81 beta))"
    else:
        limits = [*limits, 3 / (250 * beta), 2 * gamma / (27 * mu)]
        text += "3 / (250 beta), 2 gamma / (27 mu))"
    valid = at_most(step, *limits) & (alpha >= 1)
    noise = 12 * step**2 / (K * s) * (1 + s / alpha**2) * sigma**2
    log_q = jnp.log1p(-mu * step / 2)
    left = jnp.exp(T * log_q)  # q^T
    final = left * potential + noise * (1 - left) / (mu * step / 2)
    # 1 / sum_t q^-(t+1) = q^T (1 - q) / (1 - q^T)
    inverse_weight = left * (mu * step / 2) / -jnp.expm1(T * log_q)
    gap = (potential * inverse_weight + noise) / step
    return Descent(where_valid(final, valid, text), where_valid(gap, valid, text))


def nonconvex_descent(
    *,
    beta: Value,
    sigma: Value,
    F: Value,
    m: Value,
    s: Value,
    K: Value,
    T: Value,
    lr: Value,
    alpha: Value = 1.0,
    gamma: Value = 1.0,
    form: Form = "corrected",
) -> Array:
    r"""Lemma G.18 summed: the mean of ``E||grad F(theta_t)||^2`` over T rounds of FedMoSWA.

    .. math:: \frac{14 F}{\tilde\eta T} + \frac{14 v \beta \tilde\eta \sigma^2}{K s}
        \Bigl(1 + \frac{s}{\alpha^2}\Bigr)

    for controls that start as the gradients at ``theta_0``; v is 5 in print, 21 / 4 corrected.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where a condition fails:
        ``alpha >= 1`` and ``step <= (s / m)^(2/3) / (24 beta)`` (printed) or
        ``step <= min(s / m, gamma)^(2/3) / (44 beta)`` (corrected).

    Raises:
        ValueError: a constant that is not positive (negative for F, sigma), an unknown form.

    Example:
        >>> constants = dict(beta=1.0, F=2.0, m=8, s=1, K=5, T=1000, gamma=0.125, lr=1e-3)
        >>> round(float(nonconvex_descent(sigma=0.0, **constants)), 3)  # 14 * 2 / (0.005 * 1000)
        5.6
    """
    check_choice("form", form, Form)
    beta, m, s, K, T = positive(beta=beta, m=m, s=s, K=K, T=T)
    lr, alpha, gamma = positive(lr=lr, alpha=alpha, gamma=gamma)
    sigma, F = non_negative(sigma=sigma, F=F)
    step = K * alpha * lr
    if form == "printed":
        factor, limit = 5.0, (s / m) ** (2 / 3) / (24 * beta)
        text = "alpha >= 1 and K alpha lr <= (s / m)^(2/3) / (24 beta)"
    else:
        factor, limit = 21 / 4, jnp.minimum(s / m, gamma) ** (2 / 3) / (44 * beta)
        text = "alpha >= 1 and K alpha lr <= min(s / m, gamma)^(2/3) / (44 beta)"
    noise = beta * step * sigma**2 / (K * s) * (1 + s / alpha**2)
    value = 14 * F / (step * T) + 14 * factor * noise
    return where_valid(value, at_most(step, limit) & (alpha >= 1), text)


def strongly_convex_rate(
    *,
    beta: Value,
    mu: Value,
    sigma: Value,
    D: Value,
    m: Value,
    s: Value,
    K: Value,
    T: Value,
    alpha: Value = 1.0,
    form: Form = "corrected",
) -> Array:
    r"""Theorem 5.2's rate for FedMoSWA on strongly convex objectives, its O() taken as 1.

    .. math:: \frac{\sigma^2}{\mu T K s} \Bigl(1 + \frac{s}{\alpha^2}\Bigr)
        + \frac{m \mu}{s} D^2 \exp\Bigl(-\min\Bigl\{\frac{s}{m}, \frac{\mu}{\beta}\Bigr\} T\Bigr)

    Args:
        D: ``D^2 = ||theta_0 - theta*||^2 + sum_i ||c_i - grad F_i(theta*)||^2 / (2 m beta^2)``.
        form: printed, the sum of the two in the exponent.

    Returns:
        The rate; NaN, and for concrete arguments a warning, where ``T < max(beta / mu, m / s)``.

    Raises:
        ValueError: a constant that is not positive (negative for D, sigma), an unknown form.

    Example:
        >>> constants = dict(beta=1.0, mu=0.1, D=1.0, m=10, s=5, K=5, T=100)
        >>> f"{strongly_convex_rate(sigma=0.0, **constants):.2e}"  # 0.2 e^-10
        '9.08e-06'
    """
    check_choice("form", form, Form)
    beta, mu, m, s, K, T = positive(beta=beta, mu=mu, m=m, s=s, K=K, T=T)
    (alpha,) = positive(alpha=alpha)
    sigma, D = non_negative(sigma=sigma, D=D)
    speed = jnp.minimum(s / m, mu / beta) if form == "corrected" else s / m + mu / beta
    noise = sigma**2 / (mu * T * K * s) * (1 + s / alpha**2)
    value = noise + m * mu / s * D**2 * jnp.exp(-speed * T)
    valid = at_most(jnp.maximum(beta / mu, m / s), T)
    return where_valid(value, valid, "T >= max(beta / mu, m / s)")


def nonconvex_rate(
    method: Method,
    *,
    beta: Value,
    sigma: Value,
    F: Value,
    s: Value,
    K: Value,
    T: Value,
    m: Value,
    sigma_g: Value = 0.0,
    lipschitz: Value = 0.0,
    alpha: Value = 1.0,
    form: Form = "corrected",
) -> Array:
    r"""Table 1's optimisation errors of non-convex objectives, their O() taken as 1.

    * ``"fedsam"``: ``beta F / sqrt(TKs) + sqrt(K) sigma_g^2 / sqrt(Ts) + L^2 sigma^2 / (T^{3/2} K)
      + L^2 / T^2``
    * ``"mofedsam"``: ``beta L F / sqrt(TKs) + beta sqrt(K) sigma_g^2 / sqrt(Ts)
      + L^2 sigma^2 / (T^{3/2} K) + sqrt(K) L^2 / (T^{3/2} sqrt(s))``
    * ``"fedswa"``: ``beta (sigma + sqrt(K) sigma_g) sqrt(F) / sqrt(TKs)
      + F^{2/3} (beta sigma_g^2)^{1/3} / T^{2/3} + beta F / T``
    * ``"fedmoswa"``: ``sigma sqrt(F) sqrt(1 + s / alpha^2) / sqrt(TKs) + beta F (m / s)^{2/3} / T``
      (also Theorem 5.2, which prints m for s under the root)
    * ``"scaffold"``: the same with alpha = 1

    Rates of different methods can be compared in how they change, not by their values.

    Args:
        method: whose rate.
        lipschitz: L, of the SAM methods only.
        sigma_g: of all but the controlled methods.

    Raises:
        ValueError: a constant that is not positive (F, sigma, sigma_g, lipschitz: negative), an
            unknown method or form.

    Example:
        >>> constants = dict(beta=1.0, sigma=1.0, F=1.0, s=1, K=1, T=100, m=8)
        >>> round(float(nonconvex_rate("fedmoswa", **constants)), 4)  # sqrt(2) / 10 + 4 / 100
        0.1814
    """
    check_choice("method", method, Method)
    check_choice("form", form, Form)
    beta, m, s, K, T, alpha = positive(beta=beta, m=m, s=s, K=K, T=T, alpha=alpha)
    sigma, sigma_g, F, L = non_negative(sigma=sigma, sigma_g=sigma_g, F=F, lipschitz=lipschitz)
    root = jnp.sqrt(T * K * s)
    long = T * jnp.sqrt(T)

    def controlled(alpha: Array) -> Array:
        variance = 1 + (s if form == "corrected" else m) / alpha**2
        return sigma * jnp.sqrt(F * variance) / root + beta * F / T * (m / s) ** (2 / 3)

    rates: dict[str, Callable[[], Array]] = {
        "fedsam": lambda: (
            beta * F / root
            + jnp.sqrt(K) * sigma_g**2 / jnp.sqrt(T * s)
            + (L * sigma) ** 2 / (long * K)
            + (L / T) ** 2
        ),
        "mofedsam": lambda: (
            beta * L * F / root
            + beta * jnp.sqrt(K) * sigma_g**2 / jnp.sqrt(T * s)
            + (L * sigma) ** 2 / (long * K)
            + jnp.sqrt(K) * L**2 / (long * jnp.sqrt(s))
        ),
        "fedswa": lambda: (
            beta * (sigma + jnp.sqrt(K) * sigma_g) * jnp.sqrt(F) / root
            + F ** (2 / 3) * (beta * sigma_g**2) ** (1 / 3) / T ** (2 / 3)
            + beta * F / T
        ),
        "fedmoswa": lambda: controlled(alpha),
        "scaffold": lambda: controlled(jnp.ones_like(alpha)),
    }
    return rates[method]()
