r"""Optimisation error of FedMoSWA: the descent lemmas over T rounds, and Theorem 5.2's rate.

Source: Theorem 5.2, Lemmas G.13 and G.18 (see :mod:`fedjax_sim.theory.fedswa`).  The rate ``lr`` is
constant within a round, the server's rate is ``alpha >= 1`` and the effective step is
``step = K alpha lr``.  ``p = s / m`` and ``q = min(p, gamma)``.

The paper's proofs are SCAFFOLD's, whose server control is the mean of the clients' controls.
FedMoSWA's is a moving average over cohorts.  With it the printed lemmas are false (see the errata):
at partial participation FedMoSWA leaves an optimum even without noise of gradients.  The bounds
here are proven for the virtual iterates

.. math:: z_t = \theta_t + \frac{\tilde\eta}{p} \operatorname{mean}_i c_i
    - \frac{\tilde\eta}{\gamma} m_t, \qquad
    z_t = z_{t-1} - \tilde\eta \operatorname{mean}_{i \in S_t, k} g_i(\theta_{ik}),

which take the steps of FedAvg.  With full participation their noise is that of the gradients alone,
otherwise also that of the cohort's choice, as for FedAvg.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.types import shown


def cohort_variance(spread: Scalar, *, clients: Scalar, cohort_size: Scalar) -> Array:
    """Variance of the mean of s out of m vectors, drawn without replacement.

    ``spread^2 (m - s) / (s (m - 1))``; 0 at full participation.

    Args:
        spread: root mean square distance of the m vectors from their mean.

    Raises:
        ValueError: more clients in a cohort than there are.

    Example:
        >>> float(cohort_variance(3.0, clients=10, cohort_size=1))
        9.0
    """
    m, s = positive(clients=clients, cohort_size=cohort_size)
    (spread,) = non_negative(spread=spread)
    non_negative(**{"clients - cohort_size": m - s})
    return spread**2 * (m - s) / (s * jnp.maximum(m - 1, 1))


@shown
class Descent(NamedTuple):
    """Bounds after T rounds of Lemma G.13."""

    potential: Array  # bound of E[||z_T - theta*||^2 + lags]
    gap: Array  # bound of the weighted mean of F(z_t) - F*, t = 0 .. T - 1


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

    .. math:: V_t &\le (1 - \mu \tilde\eta / 2) V_{t-1}
        - \tfrac{3}{2} \tilde\eta (E F(z_{t-1}) - F^*) + N, \qquad x = \beta \tilde\eta, \quad
        w = \zeta_*^2 \frac{m - s}{s (m - 1)} \\
        V_t &= E||z_t - \theta^*||^2
            + 25 x \tilde\eta^2 \Bigl(\frac{C_t}{p^3} + \frac{D_t}{\gamma^3}\Bigr) \\
        N &= \tilde\eta^2 \Bigl(\Bigl(3 + \frac{50 x}{\gamma}\Bigr) w + \frac{\sigma^2}{K s} \Bigl(2
            + \frac{100 x}{\gamma^2} + \frac{50 x s}{p^2} + \frac{4.2 x s}{\alpha^2}\Bigr)\Bigr)

    With ``r = 1 - mu step / 2`` then ``V_T <= r^T V_0 + N (1 - r^T) / (1 - r)``, and the mean of
    the gaps with weights ``r^-(t+1)`` is at most ``(V_0 / sum_t r^-(t+1) + N) / (1.5 step)``.

    Needs L (beta), mu, sigma, zeta_star.

    Args:
        potential: V_0; C is the mean over clients of ``E||c_i - grad F_i(theta*)||^2``, D is
            ``E||m||^2``, for the controls c_i and the momentum m of :func:`fedjax_sim.fedmoswa`.

    Returns:
        Both bounds; NaN with a warning where a condition fails: ``alpha >= 1``, ``gamma <= 1`` and
        ``step <= min(s / m, gamma) / (48 beta)``.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.1, sigma=0.0, zeta_star=0.0)
        >>> sizes = dict(local_steps=5, rounds=2000, clients=10, cohort_size=5)
        >>> value = strongly_convex_descent(constants, potential=1.0, lr=2e-3, **sizes)
        >>> round(float(value.potential), 3)  # r^T, r = 0.9995
        0.368
    """
    beta, mu, lr, K, T = positive(
        constants, "L", "mu", lr=lr, local_steps=local_steps, rounds=rounds
    )
    m, s, alpha, gamma = positive(
        clients=clients, cohort_size=cohort_size, alpha=alpha, gamma=gamma
    )
    sigma, zeta, potential = non_negative(constants, "sigma", "zeta_star", potential=potential)
    step, p = K * alpha * lr, s / m
    x = beta * step
    sampling = (3 + 50 * x / gamma) * cohort_variance(zeta, clients=m, cohort_size=s)
    factor = 2 + 100 * x / gamma**2 + 50 * x * s / p**2 + 4.2 * x * s / alpha**2
    noise = step**2 * (sampling + factor * sigma**2 / (K * s))
    log_r = jnp.log1p(-mu * step / 2)
    left, gone = jnp.exp(T * log_r), -jnp.expm1(T * log_r)  # r^T and 1 - r^T
    final = left * potential + noise * gone / (mu * step / 2)
    # 1 / sum_t r^-(t+1) = r^T (1 - r) / (1 - r^T)
    inverse_weight = left * (mu * step / 2) / gone
    gap = (potential * inverse_weight + noise) / (1.5 * step)
    valid = _valid(x, alpha, gamma, p, 48)
    text = "alpha >= 1, gamma <= 1 and K alpha lr <= min(s / m, gamma) / (48 beta)"
    return Descent(where_valid(final, valid, text), jnp.where(valid, gap, jnp.nan))


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

    .. math:: &\frac{6.6 \Delta}{\tilde\eta T} + 6 x \Bigl(
        \Bigl(1 + \frac{48 x \gamma^2}{q^3}\Bigr) \Bigl(w + \frac{\sigma^2}{K s}\Bigr)
        + \frac{x \sigma^2}{K} \Bigl(\frac{48 p}{q^3} + \frac{2}{q \alpha^2}
        + \frac{1}{2 s q^2}\Bigr)\Bigr), \\
        &x = \beta \tilde\eta, \quad w = \zeta^2 \frac{m - s}{s (m - 1)}

    for controls that start as the full gradients at ``theta_0``.

    The lemma behind it: ``F(z_t) + 16 beta^2 step^3 (C_t + D_t) / q^3`` falls by at least
    ``step E||grad F(theta_{t-1})||^2 / 6`` minus the noise per round.  C is the mean over clients
    of ``E||c_i - grad F_i(theta)||^2``, D is ``E||m - grad F(theta)||^2``.

    Needs L (beta), sigma, Delta, zeta_mean.  NaN with a warning where a condition fails:
    ``alpha >= 1``, ``gamma <= 1`` and ``step <= min(s / m, gamma) / (24 beta)``.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, Delta=2.0, zeta_mean=0.0)
        >>> sizes = dict(local_steps=5, rounds=1000, clients=8, cohort_size=1)
        >>> value = nonconvex_descent(constants, lr=1e-3, gamma=0.125, **sizes)
        >>> round(float(value), 3)  # 6.6 * 2 / (0.005 * 1000)
        2.64
    """
    beta, lr, K, T = positive(constants, "L", lr=lr, local_steps=local_steps, rounds=rounds)
    m, s, alpha, gamma = positive(
        clients=clients, cohort_size=cohort_size, alpha=alpha, gamma=gamma
    )
    sigma, Delta, zeta = non_negative(constants, "sigma", "Delta", "zeta_mean")
    step, p = K * alpha * lr, s / m
    x, q = beta * step, jnp.minimum(p, gamma)
    variance = cohort_variance(zeta, clients=m, cohort_size=s) + sigma**2 / (K * s)
    controls = 48 * p / q**3 + 2 / (q * alpha**2) + 1 / (2 * s * q**2)
    noise = (1 + 48 * x * gamma**2 / q**3) * variance + x * sigma**2 / K * controls
    value = 6.6 * Delta / (step * T) + 6 * x * noise
    text = "alpha >= 1, gamma <= 1 and K alpha lr <= min(s / m, gamma) / (24 beta)"
    return where_valid(value, _valid(x, alpha, gamma, p, 24), text)


def strongly_convex_rate(
    constants: ProblemConstants,
    *,
    distance: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    alpha: Scalar = 1.0,
    gamma: Scalar = 1.0,
) -> Array:
    r"""Theorem 5.2's rate for FedMoSWA on strongly convex objectives, its O() taken as 1.

    .. math:: \frac{1}{\mu T} \Bigl(\frac{\sigma^2}{K s} \Bigl(1 + \frac{s}{\alpha^2}\Bigr)
        + \zeta_*^2 \frac{m - s}{s (m - 1)}\Bigr)
        + \mu D^2 \exp\Bigl(-\frac{\mu}{\beta} \min\Bigl\{\frac{s}{m}, \gamma\Bigr\} T\Bigr)

    Needs L (beta), mu, sigma, zeta_star.  NaN with a warning where
    ``T < beta / (mu min(s / m, gamma))``.  Source: Theorem 5.2, corrected by Lemmas G.13 and G.5
    (see the errata).

    Args:
        distance: D, with ``D^2 = ||theta_0 - theta*||^2
            + sum_i ||c_i - grad F_i(theta*)||^2 / (2 m beta^2)``.

    Example:
        >>> constants = ProblemConstants(L=1.0, mu=0.1, sigma=0.0, zeta_star=0.0)
        >>> sizes = dict(local_steps=5, rounds=200, clients=10, cohort_size=5)
        >>> f"{strongly_convex_rate(constants, distance=1.0, **sizes):.2e}"  # 0.1 e^-10
        '4.54e-06'
    """
    beta, mu, K, T = positive(constants, "L", "mu", local_steps=local_steps, rounds=rounds)
    m, s, alpha, gamma = positive(
        clients=clients, cohort_size=cohort_size, alpha=alpha, gamma=gamma
    )
    sigma, zeta, D = non_negative(constants, "sigma", "zeta_star", distance=distance)
    speed = mu / beta * jnp.minimum(s / m, gamma)
    noise = sigma**2 / (K * s) * (1 + s / alpha**2)
    noise += cohort_variance(zeta, clients=m, cohort_size=s)
    value = noise / (mu * T) + mu * D**2 * jnp.exp(-speed * T)
    return where_valid(value, at_most(1 / speed, T), "T >= beta / (mu min(s / m, gamma))")


def _valid(x: Array, alpha: Array, gamma: Array, share: Array, limit: int) -> Array:
    one = jnp.ones_like(gamma)
    small = at_most(limit * x, jnp.minimum(share, gamma))
    return small & (alpha >= 1) & at_most(gamma, one)
