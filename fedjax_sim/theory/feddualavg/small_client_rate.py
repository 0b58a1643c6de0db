r"""FedDualAvg at small client rates: Theorem 4.3 (:mod:`fedjax_sim.theory.feddualavg`).

The thesis states the theorem for FedMiD, too, where it is false, and for FedMiD-OSP, where it needs
an additional condition.

* FedMiD applies a penalty twice (see :func:`fedjax_sim.fedmid`).  With a constraint each client
  projects its own gradient step, and what is cut off differs between clients whose gradients
  differ.  On x >= 0 with the slopes 3 and -1, FedMiD leaves the optimum 0 at any client rate.
* FedMiD-OSP's clients do not project, so the theorem holds if the server averages the clients' dual
  displacements.  That is the case for Euclidean h, where primal and dual displacements are equal,
  and for ``delta_space="dual"``.  For another h, a mean of primal displacements is not
  proportional to the mean gradient at any client rate: for small rates it is the mean gradient
  times the Hessian of ``h*``.
"""

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, positive, where_valid
from fedjax_sim.theory.feddualavg.shadow import noise_lr
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import smallest


def bound(
    constants: ProblemConstants, *, lr: Scalar, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""``E Phi - Phi(x*)`` at the mean of the server's models, for client rates small enough.

    .. math:: \frac{B_h^2}{\eta K R} + \frac{3 \eta \sigma^2}{M}, \qquad \eta = \eta_s \eta_c

    "Small enough" depends on the problem; in practice a thousandth of ``lr`` suffices.

    Needs L, sigma, B_h.  NaN with a warning where ``lr > 1 / (4 K L)``.  Source: thesis, Theorem
    4.3 with the constants of Theorem C.13.

    Args:
        lr: eta, the product of both rates.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, B_h=1.0)
        >>> value = bound(constants, lr=0.05, local_steps=5, rounds=20, clients=10)
        >>> round(float(value), 3)  # 0.2 + 0.015
        0.215
    """
    L, B, lr, K = positive(constants, "L", "B_h", lr=lr, local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    value = B**2 / (lr * K * R) + 3 * lr * sigma**2 / M  # Theorem C.13
    return where_valid(value, at_most(lr, 1 / (4 * K * L)), "lr <= 1 / (4 K L)")


def prescribed_lr(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""The product of rates that Theorem C.13 prescribes for :func:`bound`.

    .. math:: \min\Bigl\{\frac{1}{4 K L},\ \frac{\sqrt{M} B_h}{\sigma \sqrt{K R}}\Bigr\}

    Needs L, sigma, B_h.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B_h=1.0)
        >>> round(float(prescribed_lr(constants, local_steps=5, rounds=20, clients=10)), 3)
        0.05
    """
    L, B, K = positive(constants, "L", "B_h", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    return smallest(1 / (4 * K * L), noise_lr(sigma, M, K, R, B))


def tuned_bound(
    constants: ProblemConstants, *, local_steps: Scalar, rounds: Scalar, clients: Scalar
) -> Array:
    r"""An upper bound of :func:`bound` at the rate :func:`prescribed_lr`.

    .. math:: \frac{4 L B_h^2}{R} + \frac{4 \sigma B_h}{\sqrt{M K R}}

    Needs L, sigma, B_h.  Source: thesis, Theorem 4.3 with the constants of Theorem C.13.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=0.0, B_h=1.0)
        >>> round(float(tuned_bound(constants, local_steps=5, rounds=20, clients=10)), 3)
        0.2
    """
    L, B, K = positive(constants, "L", "B_h", local_steps=local_steps)
    R, M = positive(rounds=rounds, clients=clients)
    (sigma,) = non_negative(constants, "sigma")
    return 4 * L * B**2 / R + 4 * sigma * B / jnp.sqrt(M * K * R)
