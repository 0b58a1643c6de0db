r"""Contraction and sum of FAVANO's potential, the distance between its models.

.. math:: \Phi_t = \|w_t - \mu_t\|^2 + \sum_i \|w_t^i - \mu_t\|^2

of the models that :func:`fedjax_sim.diagnostics.potential.potential` takes.  Source: Equation 6,
Lemmas B.4 (see :mod:`fedjax_sim.theory.favano`), with the contraction that Equations 78 and 79 give
(see the errata).
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory import (
    POSSIBLE,
    ProblemConstants,
    ProgressConstants,
    Scalar,
    at_most,
    checked,
    non_negative,
    positive,
    possible,
    where_valid,
)


def contraction(*, clients: Scalar, cohort_size: Scalar) -> Array:
    r"""kappa of :func:`potential_bound`: ``E Phi_{t+1} <= (1 - kappa) Phi_t`` without gradients.

    .. math:: \kappa = \frac{s}{2 n (s + 1)}

    References:
        Equations 78 and 79.
    """
    n, s = positive(clients=clients, cohort_size=cohort_size)
    return s / (2 * n * (s + 1))


def contraction_at_rest(*, clients: Scalar, cohort_size: Scalar) -> Array:
    r"""The largest kappa with ``E Phi_{t+1} <= (1 - kappa) Phi_t`` if no client moves.

    .. math:: 1 - \kappa = \frac{n - s}{n} \Bigl(1 + \frac{s}{(n - 1)(s + 1)}\Bigr)

    It is attained where the server's model is the clients' mean.  With gradients a bound has to
    give some of it up.
    """
    n, s = positive(clients=clients, cohort_size=cohort_size)
    others = jnp.maximum(n - 1, 1)  # n = 1: the first factor is 0
    return 1 - (n - s) / n * (1 + s / (others * (s + 1)))


def potential_bound(
    *,
    potential: Scalar,
    squared_progress: Scalar,
    lr: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""``E Phi_{t+1}``, from the potential and the clients' progress in that server step.

    .. math:: (1 - \kappa) \Phi_t + 3 \frac{s^2}{n} \eta^2 \sum_i E\|h_i / \alpha_i\|^2

    with kappa of :func:`contraction`.

    Args:
        potential: ``E Phi_t``.
        squared_progress: the sum over ALL clients of ``E||h_i / alpha_i||^2``; h_i is the sum of
            the gradients that client i would have used if contacted.

    Returns:
        The bound; NaN with a warning where ``s > n``.

    References:
        Equation 6.
    """
    potential, total = non_negative(potential=potential, squared_progress=squared_progress)
    kappa = contraction(clients=clients, cohort_size=cohort_size)
    lr, n, s = positive(lr=lr, clients=clients, cohort_size=cohort_size)
    value = (1 - kappa) * potential + 3 * (s * lr) ** 2 / n * total
    return where_valid(value, s <= n, "s <= n")


def contraction_margin(
    *, progress: ProgressConstants, clients: Scalar, cohort_size: Scalar
) -> Array:
    """``n kappa - 0.12 / b - 1 / 5``: where it is negative, Lemma B.4's proof fails at its rate.

    It is not negative for any s from 2, and for s = 1 if b is at least 2.4.

    References:
        From Equation 165 to Equation 167, at ``eta = 1 / (20 s L b)``.
    """
    kappa = contraction(clients=clients, cohort_size=cohort_size)
    (n,) = positive(clients=clients)
    return n * kappa - 0.12 / checked(progress)[1] - 0.2


def next_potential_bound(
    constants: ProblemConstants,
    *,
    potential: Scalar,  # ``E Phi_t``
    squared_gradient: Scalar,  # ``E||grad f(mu_t)||^2``
    lr: Scalar,
    progress: ProgressConstants,
    local_steps: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
) -> Array:
    r"""``E Phi_{t+1}``, from the potential and the gradient at the mean model.

    .. math:: \Bigl(1 - \frac{1}{5 n}\Bigr) \Phi_t + 3 s^2 \eta^2 \bigl(a \sigma^2 + 8 b G^2\bigr)
        + 24 B^2 s^2 \eta^2 b\, E\|\nabla f(\mu_t)\|^2

    Needs L, sigma, dissimilarity (G), dissimilarity_factor (B).  NaN with a warning where ``lr > 1
    / (20 s L b)``, ``lr > 1 / (4 L K^2)``, ``n kappa - 48 (s L lr)^2 b < 1 / 5``, ``B < 1`` or ``s
    > n``.  Source: Lemma B.4, Equation 167; the second condition is Lemma B.2.2's.
    """
    potential, squared = non_negative(potential=potential, squared_gradient=squared_gradient)
    kappa = contraction(clients=clients, cohort_size=cohort_size)
    usable = possible(constants, clients, cohort_size)
    L, B, lr = positive(constants, "L", "dissimilarity_factor", lr=lr)
    n, s, K = positive(clients=clients, cohort_size=cohort_size, local_steps=local_steps)
    sigma, G = non_negative(constants, "sigma", "dissimilarity")
    a, b = checked(progress)
    noise = 3 * (s * lr) ** 2 * (sigma**2 * a + 8 * b * G**2)
    value = (1 - 1 / (5 * n)) * potential + noise + 24 * (B * s * lr) ** 2 * b * squared
    contracts = at_most(48 * (s * L * lr) ** 2 * b + 0.2, n * kappa)
    valid = at_most(lr, 1 / (20 * s * L * b), 1 / (4 * L * K**2)) & contracts & usable
    text = (
        f"lr <= 1 / (20 s L b), lr <= 1 / (4 L K^2), n kappa - 48 (s L lr)^2 b >= 1 / 5, {POSSIBLE}"
    )
    return where_valid(value, valid, text)


def cumulative_potential_bound(
    constants: ProblemConstants,
    *,
    squared_gradients: Scalar,  # the sum over ``t < T`` of ``E||grad f(mu_t)||^2``
    lr: Scalar,
    progress: ProgressConstants,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
    cohort_size: Scalar,
    initial_potential: Scalar = 0.0,  # ``Phi_0``
) -> Array:
    r"""``sum_{t <= T} E Phi_t``, from the sum of the squared gradients at the mean models.

    .. math:: 5 n \Phi_0 + 120 n B^2 s^2 b \eta^2 \sum_{t < T} E\|\nabla f(\mu_t)\|^2
        + 15 T n s^2 \eta^2 \bigl(a \sigma^2 + 8 b G^2\bigr)

    Needs L, sigma, dissimilarity (G), dissimilarity_factor (B).  NaN with a warning where
    :func:`next_potential_bound` is.  Source: Equations 168 to 171 and 177, which sum that bound;
    :math:`\Phi_0` is 0 in the paper, where all start from one model (see the errata).
    """
    (initial,) = non_negative(initial_potential=initial_potential)
    T, n = positive(rounds=rounds, clients=clients)
    (squares,) = non_negative(squared_gradients=squared_gradients)
    # Phi_{t+1} <= (1 - 1 / (5 n)) Phi_t + x, with x its mean over t, summed over t < T.
    mean = next_potential_bound(
        constants,
        potential=0.0,
        squared_gradient=squares / T,
        lr=lr,
        progress=progress,
        local_steps=local_steps,
        clients=clients,
        cohort_size=cohort_size,
    )
    return 5 * n * (initial + T * mean)
