r"""One-dimensional objectives with different curvatures on the two sides of the optimum 0.

Each function is a gradient F'(x), elementwise; ``functools.partial`` fixes the constants.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, chapter 2.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array

from fedjax_sim.types import Scalar


def piecewise_quadratic(x: Array, right: Scalar, left: Scalar) -> Array:
    r"""F' of :math:`F(x) = \frac a2 x^2` for :math:`x \ge 0`, :math:`\frac b2 x^2` for x < 0.

    F is smooth, but F'' jumps at 0.

    Args:
        x: any shape.
        right: a.
        left: b.

    Source: thesis, Figure 2.1 (a = 2, b = 0.2) and section 2.3.1 (a = 2 b).

    Example:
        >>> piecewise_quadratic(jnp.array([-1.0, 0.0, 1.0]), 2.0, 0.25).tolist()
        [-0.25, 0.0, 2.0]
    """
    return x * jnp.where(x >= 0, jnp.asarray(right, x.dtype), jnp.asarray(left, x.dtype))


def third_order_smooth(x: Array, smoothness: Scalar, third: Scalar) -> Array:
    r"""F' with :math:`F'' \in [L/2, L]` and :math:`F''' \in (0, Q]`; F''' is largest at 0.

    .. math::
        F'(x) &= \tfrac34 L x + \tfrac{L^2}{16 Q} \log\cosh(\tfrac{4Q}{L} x) \\
        F''(x) &= \tfrac34 L + \tfrac L4 \tanh(\tfrac{4Q}{L} x), \qquad
        F'''(x) = Q\, \mathrm{sech}^2(\tfrac{4Q}{L} x)

    Automatic differentiation gives derivatives of every order, also at 0.

    Args:
        x: any shape.
        smoothness: L.
        third: Q.

    Source: thesis, Equation (A.15).

    Example:
        >>> import jax
        >>> gradient = lambda x: third_order_smooth(x, 1.0, 0.5)
        >>> [float(f(0.0)) for f in (gradient, jax.grad(gradient), jax.grad(jax.grad(gradient)))]
        [0.0, 0.75, 0.5]
    """
    u = 4 * third / smoothness * x
    # log cosh u = log(1 + 2 sinh^2(u / 2)), where the difference of two logarithms cancels: its
    # error would be large beside Q x^2 / 2 for small Q.
    near = jnp.abs(u) < 1
    small = jnp.log1p(2 * jnp.sinh(jnp.where(near, u, 0) / 2) ** 2)
    log_cosh = jnp.where(near, small, jnp.logaddexp(u, -u) - math.log(2.0))
    return 0.75 * smoothness * x + smoothness**2 / (16 * third) * log_cosh
