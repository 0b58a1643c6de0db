"""Convolutions of many clients on TPUs."""

import jax
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
    w = jax.ShapeDtypeStruct((x.shape[0], *g.kernel_size, x.shape[4], z.shape[4]), x.dtype)
    (w,) = jax.linear_transpose(lambda w: conv_clients(x, w, g), w)(z)
    return w
