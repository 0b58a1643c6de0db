r"""FedDualAvg from the measured discrepancy of the clients' dual states.

Source: see :mod:`fedjax_sim.theory.feddualavg`.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar

__all__ = ["dual_shadow_bound"]

SMALL_LR = "lr <= 1 / (4 L)"


def dual_shadow_bound(
    constants: ProblemConstants,
    *,
    discrepancy: Scalar,
    lr: Scalar,
    local_steps: Scalar,
    rounds: Scalar,
    clients: Scalar,
) -> Array:
    r"""``E Phi(xhat) - Phi(x*)`` with unit server rate, from the measured discrepancy.

    .. math:: \frac{B_h^2}{\eta_c K R} + \frac{\eta_c \sigma^2}{M} + L \cdot discrepancy

    Needs L, sigma, B_h.  NaN with a warning where ``lr > 1 / (4 L)``.  Source: thesis, Lemma 4.9.

    Args:
        discrepancy: mean over clients, rounds and steps k = 0 .. K - 1 of
            ``E||y_m(r, k) - ybar(r, k)||_*^2``.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, B_h=1.0)
        >>> sizes = dict(local_steps=5, rounds=20, clients=10)
        >>> value = dual_shadow_bound(constants, discrepancy=0.02, lr=0.1, **sizes)
        >>> round(float(value), 3)  # 0.1 + 0.01 + 0.02
        0.13
    """
    L, B, lr, K = positive(constants, "L", "B_h", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    sigma, discrepancy = non_negative(constants, "sigma", discrepancy=discrepancy)
    value = shadow_terms(discrepancy, lr, L, sigma, M, K, R, B)
    return where_valid(value, at_most(lr, 1 / (4 * L)), SMALL_LR)


def shadow_terms(
    discrepancy: Array, lr: Array, L: Array, sigma: Array, M: Array, K: Array, R: Array, B: Array
) -> Array:
    """The three terms of Lemma 4.9; arguments are not checked."""
    return B**2 / (lr * K * R) + lr * sigma**2 / M + L * discrepancy


def noise_lr(sigma: Array, M: Array, K: Array, R: Array, B: Array) -> Array:
    """The rate at which noise and distance balance; infinite without noise."""
    return jnp.sqrt(M / (K * R)) * B / sigma
