r"""Optimisation error of FedMoSWA: the descent lemmas over T rounds, and Theorem 5.2's rate.

Source: Theorem 5.2 and Appendix G (see :mod:`fedjax_sim.theory.fedswa`), with the corrections in
the errata.  The rate ``lr`` is constant within a round, the server's rate is ``alpha >= 1``, and
the effective step is ``step = K alpha lr``.  ``Delta = F(theta_0) - F*``.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar


class Descent(NamedTuple):
    """Bounds after T rounds of Lemma G.13."""

    potential: Array  # bound of E[||theta_T - theta*||^2 + lags]
    gap: Array  # bound of the weighted mean of F(theta_t) - F*, t = 0 .. T - 1


def control_lag_bound(
    constants: ProblemConstants, *, lag: Scalar, drift: Scalar, gap: Scalar, share: Scalar
) -> Array:
    """The lag of the control variates after one round, from the lag before it.

    ``(1 - share) lag + share (4 beta gap + 2 beta^2 drift)`` bounds C_t (Lemma G.10,
    ``share = s / m``) or D_t (Lemma G.11, ``share = gamma``).

    Args:
        constants: needs L (beta).
        lag: C_{t-1} = mean over clients of ``||E c_i - grad F_i(theta*)||^2``, or
            D_{t-1} = ``E||m_{t-1}||^2``.
        drift: E_t = mean over clients and steps of ``E||theta_ik - theta_{t-1}||^2``.
        gap: ``E F(theta_{t-1}) - F*``.
        share: the weight of the new round in the controls, s / m or gamma.

    Returns:
        The bound; NaN with a warning where ``share > 1``.

    Example:
        >>> constants = ProblemConstants(L=1.0)
        >>> float(control_lag_bound(constants, lag=1.0, drift=0.0, gap=0.5, share=0.25))
        1.25
    """
    lag, drift, gap = non_negative(lag=lag, drift=drift, gap=gap)
    beta, share = positive(constants, "L", share=share)
    value = (1 - share) * lag + share * (4 * beta * gap + 2 * beta**2 * drift)
    return where_valid(value, at_most(share, jnp.ones_like(share)), "share <= 1")


def strongly_convex_descent(
    constants: ProblemConstants,
    *,
    potential: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    alpha: Scalar = 1.0,
    gamma: Scalar = 1.0,
) -> Descent:
    r"""Lemma G.13 over T rounds: FedMoSWA on mu-strongly convex objectives.

    .. math:: V_t \le (1 - \mu \tilde\eta / 2) V_{t-1} - \tilde\eta (E F(\theta_{t-1}) - F^*) + N,
        \qquad N = \frac{12 \tilde\eta^2 \sigma^2}{K s} \Bigl(1 + \frac{s}{\alpha^2}\Bigr)

    With ``q = 1 - mu step / 2`` then ``V_T <= q^T V_0 + N (1 - q^T) / (1 - q)``, and the mean of
    the gaps with weights ``q^-(t+1)`` is at most ``(V_0 / sum_t q^-(t+1) + N) / step``.

    Needs L (beta), mu, sigma.  Source: Lemma G.13 with the lag D_t kept (see the errata).

    Args:
        potential: ``V_0 = ||theta_0 - theta*||^2 + 9 m step^2 / s C_0 + 9 step^2 / gamma D_0``,
            lags as in :func:`control_lag_bound`.

    Returns:
        Both bounds; NaN with a warning where a condition fails: ``alpha >= 1``,
        ``step <= s / (15 mu m)`` and ``step <= min(3 / (250 beta), 2 gamma / (27 mu))``.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.1, sigma=0.0)
        >>> sizes = dict(local_steps=5, rounds=2000, clients=10, cohort_size=5)
        >>> value = strongly_convex_descent(constants, potential=1.0, lr=2e-3, **sizes)
        >>> round(float(value.potential), 3)  # q^T, q = 0.9995
        0.368
    """
    beta, mu, lr, K, T = positive(
        constants, "L", "mu", lr=lr, local_steps=local_steps, rounds=rounds
    )
    m, s, alpha, gamma = positive(
        clients=clients, cohort_size=cohort_size, alpha=alpha, gamma=gamma
    )
    sigma, potential = non_negative(constants, "sigma", potential=potential)
    step = K * alpha * lr
    limits = [s / (15 * mu * m), 3 / (250 * beta), 2 * gamma / (27 * mu)]
    valid = at_most(step, *limits) & (alpha >= 1)
    text = "alpha >= 1 and K alpha lr <= min(s / (15 mu m), 3 / (250 beta), 2 gamma / (27 mu))"
    noise = 12 * step**2 / (K * s) * (1 + s / alpha**2) * sigma**2
    log_q = jnp.log1p(-mu * step / 2)
    left = jnp.exp(T * log_q)  # q^T
    final = left * potential + noise * (1 - left) / (mu * step / 2)
    # 1 / sum_t q^-(t+1) = q^T (1 - q) / (1 - q^T)
    inverse_weight = left * (mu * step / 2) / -jnp.expm1(T * log_q)
    gap = (potential * inverse_weight + noise) / step
    return Descent(where_valid(final, valid, text), where_valid(gap, valid, text))


def nonconvex_descent(
    constants: ProblemConstants,
    *,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    alpha: Scalar = 1.0,
    gamma: Scalar = 1.0,
) -> Array:
    r"""Lemma G.18 summed: the mean of ``E||grad F(theta_t)||^2`` over T rounds of FedMoSWA.

    .. math:: \frac{14 \Delta}{\tilde\eta T} + \frac{14 v \beta \tilde\eta \sigma^2}{K s}
        \Bigl(1 + \frac{s}{\alpha^2}\Bigr), \qquad v = \frac{21}{4}

    for controls that start as the gradients at ``theta_0``.

    Needs L (beta), sigma, Delta.  NaN with a warning where a condition fails: ``alpha >= 1`` and
    ``step <= min(s / m, gamma)^(2/3) / (44 beta)``.  Source: Lemma G.18 with the lag D_t kept (see
    the errata).

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, Delta=2.0)
        >>> sizes = dict(local_steps=5, rounds=1000, clients=8, cohort_size=1)
        >>> value = nonconvex_descent(constants, lr=1e-3, gamma=0.125, **sizes)
        >>> round(float(value), 3)  # 14 * 2 / (0.005 * 1000)
        5.6
    """
    beta, lr, K, T = positive(constants, "L", lr=lr, local_steps=local_steps, rounds=rounds)
    m, s, alpha, gamma = positive(
        clients=clients, cohort_size=cohort_size, alpha=alpha, gamma=gamma
    )
    sigma, Delta = non_negative(constants, "sigma", "Delta")
    step = K * alpha * lr
    limit = jnp.minimum(s / m, gamma) ** (2 / 3) / (44 * beta)
    noise = beta * step * sigma**2 / (K * s) * (1 + s / alpha**2)
    value = 14 * Delta / (step * T) + 14 * (21 / 4) * noise
    text = "alpha >= 1 and K alpha lr <= min(s / m, gamma)^(2/3) / (44 beta)"
    return where_valid(value, at_most(step, limit) & (alpha >= 1), text)


def strongly_convex_rate(
    constants: ProblemConstants,
    *,
    distance: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    alpha: Scalar = 1.0,
) -> Array:
    r"""Theorem 5.2's rate for FedMoSWA on strongly convex objectives, its O() taken as 1.

    .. math:: \frac{\sigma^2}{\mu T K s} \Bigl(1 + \frac{s}{\alpha^2}\Bigr)
        + \frac{m \mu}{s} D^2 \exp\Bigl(-\min\Bigl\{\frac{s}{m}, \frac{\mu}{\beta}\Bigr\} T\Bigr)

    Needs L (beta), mu, sigma.  NaN with a warning where ``T < max(beta / mu, m / s)``.  Source:
    Theorem 5.2, with the smaller of the two exponents (see the errata).

    Args:
        distance: D, with ``D^2 = ||theta_0 - theta*||^2
            + sum_i ||c_i - grad F_i(theta*)||^2 / (2 m beta^2)``.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.1, sigma=0.0)
        >>> sizes = dict(local_steps=5, rounds=100, clients=10, cohort_size=5)
        >>> f"{strongly_convex_rate(constants, distance=1.0, **sizes):.2e}"  # 0.2 e^-10
        '9.08e-06'
    """
    beta, mu, K, T = positive(constants, "L", "mu", local_steps=local_steps, rounds=rounds)
    m, s, alpha = positive(clients=clients, cohort_size=cohort_size, alpha=alpha)
    sigma, D = non_negative(constants, "sigma", distance=distance)
    speed = jnp.minimum(s / m, mu / beta)
    noise = sigma**2 / (mu * T * K * s) * (1 + s / alpha**2)
    value = noise + m * mu / s * D**2 * jnp.exp(-speed * T)
    valid = at_most(jnp.maximum(beta / mu, m / s), T)
    return where_valid(value, valid, "T >= max(beta / mu, m / s)")
