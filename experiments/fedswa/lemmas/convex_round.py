r"""One round of FedMoSWA on convex objectives: movement, control lags and drift.

Source: Lemmas G.9 to G.12 (see :mod:`fedjax_sim.theory.fedswa`), with the corrections in the
errata.  The rate ``lr`` is constant within a round and the effective step is
``step = K alpha lr``.  Before the round the server has the model theta and the momentum m, client
i the control c_i:

* ``gap`` is ``E F(theta) - F*``,
* ``client_lag`` C is the mean over clients of ``E||c_i - grad F_i(theta*)||^2``,
* ``server_lag`` D is ``E||m||^2``,
* ``drift`` E_t is the mean over clients and steps of ``E||theta_ik - theta||^2``, at the models of
  the visits' gradients.

The lags contain the noise of the controls; the paper's C does not.  All clients are meant to visit,
the cohort (drawn uniformly without replacement) is the part of them that counts.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory import (
    ProblemConstants,
    Scalar,
    at_most,
    cohort_variance,
    non_negative,
    positive,
    where_valid,
)


def move_bound(
    constants: ProblemConstants,
    *,
    gap: Scalar,
    client_lag: Scalar,
    server_lag: Scalar,
    drift: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    cohort_size: Scalar,
    alpha: Scalar = 1.0,
) -> Array:
    r"""Lemma G.9: the squared distance ``E||theta_t - theta_{t-1}||^2`` of one round.

    .. math:: \tilde\eta^2 \Bigl(8 \beta (F(\theta) - F^*) + 4 C + 4 D + 4 \beta^2 E_t
        + \frac{2 \sigma^2}{K s}\Bigr)

    Needs L (beta), sigma.
    """
    beta, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    s, alpha = positive(cohort_size=cohort_size, alpha=alpha)
    sigma, gap, drift = non_negative(constants, "sigma", gap=gap, drift=drift)
    client_lag, server_lag = non_negative(client_lag=client_lag, server_lag=server_lag)
    lags = client_lag + server_lag
    noise = 2 * sigma**2 / (K * s)
    step = K * alpha * lr
    return step**2 * (8 * beta * gap + 4 * lags + 4 * beta**2 * drift + noise)  # Eq. (65)


def client_lag_bound(
    constants: ProblemConstants,
    *,
    lag: Scalar,  # C before the round
    drift: Scalar,
    gap: Scalar,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""Lemma G.10: the lag C of the clients' controls after one round.

    .. math:: C_t \le \Bigl(1 - \frac{s}{m}\Bigr) C_{t-1} + \frac{s}{m} \Bigl(
        4 \beta (F(\theta) - F^*) + 2 \beta^2 E_t + \frac{2 \sigma^2}{K}\Bigr)

    Needs L (beta), sigma.
    """
    m, s = positive(clients=clients, cohort_size=cohort_size)
    (lag,) = non_negative(lag=lag)
    non_negative(**{"clients - cohort_size": m - s})
    fresh = _fresh_lag(constants, drift, gap, local_steps, 1.0)
    return (1 - s / m) * lag + s / m * fresh  # Eq. (67)


def server_lag_bound(
    constants: ProblemConstants,
    *,
    lag: Scalar,  # D before the round
    drift: Scalar,
    gap: Scalar,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    gamma: Scalar,
) -> Array:
    r"""Lemma G.11: the lag D of the server's momentum after one round.

    .. math:: D_t \le (1 - \gamma) D_{t-1} + \gamma f + \gamma^2 (2 \sqrt{f w} + w), \quad
        f = 4 \beta (F(\theta) - F^*) + 2 \beta^2 E_t + \frac{2 \sigma^2}{K s}, \quad
        w = \zeta_*^2 \frac{m - s}{s (m - 1)}

    The momentum averages the controls of a cohort, whose gradients at the optimum do not add up to
    0: w is their variance, which the paper omits.

    Needs L (beta), sigma, zeta_star.  NaN with a warning where ``gamma > 1``.
    """
    (gamma,) = positive(gamma=gamma)
    zeta, lag = non_negative(constants, "zeta_star", lag=lag)
    sampling = cohort_variance(zeta, clients=clients, cohort_size=cohort_size)
    fresh = _fresh_lag(constants, drift, gap, local_steps, cohort_size)
    value = (1 - gamma) * lag + gamma * fresh  # Eq. (69)
    value += gamma**2 * (2 * jnp.sqrt(fresh * sampling) + sampling)
    return where_valid(value, at_most(gamma, jnp.ones_like(gamma)), "gamma <= 1")


def drift_bound(
    constants: ProblemConstants,
    *,
    gap: Scalar,
    client_lag: Scalar,
    server_lag: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    alpha: Scalar = 1.0,
) -> Array:
    r"""Lemma G.12: the drift E_t of one round.

    .. math:: E_t \le \frac{\tilde\eta}{9 \beta} (C + D)
        + \frac{F(\theta) - F^*}{75 \alpha^2 \beta} + \frac{\tilde\eta \sigma^2}{3 K \alpha^2 \beta}

    Also bounds the mean over the models after each step.
    :func:`experiments.fedswa.lemmas.local_decay.visit_drift_bound` is smaller and holds for any
    rates.

    Needs L (beta), sigma.  NaN with a warning where ``alpha < 1`` or ``step > 1 / (81 beta)``.
    """
    beta, lr, K, alpha = positive(constants, "L", lr=lr, local_steps=local_steps, alpha=alpha)
    sigma, gap = non_negative(constants, "sigma", gap=gap)
    client_lag, server_lag = non_negative(client_lag=client_lag, server_lag=server_lag)
    step = K * alpha * lr
    value = step / (9 * beta) * (client_lag + server_lag)  # Eq. (77)
    value += gap / (75 * alpha**2 * beta) + step * sigma**2 / (3 * K * alpha**2 * beta)
    valid = at_most(step, 1 / (81 * beta)) & (alpha >= 1)
    return where_valid(value, valid, "alpha >= 1 and K alpha lr <= 1 / (81 beta)")


def _fresh_lag(
    constants: ProblemConstants,
    drift: Scalar,
    gap: Scalar,
    local_steps: Scalar,
    cohort_size: Scalar,
) -> Array:
    """Lag of the controls of this round, from ``grad F_i(theta*)``."""
    beta, K, s = positive(constants, "L", local_steps=local_steps, cohort_size=cohort_size)
    sigma, drift, gap = non_negative(constants, "sigma", drift=drift, gap=gap)
    return 4 * beta * gap + 2 * beta**2 * drift + 2 * sigma**2 / (K * s)
