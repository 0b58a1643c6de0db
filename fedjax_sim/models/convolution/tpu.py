"""Convolutions of many clients on TPUs."""

import operator

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim.models.convolution.geometry import Geometry


def conv_clients(x: Array, w: Array, g: Geometry) -> Array:
    """Returns the convolution ``[N, B, Ho, Wo, O]`` of every client's images and kernel."""
    # The clients are a third spatial axis of one convolution, in the form that XLA:TPU itself gives
    # to batch axes of matrix products: with stride N - 1 and input dilation N, output n reads input
    # and kernel n only. `vmap` would make a grouped convolution.
    num_clients = x.shape[0]
    return lax.conv_general_dilated(
        x,
        w,
        (max(num_clients - 1, 1), *g.strides),
        ((0, 0), *g.padding),
        lhs_dilation=(num_clients, 1, 1),
        rhs_dilation=(1, *g.dilation),
        dimension_numbers=("DNHWC", "DHWIO", "DNHWC"),
        precision=g.precision,
    )


def input_grad_clients(z: Array, w: Array, g: Geometry) -> Array:
    """The transpose of :func:`conv_clients` in ``x``."""
    x = jax.ShapeDtypeStruct((*z.shape[:2], *g.input_size, w.shape[3]), z.dtype)
    (x,) = jax.linear_transpose(lambda x: conv_clients(x, w, g), x)(z)
    return x


def kernel_grad_clients(x: Array, z: Array, g: Geometry) -> Array:
    """The transpose of :func:`conv_clients` in ``w``."""
    if g.strides == g.dilation == (1, 1) and any(map(operator.gt, g.output_size, g.input_size)):
        return _kernel_grad_of_wide(x, z, g)
    w = jax.ShapeDtypeStruct((x.shape[0], *g.kernel_size, x.shape[4], z.shape[4]), x.dtype)
    (w,) = jax.linear_transpose(lambda w: conv_clients(x, w, g), w)(z)
    return w


def _kernel_grad_of_wide(x: Array, z: Array, g: Geometry) -> Array:
    """The gradient in the kernel where outputs are larger than images."""
    # The smaller array is the window: XLA:TPU would exchange the other order and write the window
    # in reverse. Here the result is in reverse, which has the few entries of a kernel.
    num_clients = x.shape[0]
    padding = []
    for n, k, m, (low, _) in zip(
        g.input_size, g.kernel_size, g.output_size, g.padding, strict=True
    ):
        before = k - 1 - low
        padding.append((before, n + k - 1 - m - before))
    turned = lax.conv_general_dilated(
        z,
        x,
        (1, 1, 1),
        ((0, 0), *padding),
        lhs_dilation=(num_clients, 1, 1),
        rhs_dilation=(max(num_clients - 1, 1), 1, 1),
        dimension_numbers=("DCHWN", "DIHWO", "DHWCN"),
        precision=g.precision,
    )
    return jnp.flip(turned, (1, 2))
