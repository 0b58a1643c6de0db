"""Convolution and its two gradients as patches times a matrix."""

import functools
import operator

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedjax_sim.models.convolution.geometry import Geometry


def _stages(channels: int) -> tuple[tuple[int, ...], ...]:
    """Returns the spatial axes along which patches are gathered, in order."""
    # Few channels: one axis after the other, width first. This takes kh + kw slices instead of kh *
    # kw, and the second concatenation, which writes most, copies runs of kw * C numbers. Many
    # channels: both axes at once, without an intermediate array.
    return ((1,), (0,)) if channels < 32 else ((0, 1),)


_FUSED = ((0, 1),)
# Products whose sum XLA:GPU leaves to the kernel that reads the gradient (tested up to 25).
_MAX_PARTS = 32


def patches(x: Array, geometry: Geometry, fused: bool = False) -> Array:
    """Returns ``[B, Ho, Wo, kh * kw * C]``, in the order of the rows of a reshaped kernel."""
    if any(any(pair) for pair in geometry.padding):
        config = [(0, 0, 0), *((low, high, 0) for low, high in geometry.padding), (0, 0, 0)]
        x = lax.pad(x, jnp.zeros((), x.dtype), config)
    for axes in _FUSED if fused else _stages(x.shape[3]):
        slices = []
        for offset in np.ndindex(*(geometry.kernel_size[axis] for axis in axes)):
            start, stop, strides = [0] * 4, list(x.shape), [1] * 4
            for axis, k in zip(axes, offset, strict=True):
                strides[axis + 1] = geometry.strides[axis]
                start[axis + 1] = k * geometry.dilation[axis]
                span = (geometry.output_size[axis] - 1) * geometry.strides[axis] + 1
                stop[axis + 1] = start[axis + 1] + span
            slices.append(lax.slice(x, start, stop, strides))
        x = lax.concatenate(slices, 3)
        # With fusion, every slice of the next concatenation would recompute this one.
        x = x if fused else lax.optimization_barrier(x)
    return x


def add_patches(columns: Array, geometry: Geometry, fused: bool = False) -> Array:
    """The transpose of :func:`patches`: [B, Ho, Wo, kh * kw * C] -> [B, H, W, C]."""
    channels = columns.shape[3] // (geometry.kernel_size[0] * geometry.kernel_size[1])
    for axes in _FUSED if fused else reversed(_stages(channels)):
        offsets = list(np.ndindex(*(geometry.kernel_size[axis] for axis in axes)))
        width = columns.shape[3] // len(offsets)
        parts = []
        for number, offset in enumerate(offsets):
            config = [(0, 0, 0)] * 4
            for axis, k in zip(axes, offset, strict=True):
                stride = geometry.strides[axis]
                low = k * geometry.dilation[axis] - geometry.padding[axis][0]
                span = (geometry.output_size[axis] - 1) * stride + 1
                # Negative amounts crop the padding.
                config[axis + 1] = (low, geometry.input_size[axis] - low - span, stride - 1)
            part = lax.slice_in_dim(columns, number * width, (number + 1) * width, axis=3)
            parts.append(lax.pad(part, jnp.zeros((), part.dtype), config))
        total = functools.reduce(operator.add, parts)
        # With fusion, each use of the sum would recompute it.
        columns = total if fused else lax.optimization_barrier(total)
    return columns


def conv_gemm(x: Array, w: Array, g: Geometry, fused: bool = False) -> Array:
    """Returns the convolution, in few kernels if ``fused``."""
    return jnp.matmul(patches(x, g, fused), w.reshape(-1, w.shape[-1]), precision=g.precision)


def input_grad_gemm(z: Array, w: Array, g: Geometry, fused: bool = False) -> Array:
    """Returns the gradient in the images, in few kernels if ``fused``."""
    columns = jnp.matmul(z, w.reshape(-1, w.shape[-1]).T, precision=g.precision)
    return add_patches(columns, g, fused)


def kernel_grad_gemm(x: Array, z: Array, g: Geometry) -> Array:
    """Returns the gradient in the kernel."""
    rows = patches(x, g)
    rows = rows.reshape(-1, rows.shape[-1])
    # On XLA:CPU a product with the few output channels first is faster; without the barrier the
    # compiler would swap the factors to save the small transposition.
    product = jnp.matmul(z.reshape(-1, z.shape[-1]).T, rows, precision=g.precision)
    product = lax.optimization_barrier(product).T
    return product.reshape(*g.kernel_size, x.shape[-1], z.shape[-1])


conv_gpu = functools.partial(conv_gemm, fused=True)
input_grad_gpu = functools.partial(input_grad_gemm, fused=True)


def kernel_grad_gpu(x: Array, z: Array, g: Geometry) -> Array:
    """Returns :func:`kernel_grad_gemm` in few kernels."""
    # A product for all images has a long sum, which XLA:GPU divides into parts that it copies into
    # padded arrays first. Products of a few images each need no copies, and few parts are added by
    # the kernel that reads the gradient. The parts must not outgrow the patches.
    rows = patches(x, g, True)
    most = min(_MAX_PARTS, max(z.size // z.shape[3] ** 2, 1))
    parts = max(n for n in range(1, most + 1) if x.shape[0] % n == 0)
    rows, z = (a.reshape(parts, -1, a.shape[3]) for a in (rows, z))
    products = jnp.einsum("npk,npo->nko", rows, z, precision=g.precision)
    # Without the barrier XLA would make it one product again.
    return lax.optimization_barrier(products).sum(0).reshape(*g.kernel_size, x.shape[3], -1)
