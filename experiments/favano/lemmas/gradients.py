r"""Gradients that FAVANO's clients use between two contacts.

Lemmas of "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv:2305.16099, Appendices B.2.2
and B.3 (see :mod:`fedjax_sim.theory.favano`).  Client i starts at its model :math:`w_t^i` of
the last contact; :math:`h_q^i` is the gradient of its objective before its q-th local step,
:math:`\tilde h_q^i` the stochastic gradient that the step uses.  The bounds hold for every
:math:`q \le K`, whether or not the client gets that far.

The lemmas of one client take ``squared_distance``, :math:`E\|w_t^i - \mu_t\|^2`, and
``squared_gradient``, :math:`E\|\nabla f_i(\mu_t)\|^2`; they can be arrays with one entry per
client.  The lemmas of all clients take the potential and :math:`E\|\nabla f(\mu_t)\|^2`.  Bounds
are NaN with a warning where ``lr`` exceeds ``1 / (4 L K^2)``.
"""

from jax import Array

from fedjax_sim.theory import (
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

SMALL = "lr <= 1 / (4 L K^2)"


def squared_gradient_bound(
    constants: ProblemConstants,
    *,
    squared_distance: Scalar,
    squared_gradient: Scalar,
    lr: Scalar,
    local_steps: Scalar,
) -> Array:
    r"""``E||h_q^i||^2``, the gradient of client i before any of its local steps.

    .. math:: B_t^i = \frac{\sigma^2}{K^2} + 16 L^2 E\|w_t^i - \mu_t\|^2
        + 8 E\|\nabla f_i(\mu_t)\|^2

    Needs L, sigma.  Source: Equations 88 and 89; the proof gives half of it (Equation 98).
    """
    distance, gradient = non_negative(
        squared_distance=squared_distance, squared_gradient=squared_gradient
    )
    (L, K), (sigma,) = positive(constants, "L", local_steps=local_steps), _sigma(constants)
    value = (sigma / K) ** 2 + 16 * L**2 * distance + 8 * gradient
    return where_valid(value, _small(constants, lr, local_steps), SMALL)


def squared_stochastic_gradient_bound(
    constants: ProblemConstants,
    *,
    squared_distance: Scalar,
    squared_gradient: Scalar,
    lr: Scalar,
    local_steps: Scalar,
) -> Array:
    r"""``sigma^2 + B_t^i``, which bounds the second moment of a stochastic gradient.

    Needs L, sigma.  Source: Equations 85 and 100.
    """
    bound = squared_gradient_bound(
        constants,
        squared_distance=squared_distance,
        squared_gradient=squared_gradient,
        lr=lr,
        local_steps=local_steps,
    )
    return _sigma(constants)[0] ** 2 + bound


def gradient_error_bound(
    constants: ProblemConstants,
    *,
    squared_distance: Scalar,
    squared_gradient: Scalar,
    lr: Scalar,
    local_steps: Scalar,
) -> Array:
    r"""``E||grad f_i(mu_t) - h_q^i||^2``: the gradient that is used for the one at the mean model.

    .. math:: C_t^i = 4 L^2 \eta^2 K^2 \sigma^2 + 20 L^2 E\|w_t^i - \mu_t\|^2
        + 16 L^2 \eta^2 K^2 E\|\nabla f_i(\mu_t)\|^2

    Needs L, sigma.  Source: Equations 101 and 102; their own condition ``lr < 1 / (2 L K)`` follows
    from that of :func:`squared_gradient_bound`, which the proof uses.
    """
    distance, gradient = non_negative(
        squared_distance=squared_distance, squared_gradient=squared_gradient
    )
    L, K, eta = positive(constants, "L", local_steps=local_steps, lr=lr)
    (sigma,) = _sigma(constants)
    drift = (L * eta * K) ** 2
    value = 4 * drift * sigma**2 + 20 * L**2 * distance + 16 * drift * gradient
    return where_valid(value, _small(constants, lr, local_steps), SMALL)


def descent_bound(
    constants: ProblemConstants,
    *,
    potential: Scalar,  # ``E Phi_t``
    squared_gradient: Scalar,  # ``E||grad f(mu_t)||^2``
    lr: Scalar,
    local_steps: Scalar,
    clients: Scalar,
) -> Array:
    r"""``sum_i E<grad f(mu_t), -h_i / alpha_i>``: the clients' progress is a descent direction.

    .. math:: 20 L^2 \Phi_t + 4 n L^2 \eta^2 K^2 (\sigma^2 + 4 G^2)
        + n \Bigl(16 L^2 \eta^2 K^2 B^2 - \frac34\Bigr) E\|\nabla f(\mu_t)\|^2

    Needs L, sigma, dissimilarity (G), dissimilarity_factor (B).  Also NaN where ``B < 1``.  Source:
    Equation 116, from the sum of :math:`C_t^i` over all clients.
    """
    phi, squared = non_negative(potential=potential, squared_gradient=squared_gradient)
    L, B, n, K, eta = positive(
        constants, "L", "dissimilarity_factor", clients=clients, local_steps=local_steps, lr=lr
    )
    sigma, G = non_negative(constants, "sigma", "dissimilarity")
    drift = (L * eta * K) ** 2
    noise = 4 * n * drift * (sigma**2 + 4 * G**2)
    value = 20 * L**2 * phi + noise + n * (16 * drift * B**2 - 3 / 4) * squared
    valid = _small(constants, lr, local_steps) & possible(constants, clients, clients)
    return where_valid(value, valid, f"{SMALL}, B >= 1")


def squared_progress_bound(
    constants: ProblemConstants,
    *,
    potential: Scalar,  # ``E Phi_t``
    squared_gradient: Scalar,  # ``E||grad f(mu_t)||^2``
    lr: Scalar,
    progress: ProgressConstants,
    local_steps: Scalar,
    clients: Scalar,
) -> Array:
    r"""``sum_i E||h_i / alpha_i||^2`` over all clients.

    .. math:: n a \sigma^2 + b \bigl(16 L^2 \Phi_t + 8 n B^2 E\|\nabla f(\mu_t)\|^2
        + 8 n G^2\bigr)

    Needs L, sigma, dissimilarity (G), dissimilarity_factor (B).  Also NaN where ``B < 1``.  Source:
    Equations 135 to 138 and 153 to 156; :mod:`fedjax_sim.theory.favano.progress` says what their
    proof needs.
    """
    phi, squared = non_negative(potential=potential, squared_gradient=squared_gradient)
    L, B, n = positive(constants, "L", "dissimilarity_factor", clients=clients)
    sigma, G = non_negative(constants, "sigma", "dissimilarity")
    a, b = checked(progress)
    value = n * a * sigma**2 + b * (16 * L**2 * phi + 8 * n * (B**2 * squared + G**2))
    valid = _small(constants, lr, local_steps) & possible(constants, clients, clients)
    return where_valid(value, valid, f"{SMALL}, B >= 1")


def _sigma(constants: ProblemConstants) -> tuple[Array, ...]:
    return non_negative(constants, "sigma")


def _small(constants: ProblemConstants, lr: Scalar, local_steps: Scalar) -> Array:
    """The largest rate of Lemma B.2.2 is not exceeded."""
    L, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    return at_most(lr, 1 / (4 * L * K**2))
