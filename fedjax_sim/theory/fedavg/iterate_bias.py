r"""Bias of SGD's iterates: the distance of their mean from gradient descent.

Source: thesis, Sections 2.2 and 2.4, Appendices A.2 and A.4 (see :mod:`fedjax_sim.theory.fedavg`).
SGD and gradient descent (GD) start from one point and take k steps of rate ``lr``; the bias is
``||E x_k - z_k||``.  A FedAvg round of infinitely many homogeneous clients moves the model by
exactly ``E x_k``, so the bias is the cost of its local steps.  With Q, ``f(., xi)`` is convex and
smooth for every xi.  In formulas k is ``steps``.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.conditions import at_most, non_negative, optional, positive, where_valid
from fedjax_sim.theory.problem_constants import ProblemConstants, Scalar
from fedjax_sim.theory.step_sizes import smallest


def bias_bound(constants: ProblemConstants, *, lr: Scalar, steps: Scalar) -> Array:
    r"""Upper bound of ``||E x_k - z_k||`` from any start.

    .. math:: \min\Bigl\{\tfrac14 \eta^3 k^2 Q \sigma^2,\ 4 \eta^2 k^{3/2} L \sigma,\
        \eta \sqrt{k} \sigma\Bigr\}

    Needs L, sigma; without Q the first entry is left out.  NaN with a warning where ``lr > 1 / L``.
    Source: thesis, Theorems A.1 and A.7 (2.6 and 2.15).

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0)
        >>> round(float(bias_bound(constants, lr=0.01, steps=4)), 4)  # 4 * 1e-4 * 8
        0.0032
        >>> float(bias_bound(constants._replace(Q=0.0), lr=0.01, steps=4))  # quadratics
        0.0
    """
    L, lr, k = positive(constants, "L", lr=lr, steps=steps)
    (sigma,) = non_negative(constants, "sigma")
    value = smallest(4 * lr**2 * k**1.5 * L * sigma, lr * jnp.sqrt(k) * sigma)  # Theorem A.1
    Q = optional(constants, "Q")
    if Q is not None:
        value = smallest(value, lr**3 * k**2 * Q * sigma**2 / 4)  # Theorem A.7
    return where_valid(value, at_most(lr, 1 / L), "lr <= 1 / L")


def growth_bias_bound(constants: ProblemConstants, *, lr: Scalar, steps: Scalar) -> Array:
    r"""The bound of ``||E x_k - z_k||`` before its simplification, for small ``lr L k``.

    .. math:: \frac{(1 + \eta L)^k - 1}{\eta L}\, 2 \eta^2 L \sqrt{k} \sigma

    Needs L, sigma.  NaN with a warning where ``lr > 1 / L``.  Source: thesis, Lemma A.2.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0)
        >>> value = growth_bias_bound(constants, lr=0.01, steps=4)
        >>> round(float(value), 5)  # half of bias_bound
        0.00162
    """
    L, lr, k = positive(constants, "L", lr=lr, steps=steps)
    (sigma,) = non_negative(constants, "sigma")
    growth = jnp.expm1(k * jnp.log1p(lr * L)) / (lr * L)
    value = growth * 2 * lr**2 * L * jnp.sqrt(k) * sigma  # Lemma A.2
    return where_valid(value, at_most(lr, 1 / L), "lr <= 1 / L")


def bias_lower_bound(constants: ProblemConstants, *, lr: Scalar, steps: Scalar) -> Array:
    r"""A bias from the optimum that some L-smooth objectives exceed.

    .. math:: 0.002 \min\{\eta^2 k^{3/2} L \sigma,\ \eta^{1/2} L^{-1/2} \sigma\}

    Needs L, sigma.  NaN with a warning where ``lr > 1 / (2 L)`` or k < 2.  Source: thesis, Theorem
    A.4 (2.7), for k >= 2 (see the errata).

    Example:
        >>> f"{bias_lower_bound(ProblemConstants(L=1.0, sigma=1.0), lr=0.01, steps=4):.1e}"
        '1.6e-06'
    """
    L, lr, k = positive(constants, "L", lr=lr, steps=steps)
    (sigma,) = non_negative(constants, "sigma")
    value = 0.002 * smallest(lr**2 * k**1.5 * L, jnp.sqrt(lr / L)) * sigma  # Theorem A.4
    return where_valid(value, at_most(lr, 1 / (2 * L)) & (k >= 2), "lr <= 1 / (2 L) and k >= 2")


def third_order_bias_lower_bound(
    constants: ProblemConstants, *, lr: Scalar, steps: Scalar, horizon: Scalar
) -> Array:
    r"""A bias from the optimum that some objectives with Q-Lipschitz Hessian exceed.

    .. math:: 0.005\, \eta^3 \sigma^2 Q \min\Bigl\{\frac{k - 1}{\eta L},\ k (k - 1)\Bigr\}

    Needs L, sigma, Q.  NaN with a warning where ``lr > 1 / (2 L)``, ``Q > L^2 / (12 K sigma)`` or
    ``k >= K``.  Source: thesis, Theorem A.9 (2.16).

    Args:
        horizon: K, the number of steps that the objective is made for; more than k.

    Example:
        >>> constants = ProblemConstants(L=1.0, sigma=1.0, Q=0.01)
        >>> float(third_order_bias_lower_bound(constants, lr=0.01, steps=1, horizon=5))
        0.0
    """
    L, lr, k, K = positive(constants, "L", lr=lr, steps=steps, horizon=horizon)
    sigma, Q = non_negative(constants, "sigma", "Q")
    factor = smallest((k - 1) / (lr * L), k * (k - 1))
    value = 0.005 * lr**3 * sigma**2 * Q * factor  # Theorem A.9
    valid = at_most(lr, 1 / (2 * L)) & at_most(12 * K * sigma * Q, L**2) & (k < K)
    return where_valid(value, valid, "lr <= 1 / (2 L), Q <= L^2 / (12 K sigma) and k < K")
