r"""Steps of FAVANO's mean model, ``mu_{t+1} - mu_t``.

Source: Appendix B.5 (see :mod:`fedjax_sim.theory.favano`).  A server step moves the mean model by
:math:`-\frac{\eta}{n + 1} \sum_{i \in S} h_i / \alpha_i` (Equation 179).
"""

from jax import Array

from experiments.favano.lemmas.gradients import squared_progress_bound
from fedjax_sim.theory import (
    POSSIBLE,
    ProblemConstants,
    ProgressConstants,
    Scalar,
    non_negative,
    positive,
    possible,
    where_valid,
)


def mean_step_bound(
    *, squared_progress: Scalar, lr: Scalar, clients: Scalar, cohort_size: Scalar
) -> Array:
    r"""``E||mu_{t+1} - mu_t||^2``, from the clients' progress.

    .. math:: \frac{s^2 \eta^2}{n (n + 1)^2} \sum_i E\|h_i / \alpha_i\|^2

    Args:
        squared_progress: the sum over ALL clients of ``E||h_i / alpha_i||^2``.

    Returns:
        The bound; NaN with a warning where ``s > n``.

    References:
        Equation 178.
    """
    (total,) = non_negative(squared_progress=squared_progress)
    lr, n, s = positive(lr=lr, clients=clients, cohort_size=cohort_size)
    return where_valid((s * lr) ** 2 / (n * (n + 1) ** 2) * total, s <= n, "s <= n")


def mean_step_bound_at_mean(
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
    r"""``E||mu_{t+1} - mu_t||^2``, from the potential and the gradient at the mean model.

    .. math:: \frac{s^2 \eta^2}{(n + 1)^2} \Bigl(a \sigma^2 + b \Bigl(\frac{16 L^2 \Phi_t}{n}
        + 8 B^2 E\|\nabla f(\mu_t)\|^2 + 8 G^2\Bigr)\Bigr)

    Needs the constants of :func:`squared_progress_bound`.  Also NaN where ``B < 1`` or ``s > n``.
    Source: Equations 183 to 186 (see the errata).
    """
    total = squared_progress_bound(
        constants,
        potential=potential,
        squared_gradient=squared_gradient,
        lr=lr,
        progress=progress,
        local_steps=local_steps,
        clients=clients,
    )
    lr, n, s = positive(lr=lr, clients=clients, cohort_size=cohort_size)
    value = (s * lr) ** 2 / (n * (n + 1) ** 2) * total
    return where_valid(value, possible(constants, clients, cohort_size), POSSIBLE)
