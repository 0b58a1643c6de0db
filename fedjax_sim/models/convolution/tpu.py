"""Forms for TPUs: convolutions of many clients, and layers in blocks of 2 x 2 pixels.

A TPU stores the last two axes of an array in tiles of 8 x 128 numbers and multiplies matrices of
128 x 128.  Small convolutions have few channels, so most of a tile is padding.  With the channels
of 2 x 2 pixels in one place (``blocks.py``), 32 channels fill 128 lanes, and the maximum over a
2 x 2 window is a maximum over parts of the last axis instead of strided slices, which cost a TPU
more than the convolutions themselves.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim.models.convolution.geometry import Geometry


def conv_clients(x: Array, w: Array, g: Geometry) -> Array:
    """``[N, B, H, W, C], [N, kh, kw, C, O] -> [N, B, Ho, Wo, O]``: one convolution per client.

    The clients are a third spatial axis of one convolution, in the form that XLA:TPU itself gives
    to batch axes of matrix products: with stride N - 1 and input dilation N, output n reads input
    and kernel n only.  ``vmap`` would make a grouped convolution.
    """
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


class Layer(NamedTuple):
    """Convolution without padding, bias, elementwise activation, perhaps 2 x 2 max-pooling."""

    kernel: Array  # [kh, kw, C, O]
    bias: Array  # [O]
    pool: bool


def layers_in_blocks(
    x: Array, layers: Sequence[Layer], activation: Callable[[Array], Array], conv: Callable
) -> Array:
    """``[B, H, W, C] -> [B, H', W', O]``: layers whose arrays are in blocks of 2 x 2 pixels.

    Between the layers, arrays are ``[B, ceil(H / 2), ceil(W / 2), 4 C]``.  If H or W is odd, the
    last block has pixels that do not belong to the image; no output of the image reads them.
    Pooling is before the bias and ReLU: both preserve the order of the numbers, and a quarter of
    them is left.  The gradient of a window goes to its first maximum in row-major order.

    Args:
        x: images.
        layers: at least one.
        activation: elementwise function after every convolution.
        conv: convolution of arrays in blocks, see
            :class:`~fedjax_sim.models.convolution.lowering.Convolution`.
    """
    in_blocks, size = False, x.shape[1:3]
    for kernel, bias, pool in layers:
        x = x if in_blocks else _to_blocks(x)
        size = tuple(n - k + 1 for n, k in zip(size, kernel.shape[:2], strict=True))
        reach = tuple(k // 2 + 1 for k in kernel.shape[:2])
        needed = (-(-n // 2) + q - 1 for n, q in zip(size, reach, strict=True))
        x = _resized(x, *needed)
        layout = ("NHWC", "HWIO", "NHWC")
        x = conv(x, _spread(kernel, reach), (1, 1), "VALID", dimension_numbers=layout)
        if pool and activation is jax.nn.relu:
            x = activation(max_pool_blocks(x) + bias)
        else:
            x = activation(x + jnp.tile(bias, 4))
            x = max_pool_blocks(x) if pool else x
        if pool:
            size = tuple(n // 2 for n in size)
            x = x[:, : size[0], : size[1]]
        in_blocks = not pool
    return _to_pixels(x)[:, : size[0], : size[1]] if in_blocks else x


@jax.custom_jvp
def max_pool_blocks(x: Array) -> Array:
    """``[B, H, W, 4 C] -> [B, H, W, C]``: the maximum of each block of pixels."""
    return _first_maximum(x)[0]


@max_pool_blocks.defjvp
def _max_pool_blocks_jvp(primals, tangents):
    maximum, place = _first_maximum(*primals)
    return maximum, lax.select_n(place, *_pixels_of_block(*tangents))


def _first_maximum(x: Array) -> tuple[Array, Array]:
    """The maximum of each block and the place of its first occurrence; NaN is propagated."""
    maximum, *others = _pixels_of_block(x)
    place = jnp.zeros(maximum.shape, jnp.int32)
    for number, entry in enumerate(others, 1):
        larger = (entry > maximum) | jnp.isnan(entry)
        maximum, place = jnp.where(larger, entry, maximum), jnp.where(larger, number, place)
    return maximum, place


def _pixels_of_block(x: Array) -> Sequence[Array]:
    # The transpose of a split is one concatenation; that of slices would be a sum of paddings.
    return lax.split(x, [x.shape[3] // 4] * 4, axis=3)


def _to_blocks(x: Array) -> Array:
    """``space_to_depth`` with whole blocks, by a transposition that leaves the last axis."""
    batch, height, width, channels = x.shape
    x = _resized(x, height + height % 2, width + width % 2)
    x = x.reshape(batch, -(-height // 2), 2, -(-width // 2), 2, channels)
    return x.transpose(0, 1, 3, 2, 4, 5).reshape(*x.shape[:2], x.shape[3], 4 * channels)


def _to_pixels(x: Array) -> Array:
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height, width, 2, 2, channels // 4).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, 2 * height, 2 * width, channels // 4)


def _spread(w: Array, reach: tuple[int, ...]) -> Array:
    """``[kh, kw, C, O] -> [qh, qw, 4 C, 4 O]`` as ``blocks.spread``; only major axes move."""
    (qh, qw), (kh, kw, channels, outputs) = reach, w.shape
    shifted = [
        jnp.pad(w, ((i, 2 * qh - kh - i), (j, 2 * qw - kw - j), (0, 0), (0, 0)))
        for i in range(2)
        for j in range(2)
    ]
    pixels = lax.concatenate(shifted, 3).reshape(qh, 2, qw, 2, channels, 4 * outputs)
    return pixels.transpose(0, 2, 1, 3, 4, 5).reshape(qh, qw, 4 * channels, 4 * outputs)


def _resized(x: Array, height: int, width: int) -> Array:
    """Crops or pads with zeros at the ends of height and width."""
    config = [(0, 0, 0), (0, height - x.shape[1], 0), (0, width - x.shape[2], 0), (0, 0, 0)]
    return lax.pad(x, jnp.zeros((), x.dtype), config)
