r"""Limit of FedAvg's error on a convex problem with heterogeneous clients.

From Dhasade, Kremer and Renard, "An Insight into the impact of Data Heterogeneity on the
performance of the FedAvg algorithm" (report), Section 2.  Its Equation 1 is
:func:`fedjax_sim.theory.fedavg.bound` in another notation (tau local steps, T rounds,
distance D), and Equation 6 is :func:`fedjax_sim.theory.fedavg.drift_bound`.  Both need all
clients in every round; the report's experiments sample two of them.  Its curve for one local step
is ``convex.bound`` with ``local_steps=1`` and sigma 0.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory import (
    SMALL_LR,
    ProblemConstants,
    Scalar,
    at_most,
    non_negative,
    positive,
    where_valid,
)


def limit_bound(constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar) -> Array:
    r"""An upper bound of FedAvg's error without noise after infinitely many rounds.

    .. math:: 18 K^2 \eta^2 L \zeta^2

    Needs L, zeta.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: report, Equation 2.
    """
    L, lr, K = positive(constants, "L", lr=lr, local_steps=local_steps)
    (zeta,) = non_negative(constants, "zeta")
    steps, rest = 18 * K**2, lr**2 * L * zeta**2
    return where_valid(steps * rest, at_most(lr, 1 / (4 * L)), SMALL_LR)  # Equation 2


def saturated_gap(objective: Callable[[Array], Array], optima: Array, optimum: Array) -> Array:
    r"""Limit of FedAvg's error over many rounds of infinitely many local steps.

    .. math:: F\Bigl(\frac{1}{M} \sum_m x_m^*\Bigr) - F(x^*)

    Clients that solve their own problems send their optima from any initial model, so one round
    reaches the mean.  :func:`limit_bound`, in contrast, grows with ``K^2``.

    Args:
        objective: F, as a function of one model.
        optima: [M, ...] the unique minimisers of the clients that take part.
        optimum: [...] the minimiser of F.

    Returns:
        The gap, a scalar.
    """
    shape = jnp.shape(optima)
    if not shape or shape[1:] != jnp.shape(optimum):
        raise ValueError(
            f"optima has shape {shape}; expected [M, *shape] with the optimum's shape "
            f"{jnp.shape(optimum)}"
        )
    return objective(optima.mean(axis=0)) - objective(optimum)
