"""Layers whose arrays are in blocks of 2 x 2 pixels.

With the channels of 2 x 2 pixels in one place (``blocks.py``), the maximum over a 2 x 2 window is a
maximum over four parts of the axis of channels instead of strided slices.  The axis of channels is

* the last one for TPUs, which store the last two axes in tiles of 8 x 128 numbers: 32 channels of
  four pixels fill 128 lanes, and strided slices cost a TPU more than the convolutions themselves;
* the first one for CPUs, and that of examples the last one: then a loop over the numbers of an
  array runs over examples, which fill vector registers however few channels there are, and patches
  are copies of long runs.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedjax_sim.models.convolution.lowering import Convolution


class Layer(NamedTuple):
    """Convolution without padding, bias, elementwise activation, perhaps 2 x 2 max-pooling."""

    kernel: Array  # [kh, kw, C, O]
    bias: Array  # [O]
    pool: bool


def layers_in_blocks(
    x: Array,
    layers: Sequence[Layer],
    activation: Callable[[Array], Array],
    conv: Convolution | None = None,
) -> Array:
    """Returns the outputs ``[B, H', W', O]`` of layers with arrays in blocks of 2 x 2 pixels."""
    # Without `conv` the first axis is that of channels, and the convolution is `conv_columns`.
    # Between the layers, arrays are [B, ceil(H / 2), ceil(W / 2), 4 C], or with the first and the
    # last axis exchanged. If H or W is odd, no output of the image reads the pixels beyond it.
    # Pooling is before the bias and ReLU: both preserve the order of the numbers, and a quarter of
    # them is left. The gradient of a window goes to its first maximum in row-major order.
    axis = 0 if conv is None else 3
    in_blocks, size = False, x.shape[1:3]
    x = x.transpose(3, 1, 2, 0) if conv is None else x
    for kernel, bias, pool in layers:
        x = x if in_blocks else _to_blocks(x, axis)
        size = tuple(n - k + 1 for n, k in zip(size, kernel.shape[:2], strict=True))
        reach = tuple(k // 2 + 1 for k in kernel.shape[:2])
        needed = (-(-n // 2) + q - 1 for n, q in zip(size, reach, strict=True))
        x = _resized(x, *needed)
        if conv is None:
            x = conv_columns(x, _spread(kernel, reach))
        else:
            layout = ("NHWC", "HWIO", "NHWC")
            x = conv(x, _spread(kernel, reach), (1, 1), "VALID", dimension_numbers=layout)
        if pool and activation is jax.nn.relu:
            x = activation(max_pool_blocks(x, axis) + _along(bias, axis))
        else:
            x = activation(x + _along(jnp.tile(bias, 4), axis))
            x = max_pool_blocks(x, axis) if pool else x
        if pool:
            size = tuple(n // 2 for n in size)
            x = x[:, : size[0], : size[1]]
        in_blocks = not pool
    x = _to_pixels(x, axis)[:, : size[0], : size[1]] if in_blocks else x
    return x.transpose(3, 1, 2, 0) if conv is None else x


def conv_columns(x: Array, w: Array) -> Array:
    """Returns ``out[o, i, j, b] = sum_{k, l, c} x[c, i + k, j + l, b] w[k, l, c, o]``."""
    # JAX's own derivatives are fast: those of slices and concatenations add long runs.
    for axis, size in ((2, w.shape[1]), (1, w.shape[0])):
        span = x.shape[axis] - size + 1
        parts = [lax.slice_in_dim(x, k, k + span, axis=axis) for k in range(size)]
        # With fusion, every slice of the next concatenation would recompute this one.
        x = lax.optimization_barrier(lax.concatenate(parts, 0))
    out = jnp.matmul(w.reshape(-1, w.shape[3]).T, lax.collapse(x, 1))
    return out.reshape(w.shape[3], *x.shape[1:])


def max_pool_blocks(x: Array, axis: int) -> Array:
    """``[B, H, W, 4 C] -> [B, H, W, C]``: the maximum of each block of pixels, along ``axis``."""
    # The transpose of a split is one concatenation; that of slices would be a sum of paddings.
    return _maximum(tuple(lax.split(x, [x.shape[axis] // 4] * 4, axis=axis)))


@jax.custom_jvp
def _maximum(entries: tuple[Array, ...]) -> Array:
    return _first_maximum(entries)[0]


@_maximum.defjvp
def _maximum_jvp(primals, tangents):
    maximum, place = _first_maximum(*primals)
    return maximum, lax.select_n(place, *tangents[0])


def _first_maximum(entries: tuple[Array, ...]) -> tuple[Array, Array]:
    """The maximum and the place of its first occurrence; NaN is propagated."""
    maximum, *others = entries
    place = jnp.zeros(maximum.shape, jnp.int32)
    for number, entry in enumerate(others, 1):
        larger = (entry > maximum) | jnp.isnan(entry)
        maximum, place = jnp.where(larger, entry, maximum), jnp.where(larger, number, place)
    return maximum, place


def _along(bias: Array, axis: int) -> Array:
    """The biases of channels, for arrays whose channels are on ``axis``."""
    return bias if axis == 3 else bias[:, None, None, None]


def _to_blocks(x: Array, axis: int) -> Array:
    """``space_to_depth`` with whole blocks; the last axis stays."""
    height, width = (n + n % 2 for n in x.shape[1:3])
    x = _resized(x, height, width)
    if axis == 0:
        return lax.concatenate([x[:, i::2, j::2] for i, j in np.ndindex(2, 2)], 0)
    batch, _, _, channels = x.shape
    x = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(*x.shape[:2], x.shape[3], 4 * channels)


def _to_pixels(x: Array, axis: int) -> Array:
    """The inverse of :func:`_to_blocks` for even heights and widths."""
    _, height, width, _ = x.shape
    if axis == 0:
        x = x.reshape(2, 2, x.shape[0] // 4, *x.shape[1:]).transpose(2, 3, 0, 4, 1, 5)
        return x.reshape(x.shape[0], 2 * height, 2 * width, x.shape[5])
    x = x.reshape(*x.shape[:3], 2, 2, x.shape[3] // 4).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(x.shape[0], 2 * height, 2 * width, x.shape[5])


def _spread(w: Array, reach: tuple[int, ...]) -> Array:
    """``[kh, kw, C, O] -> [qh, qw, 4 C, 4 O]`` as ``blocks.spread``; only major axes move."""
    (qh, qw), (kh, kw, channels, outputs) = reach, w.shape
    shifted = [
        jnp.pad(w, ((i, 2 * qh - kh - i), (j, 2 * qw - kw - j), (0, 0), (0, 0)))
        for i, j in np.ndindex(2, 2)
    ]
    pixels = lax.concatenate(shifted, 3).reshape(qh, 2, qw, 2, channels, 4 * outputs)
    return pixels.transpose(0, 2, 1, 3, 4, 5).reshape(qh, qw, 4 * channels, 4 * outputs)


def _resized(x: Array, height: int, width: int) -> Array:
    """Crops or pads with zeros at the ends of height and width."""
    config = [(0, 0, 0), (0, height - x.shape[1], 0), (0, width - x.shape[2], 0), (0, 0, 0)]
    return lax.pad(x, jnp.zeros((), x.dtype), config)
