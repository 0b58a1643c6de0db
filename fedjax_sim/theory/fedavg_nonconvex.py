r"""FedAvg on non-convex objectives, all clients having one objective.

From Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Section 2.5 and Appendix A.5.  Stochastic gradients have norm at most ``G`` and variance at most
``sigma^2``, ``Delta = F(x_0) - inf F``; ``Q``, where given, is the Hessian's Lipschitz constant.
Other constants are those of :mod:`~fedjax_sim.theory.fedavg`.

Slips of the thesis:

* The last display of Theorem 2.22's proof has ``L lr sigma^2 / M``; telescoping the line before
  gives twice that, as in Theorem 2.23.  ``form="printed"`` has it once.
* Both theorems have G for sigma in their middle term (``sigma <= G``) and constants in O(); those
  of :func:`tuned_nonconvex_bound` follow from inserting the step sizes.
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


def nonconvex_bound(
    *,
    lr: Scalar,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    Delta: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    Q: Scalar | None = None,
    form: Form = "corrected",
) -> Array:
    r"""The mean of ``E||grad F(xbar(r, k))||^2`` over all rounds and k = 0 .. K - 1.

    .. math:: \frac{2 \Delta}{\eta K R} + D + \frac{2 L \eta \sigma^2}{M}

    * ``D = 8 L^2 eta^2 G^2 K^2`` without ``Q`` (Theorem 2.22),
    * ``D = 8 Q^2 eta^4 G^4 K^4`` with it (Theorem 2.23).

    Args:
        form: "printed": the noise term of Theorem 2.22 without the 2.

    Returns:
        The bound; NaN, and for concrete arguments a warning, where ``lr > 1 / L``.

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G, Delta, Q), an unknown
            form.

    Example:
        >>> constants = dict(L=1.0, sigma=1.0, G=2.0, Delta=1.0, M=10, K=5, R=20)
        >>> round(float(nonconvex_bound(lr=0.01, **constants)), 3)  # 2 + 0.08 + 0.002
        2.082
    """
    check_choice("form", form, Form)
    lr, L, M, K, R = positive(lr=lr, L=L, M=M, K=K, R=R)
    sigma, G, Delta = non_negative(sigma=sigma, G=G, Delta=Delta)
    factor = 2
    if Q is None:
        drift = 8 * L**2 * lr**2 * G**2 * K**2  # Theorem 2.22
        factor = 1 if form == "printed" else 2
    else:
        (Q,) = non_negative(Q=Q)
        drift = 8 * Q**2 * lr**4 * G**4 * K**4  # Theorem 2.23
    value = 2 * Delta / (lr * K * R) + drift + factor * L * lr * sigma**2 / M
    return where_valid(value, at_most(lr, 1 / L), "lr <= 1 / L")


def nonconvex_lr(
    *,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    Delta: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    Q: Scalar | None = None,
) -> Array:
    r"""The rate that Theorems 2.22 and 2.23 prescribe for :func:`nonconvex_bound`.

    .. math:: \min\Bigl\{\frac{1}{L},\ \frac{\sqrt{M \Delta}}{\sigma \sqrt{L K R}},\ e\Bigr\},
        \qquad e = \frac{\Delta^{1/3}}{K R^{1/3} L^{2/3} G^{2/3}}
        \ \text{or, with}\ Q,\ \frac{\Delta^{1/5}}{K R^{1/5} Q^{2/5} G^{4/5}}

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G, Q).

    Example:
        >>> float(nonconvex_lr(L=2.0, sigma=0.0, G=0.0, Delta=1.0, M=10, K=5, R=20))
        0.5
    """
    L, M, K, R, Delta = positive(L=L, M=M, K=K, R=R, Delta=Delta)
    sigma, G = non_negative(sigma=sigma, G=G)
    if Q is None:
        entry = (Delta / R) ** (1 / 3) / (K * (L * G) ** (2 / 3))
    else:
        (Q,) = non_negative(Q=Q)
        entry = (Delta / R) ** (1 / 5) / (K * (Q * G**2) ** (2 / 5))
    return smallest(1 / L, jnp.sqrt(M * Delta / (L * K * R)) / sigma, entry)


def tuned_nonconvex_bound(
    *,
    L: Scalar,
    sigma: Scalar,
    G: Scalar,
    Delta: Scalar,
    M: Scalar,
    K: Scalar,
    R: Scalar,
    Q: Scalar | None = None,
) -> Array:
    r"""What :func:`nonconvex_bound` is at most at the rate :func:`nonconvex_lr`.

    .. math:: \frac{2 L \Delta}{K R} + \frac{4 \sigma \sqrt{L \Delta}}{\sqrt{M K R}} + 10\, d,
        \qquad d = \frac{L^{2/3} G^{2/3} \Delta^{2/3}}{R^{2/3}}
        \ \text{or, with}\ Q,\ \frac{Q^{2/5} G^{4/5} \Delta^{4/5}}{R^{4/5}}

    Raises:
        ValueError: a constant that is not positive (negative for sigma, G, Q).

    References:
        Thesis, Theorems 2.22 and 2.23; constants by insertion.

    Example:
        >>> constants = dict(L=1.0, sigma=0.0, G=1.0, Delta=1.0, M=10, K=5, R=32)
        >>> round(float(tuned_nonconvex_bound(**constants, Q=1.0)), 4)  # 2 / 160 + 10 / 16
        0.6375
    """
    L, M, K, R, Delta = positive(L=L, M=M, K=K, R=R, Delta=Delta)
    sigma, G = non_negative(sigma=sigma, G=G)
    if Q is None:
        drift = (L * G * Delta / R) ** (2 / 3)  # Theorem 2.22
    else:
        (Q,) = non_negative(Q=Q)
        drift = (Q * G**2) ** (2 / 5) * (Delta / R) ** (4 / 5)  # Theorem 2.23
    noise = 4 * sigma * jnp.sqrt(L * Delta / (M * K * R))
    return 2 * L * Delta / (K * R) + noise + 10 * drift
