r"""Bias of SGD's iterates: how far their mean is from gradient descent.

From Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Sections 2.2 and 2.4, Appendices A.2 and A.4.  SGD and gradient descent (GD) start from one point
and take k steps of rate ``lr``; the bias is ``||E x_k - z_k||``.  A FedAvg round of infinitely many
homogeneous clients moves the model by exactly ``E x_k``, so the bias is what its local steps cost.

Constants: convex, ``L``-smooth, variance of the gradient at most ``sigma^2``; with ``Q`` the
Hessian is Q-Lipschitz and ``f(., xi)`` convex and smooth for every xi.

Slip of the thesis: Theorem A.4 is stated for all k <= K.  From the optimum the bias after one step
is 0, so its lower bound needs k >= 2, as its short version, Theorem 2.7, says; ``form="printed"``
allows k = 1.
"""

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
from fedjax_sim.theory.step_sizes import smallest
from fedjax_sim.types import Scalar


def bias_bound(
    *, lr: Scalar, k: Scalar, L: Scalar, sigma: Scalar, Q: Scalar | None = None
) -> Array:
    r"""Upper bound of ``||E x_k - z_k||`` from any start.

    .. math:: \min\Bigl\{\tfrac14 \eta^3 k^2 Q \sigma^2,\ 4 \eta^2 k^{3/2} L \sigma,\
        \eta \sqrt{k} \sigma\Bigr\}

    Args:
        Q: Lipschitz constant of the Hessian; None: unknown, the first entry is left out.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / L``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, Q).

    References:
        Thesis, Theorems A.1 and A.7 (2.6 and 2.15).

    Example:
        >>> round(float(bias_bound(lr=0.01, k=4, L=1.0, sigma=1.0)), 4)  # 4 * 1e-4 * 8
        0.0032
        >>> float(bias_bound(lr=0.01, k=4, L=1.0, sigma=1.0, Q=0.0))  # quadratics
        0.0
    """
    lr, k, L = positive(lr=lr, k=k, L=L)
    (sigma,) = non_negative(sigma=sigma)
    value = smallest(4 * lr**2 * k**1.5 * L * sigma, lr * jnp.sqrt(k) * sigma)  # Theorem A.1
    if Q is not None:
        (Q,) = non_negative(Q=Q)
        value = smallest(value, lr**3 * k**2 * Q * sigma**2 / 4)  # Theorem A.7
    return where_valid(value, at_most(lr, 1 / L), "lr <= 1 / L")


def growth_bias_bound(*, lr: Scalar, k: Scalar, L: Scalar, sigma: Scalar) -> Array:
    r"""The bound of ``||E x_k - z_k||`` before its simplification, for small ``lr L k``.

    .. math:: \frac{(1 + \eta L)^k - 1}{\eta L}\, 2 \eta^2 L \sqrt{k} \sigma

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / L``.

    Raises:
        ValueError: a constant that is not positive (sigma: negative).

    References:
        Thesis, Lemma A.2.

    Example:
        >>> round(float(growth_bias_bound(lr=0.01, k=4, L=1.0, sigma=1.0)), 5)  # half of the other
        0.00162
    """
    lr, k, L = positive(lr=lr, k=k, L=L)
    (sigma,) = non_negative(sigma=sigma)
    grown = jnp.expm1(k * jnp.log1p(lr * L)) / (lr * L)
    value = grown * 2 * lr**2 * L * jnp.sqrt(k) * sigma  # Lemma A.2
    return where_valid(value, at_most(lr, 1 / L), "lr <= 1 / L")


def bias_lower_bound(
    *, lr: Scalar, k: Scalar, L: Scalar, sigma: Scalar, form: Form = "corrected"
) -> Array:
    r"""There are ``L``-smooth objectives whose bias from the optimum is at least this.

    .. math:: 0.002 \min\{\eta^2 k^{3/2} L \sigma,\ \eta^{1/2} L^{-1/2} \sigma\}

    Args:
        form: "printed": for k = 1, too, where it is false.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (2 L)`` or k < 2.

    Raises:
        ValueError: a constant that is not positive (sigma: negative), an unknown form.

    References:
        Thesis, Theorem A.4 (2.7).

    Example:
        >>> f"{bias_lower_bound(lr=0.01, k=4, L=1.0, sigma=1.0):.1e}"
        '1.6e-06'
    """
    check_choice("form", form, Form)
    lr, k, L = positive(lr=lr, k=k, L=L)
    (sigma,) = non_negative(sigma=sigma)
    value = 0.002 * smallest(lr**2 * k**1.5 * L, jnp.sqrt(lr / L)) * sigma  # Theorem A.4
    valid = at_most(lr, 1 / (2 * L)) & (k >= (1 if form == "printed" else 2))
    return where_valid(value, valid, "lr <= 1 / (2 L) and k >= 2")


def third_order_bias_lower_bound(
    *, lr: Scalar, k: Scalar, L: Scalar, sigma: Scalar, Q: Scalar, K: Scalar
) -> Array:
    r"""There are objectives with Q-Lipschitz Hessian whose bias from the optimum is at least this.

    .. math:: 0.005\, \eta^3 \sigma^2 Q \min\Bigl\{\frac{k - 1}{\eta L},\ k (k - 1)\Bigr\}

    Args:
        K: how many steps the objective is made for, more than k.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / (2 L)``,
        ``Q > L^2 / (12 K sigma)`` or ``k >= K``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, Q).

    References:
        Thesis, Theorem A.9 (2.16).

    Example:
        >>> constants = dict(lr=0.01, L=1.0, sigma=1.0, Q=0.01, K=5)
        >>> float(third_order_bias_lower_bound(k=1, **constants))
        0.0
    """
    lr, k, L, K = positive(lr=lr, k=k, L=L, K=K)
    sigma, Q = non_negative(sigma=sigma, Q=Q)
    steps = smallest((k - 1) / (lr * L), k * (k - 1))
    value = 0.005 * lr**3 * sigma**2 * Q * steps  # Theorem A.9
    valid = at_most(lr, 1 / (2 * L)) & at_most(12 * K * sigma * Q, L**2) & (k < K)
    text = "lr <= 1 / (2 L), Q <= L^2 / (12 K sigma) and k < K"
    return where_valid(value, valid, text)
