r"""One round of FedMoSWA on non-convex objectives: movement, control lags and drift.

Source: Lemmas G.14 to G.17 (see :mod:`fedjax_sim.theory.fedswa`), with the corrections in the
errata: the server's momentum is not the mean of the clients' controls, and it averages cohorts.
The rate ``lr`` is constant within a round and the effective step is ``step = K alpha lr``.  Before
the round the server has the model theta and the momentum m, client i the control c_i:

* ``squared_gradient`` is ``E||grad F(theta)||^2``,
* ``client_lag`` C is the mean over clients of ``E||c_i - grad F_i(theta)||^2``,
* ``server_lag`` D is ``E||m - grad F(theta)||^2``,
* ``drift`` E_t is the mean over clients and steps of ``E||theta_ik - theta||^2``, at the models of
  the visits' gradients.

The paper bounds C and D by beta^2 times distances of models, Xi and G, which needs exact gradients
and full participation.
"""

from typing import NamedTuple

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


class Moves(NamedTuple):
    """Bounds of one round's squared movement."""

    mean: Array  # bound of E||E_{t-1} theta_t - theta_{t-1}||^2
    total: Array  # bound of E||theta_t - theta_{t-1}||^2


def move_bounds(
    constants: ProblemConstants,
    *,
    squared_gradient: Scalar,
    client_lag: Scalar,
    server_lag: Scalar,
    drift: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    cohort_size: Scalar,
    alpha: Scalar = 1.0,
) -> Moves:
    r"""Lemma G.14: the movement of the server's model in one round.

    .. math:: 4 \tilde\eta^2 (E||\nabla F(\theta)||^2 + C + D + \beta^2 E_t)

    for the conditional mean, and ``2 step^2 sigma^2 / (K s)`` more for the movement itself.

    Needs L (beta), sigma.
    """
    beta, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    s, alpha = positive(cohort_size=cohort_size, alpha=alpha)
    sigma, slope, drift = non_negative(
        constants, "sigma", squared_gradient=squared_gradient, drift=drift
    )
    client_lag, server_lag = non_negative(client_lag=client_lag, server_lag=server_lag)
    step = K * alpha * lr
    mean = 4 * step**2 * (slope + client_lag + server_lag + beta**2 * drift)  # Eq. (86)
    return Moves(mean, mean + 2 * step**2 * sigma**2 / (K * s))


def server_lag_bound(
    constants: ProblemConstants,
    *,
    lag: Scalar,  # D before the round
    drift: Scalar,
    move: Scalar,  # ``E||theta_t - theta_{t-1}||^2``, for instance :func:`move_bounds`
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    gamma: Scalar,
) -> Array:
    r"""Lemma G.15: the lag D of the server's momentum after one round.

    .. math:: D_t \le \Bigl(1 + \frac{\gamma}{2}\Bigr) \Bigl((1 - \gamma) D_{t-1}
        + \gamma (1 + 2 \gamma) \beta^2 E_t + 2 \gamma^2 \Bigl(\zeta^2 \frac{m - s}{s (m - 1)}
        + \frac{\sigma^2}{K s}\Bigr)\Bigr)
        + \Bigl(1 + \frac{2}{\gamma}\Bigr) \beta^2 E||\theta_t - \theta_{t-1}||^2

    Needs L (beta), sigma, zeta_mean.  NaN with a warning where ``gamma > 1``.
    """
    beta, gamma, K, s = positive(
        constants, "L", gamma=gamma, local_steps=local_steps, cohort_size=cohort_size
    )
    sigma, zeta, lag = non_negative(constants, "sigma", "zeta_mean", lag=lag)
    drift, move = non_negative(drift=drift, move=move)
    variance = cohort_variance(zeta, clients=clients, cohort_size=s) + sigma**2 / (K * s)
    fresh = (1 + 2 * gamma) * beta**2 * drift + 2 * gamma * variance
    value = _moved_lag(beta, lag, fresh, move, gamma)
    return where_valid(value, at_most(gamma, gamma / gamma), "gamma <= 1")


def client_lag_bound(
    constants: ProblemConstants,
    *,
    lag: Scalar,  # C before the round
    drift: Scalar,
    move: Scalar,  # as for :func:`server_lag_bound`
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""Lemma G.16: the lag C of the clients' controls after one round.

    .. math:: C_t \le \Bigl(1 + \frac{p}{2}\Bigr) \Bigl((1 - p) C_{t-1}
        + 2 p \Bigl(\beta^2 E_t + \frac{\sigma^2}{K}\Bigr)\Bigr)
        + \Bigl(1 + \frac{2}{p}\Bigr) \beta^2 E||\theta_t - \theta_{t-1}||^2, \quad p = \frac{s}{m}

    Needs L (beta), sigma.
    """
    beta, K, m, s = positive(
        constants, "L", local_steps=local_steps, clients=clients, cohort_size=cohort_size
    )
    sigma, lag, drift, move = non_negative(constants, "sigma", lag=lag, drift=drift, move=move)
    non_negative(**{"clients - cohort_size": m - s})
    return _moved_lag(beta, lag, 2 * (beta**2 * drift + sigma**2 / K), move, s / m)


def drift_bound(
    constants: ProblemConstants,
    *,
    squared_gradient: Scalar,
    client_lag: Scalar,
    server_lag: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    alpha: Scalar = 1.0,
) -> Array:
    r"""Lemma G.17: the drift E_t of one round.

    .. math:: \frac{5}{3} \beta^2 \tilde\eta E_t \le \frac{5}{6} \beta \tilde\eta^2 (C + D)
        + \frac{\tilde\eta}{24 \alpha^2} E||\nabla F(\theta)||^2
        + \frac{\beta \tilde\eta^2 \sigma^2}{4 K \alpha^2}

    Needs L (beta), sigma.  NaN with a warning where ``alpha < 1`` or ``step > 1 / (24 beta)``.

    Returns:
        The bound of E_t.
    """
    beta, lr, K, alpha = positive(constants, "L", lr=lr, local_steps=local_steps, alpha=alpha)
    sigma, slope = non_negative(constants, "sigma", squared_gradient=squared_gradient)
    client_lag, server_lag = non_negative(client_lag=client_lag, server_lag=server_lag)
    step = K * alpha * lr
    value = step / (2 * beta) * (client_lag + server_lag)  # Eq. (95)
    value += slope / (40 * alpha**2 * beta**2)
    value += 3 * step * sigma**2 / (20 * K * alpha**2 * beta)
    valid = at_most(step, 1 / (24 * beta)) & (alpha >= 1)
    return where_valid(value, valid, "alpha >= 1 and K alpha lr <= 1 / (24 beta)")


def _moved_lag(beta: Array, lag: Array, fresh: Array, move: Array, share: Array) -> Array:
    """Lag of controls of which ``share`` is fresh, from gradients at a model that has moved.

    Young's inequality with the weight ``share / 2``, as before Lemma G.17.
    """
    renewed = (1 - share) * lag + share * fresh
    return (1 + share / 2) * renewed + (1 + 2 / share) * beta**2 * move
