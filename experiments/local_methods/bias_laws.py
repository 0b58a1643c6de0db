r"""Closed forms that approximate the iterate bias, for few steps and for infinitely many.

Module :mod:`fedjax_sim.diagnostics.iterate_bias` defines and computes the bias.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, chapter 2.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.diagnostics import Derivative
from fedjax_sim.types import Scalar


def third_order_bias(
    gradient: Derivative,  # gradient of F at one point, twice differentiable
    x: Array | float,  # a number, or a vector ``[d]``
    covariance: Array | float,  # variance of the noise, or Sigma ``[d, d]``
    lr: Scalar,  # eta
    num_steps: Array | int,  # k; a number
    form: Literal["recursion", "diffusion"] = "diffusion",  # a row of the table
) -> Array:
    r"""Leading term of the bias for small ``lr * num_steps``, if F has a third derivative.

    .. math:: \text{bias} \approx -\tfrac14 \eta^3 k^2\, \nabla\, \mathrm{tr}(\Sigma \nabla^2 F)(x)

    In one dimension this is :math:`-\frac14 \eta^3 k^2 \sigma^2 F'''(x)`; it points to flatter
    regions.

    =============  ==================================  =====================================
    form           factor                              meaning
    =============  ==================================  =====================================
    recursion      :math:`-\frac14 \eta^3 k (k - 1)`   SGD itself
    diffusion      :math:`-\frac14 \eta^3 k^2`         stochastic differential equation
    =============  ==================================  =====================================

    The thesis prints :math:`-\frac12 \eta^3 k^2`, since its backward equation lacks a factor 1/2.

    Returns:
        An array of x's shape.

    Source: thesis, section 2.4, in one dimension.
    """
    if form not in ("recursion", "diffusion"):
        raise ValueError(f"form is {form!r}; expected 'recursion' or 'diffusion'")
    x = jnp.asarray(x, jnp.result_type(float))
    sigma = jnp.asarray(covariance, x.dtype)
    if sigma.shape != x.shape * 2:
        raise ValueError(f"covariance has shape {sigma.shape}; expected {x.shape * 2}, as x x^T")
    k = jnp.asarray(num_steps).astype(x.dtype)
    factor = {"recursion": k * (k - 1) / 4, "diffusion": k**2 / 4}[form]

    def trace(x: Array) -> Array:
        # In one dimension both factors are scalars.
        return jnp.sum(sigma * jax.jacfwd(gradient)(x))

    return -(jnp.asarray(lr, x.dtype) ** 3) * factor * jax.grad(trace)(x)


def piecewise_quadratic_bias(
    right: float, left: float, lr: float, std: float, num_steps: int, form: str = "sum"
) -> float:
    r"""Bias due to the kink at 0, with Gaussian noise.

    Valid for ``lr * num_steps * max(right, left)`` well below 1.

    .. math::
        -\frac{a - b}{\sqrt{2 \pi}}\, \eta^2 \sigma \sum_{j=0}^{k-1} \sqrt j
        \;\to\; -\frac{2 (a - b)}{3 \sqrt{2 \pi}}\, \eta^2 \sigma k^{3/2}

    Args:
        right: a.
        left: b.
        lr: eta.
        std: sigma.
        num_steps: k.
        form: ``"sum"``, or its limit ``"power"``.
    """
    if form not in ("sum", "power"):
        raise ValueError(f"form is {form!r}; expected 'sum' or 'power'")
    total = np.sqrt(np.arange(num_steps)).sum() if form == "sum" else 2 / 3 * num_steps**1.5
    return float(-(right - left) / np.sqrt(2 * np.pi) * lr**2 * std * total)


def piecewise_quadratic_limit(right: float, left: float, lr: float, std: float) -> float:
    r"""Limit of the bias for k to infinity: the mean of the diffusion's stationary distribution.

    The density is :math:`\propto e^{-2 F(x) / (\eta \sigma^2)}`, which is two half Gaussians. Its
    mean is

    .. math::
        \sqrt{2 / \pi}\, (s_+ - s_-), \qquad
        s_+^2 = \eta \sigma^2 / (2 a), \quad s_-^2 = \eta \sigma^2 / (2 b)

    Args:
        right: a.
        left: b.
        lr: eta.
        std: sigma.
    """
    spreads = [np.sqrt(lr * std**2 / (2 * curvature)) for curvature in (right, left)]
    return float(np.sqrt(2 / np.pi) * (spreads[0] - spreads[1]))
