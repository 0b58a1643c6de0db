r"""What FedAvg's error tends to on a convex problem with heterogeneous clients.

From Dhasade, Kremer and Renard, "An Insight into the impact of Data Heterogeneity on the
performance of the FedAvg algorithm" (report), Section 2.  Its Equation 1 is
:func:`~fedjax_sim.theory.fedavg.convex_bound` in another notation (K its tau local steps, R its T
rounds, B its D), and Equation 6 is :func:`~fedjax_sim.theory.fedavg.drift_bound`.  Both need all
clients in every round; the report's experiments sample two of them.  Its curve for one local step
is ``convex_bound`` with ``K = 1`` and ``sigma = 0``.

Slips of the report:

* Section 4.1 writes ``18 tau^2 + eta^2 L zeta^2`` for the product: ``form="printed"``.
* Equation 3 bounds by zeta at the clients' iterates only; the proof needs it at every point.
* The lemma on one round leaves out the factor L before the drift.
* The polarisation identity is ``2 <a, b> = ||a||^2 + ||b||^2 - ||a - b||^2``.
"""

from collections.abc import Callable

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
from fedjax_sim.types import Scalar


def limit_bound(
    *, lr: Scalar, L: Scalar, zeta: Scalar, K: Scalar, form: Form = "corrected"
) -> Array:
    r"""What FedAvg's error without noise is at most after infinitely many rounds.

    .. math:: 18 K^2 \eta^2 L \zeta^2

    Args:
        K: tau, local steps a round.
        form: "printed": ``18 K^2 + eta^2 L zeta^2``.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (4 L)``.

    Raises:
        ValueError: a constant that is not positive (zeta: negative), an unknown form.

    References:
        Report, Equation 2.

    Example:
        >>> round(float(limit_bound(lr=0.2, L=0.18965, zeta=0.4067, K=10)), 4)
        2.2586
    """
    check_choice("form", form, Form)
    lr, L, K = positive(lr=lr, L=L, K=K)
    (zeta,) = non_negative(zeta=zeta)
    steps, rest = 18 * K**2, lr**2 * L * zeta**2
    value = steps + rest if form == "printed" else steps * rest  # Equation 2
    return where_valid(value, at_most(lr, 1 / (4 * L)), "lr <= 1 / (4 L)")


def saturated_gap(objective: Callable[[Array], Array], optima: Array, optimum: Array) -> Array:
    r"""The error FedAvg tends to after many rounds of infinitely many local steps.

    .. math:: F\Bigl(\frac{1}{M} \sum_m x_m^*\Bigr) - F(x^*)

    Clients that solve their own problems send their optima, whatever they started from, so one
    round reaches the mean.  :func:`limit_bound` grows with ``K^2`` instead.

    Args:
        objective: F, of one model.
        optima: [M, ...] the unique minimisers of the clients that take part.
        optimum: [...] the minimiser of F.

    Returns:
        The gap, a scalar.

    Raises:
        ValueError: optima that are not a stack of models of the optimum's shape.

    Example:
        >>> F = lambda x: (x**2 + 3 * (x - 1) ** 2) / 2  # minimisers 0 and 1, of F 3 / 4
        >>> float(saturated_gap(F, jnp.array([0.0, 1.0]), jnp.array(0.75)))
        0.125
    """
    shape = jnp.shape(optima)
    if not shape or shape[1:] != jnp.shape(optimum):
        raise ValueError(
            f"optima has shape {shape}; expected [M, *shape] with the optimum's shape "
            f"{jnp.shape(optimum)}"
        )
    return objective(optima.mean(axis=0)) - objective(optimum)
