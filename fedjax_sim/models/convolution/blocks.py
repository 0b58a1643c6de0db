"""Convolution by blocks of output pixels: a wider matrix product over smaller patches.

A product with few output channels is slow, and its patches repeat every input number kh * kw times.
Therefore ``b x b`` neighbouring output pixels become channels of one pixel.  Their common patch has
``(kh + b - 1) (kw + b - 1) C`` numbers instead of ``b b kh kw C``, and the matrix ``b b O`` columns
instead of O; some of its entries are zero.  With images rearranged in the same way
(``space_to_depth``) this is again a convolution of stride 1:

    conv(x, w) = depth_to_space(conv(space_to_depth(x), spread(w)))

and its gradients are those of that convolution between the transposes of the three.

5 x 5 kernels, b = 2: patches take 36 / 100 of the memory for 36 / 25 of the arithmetic.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedjax_sim.models.convolution.geometry import Geometry, Pair
from fedjax_sim.models.convolution.patches import conv_gemm, input_grad_gemm, kernel_grad_gemm

BLOCK: Pair = (2, 2)


def blockable(geometry: Geometry) -> bool:
    """Returns whether this module supports the geometry: unit strides, no kernel dilation."""
    return geometry.strides == geometry.dilation == (1, 1)


def conv_blocks(x: Array, w: Array, g: Geometry) -> Array:
    """``conv(x, w)`` for a geometry that is :func:`blockable`."""
    out = depth_to_space(conv_gemm(_images(x, g), spread(w, BLOCK), _inner(g)), BLOCK)
    return out[:, : g.output_size[0], : g.output_size[1]]


def input_grad_blocks(z: Array, w: Array, g: Geometry) -> Array:
    """The transpose of :func:`conv_blocks` in ``x``."""
    x = input_grad_gemm(_outputs(z, g), spread(w, BLOCK), _inner(g))
    crop = [(-low, -high, 0) for low, high in _margins(g)]
    return stored(lax.pad(depth_to_space(x, BLOCK), _zero(x), [(0, 0, 0), *crop, (0, 0, 0)]))


def kernel_grad_blocks(x: Array, z: Array, g: Geometry) -> Array:
    """The transpose of :func:`conv_blocks` in ``w``."""
    return collect(kernel_grad_gemm(_images(x, g), _outputs(z, g), _inner(g)), g.kernel_size, BLOCK)


def space_to_depth(x: Array, block: Pair) -> Array:
    """``[B, bh H, bw W, C] -> [B, H, W, bh bw C]``: the pixels of a block become its channels."""
    bh, bw = block
    batch, height, width, channels = x.shape
    rows = x.reshape(batch, height // bh, bh, width // bw, bw * channels)
    # A concatenation copies runs of bw * C numbers; a transposition would index each of them.
    return lax.concatenate([rows[:, :, i] for i in range(bh)], 3)


def depth_to_space(x: Array, block: Pair) -> Array:
    """``[B, H, W, bh bw C] -> [B, bh H, bw W, C]``, the inverse of :func:`space_to_depth`."""
    bh, bw = block
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height, width, bh, bw, channels // (bh * bw)).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(batch, bh * height, bw * width, channels // (bh * bw))


def spread(w: Array, block: Pair) -> Array:
    """Returns the kernel ``[qh, qw, bh bw C, bh bw O]`` at each position in a block."""
    # The receptive field of one block has q = ceil((k + b - 1) / b) blocks per axis.
    (qh, qw), (bh, bw) = _reach((w.shape[0], w.shape[1]), block), block
    kh, kw, channels, outputs = w.shape
    shifted = [
        jnp.pad(w, ((i, qh * bh - kh - i), (j, qw * bw - kw - j), (0, 0), (0, 0)))
        for i, j in np.ndindex(block)
    ]
    # The pixels of the kernel are rearranged like those of the image.
    pixels = lax.concatenate(shifted, 3).reshape(1, qh * bh, qw * bw, -1)
    return space_to_depth(pixels, block).reshape(qh, qw, bh * bw * channels, bh * bw * outputs)


def collect(w: Array, kernel_size: Pair, block: Pair) -> Array:
    """The transpose of :func:`spread`: ``[qh, qw, bh bw C, bh bw O] -> [kh, kw, C, O]``."""
    (kh, kw), places = kernel_size, block[0] * block[1]
    qh, qw, channels, outputs = w.shape
    pixels = depth_to_space(w.reshape(1, qh, qw, -1), block)
    pixels = pixels.reshape(*pixels.shape[1:3], channels // places, places, outputs // places)
    parts = (
        pixels[i : i + kh, j : j + kw, :, number] for number, (i, j) in enumerate(np.ndindex(block))
    )
    return sum(parts, start=_zero(w))


def _images(x: Array, g: Geometry) -> Array:
    """Padded images in blocks."""
    config = [(low, high, 0) for low, high in _margins(g)]
    x = lax.pad(x, _zero(x), [(0, 0, 0), *config, (0, 0, 0)])
    return space_to_depth(stored(x), BLOCK)


def _outputs(z: Array, g: Geometry) -> Array:
    """Outputs in whole blocks, the transpose of the cropping in :func:`conv_blocks`."""
    config = [(0, -n % b, 0) for n, b in zip(g.output_size, BLOCK, strict=True)]
    return space_to_depth(lax.pad(z, _zero(z), [(0, 0, 0), *config, (0, 0, 0)]), BLOCK)


def _inner(g: Geometry) -> Geometry:
    """The convolution on blocks."""
    reach = _reach(g.kernel_size, BLOCK)
    height, width = (
        -(-n // b) + q - 1 for n, q, b in zip(g.output_size, reach, BLOCK, strict=True)
    )
    return g._replace(input_size=(height, width), kernel_size=reach, padding=((0, 0), (0, 0)))


def _margins(g: Geometry) -> list[Pair]:
    """Padding of height and width up to whole blocks; negative amounts crop."""
    return [
        (low, blocks * b - n - low)
        for n, (low, _), blocks, b in zip(
            g.input_size, g.padding, _inner(g).input_size, BLOCK, strict=True
        )
    ]


def _reach(kernel_size: Pair, block: Pair) -> Pair:
    qh, qw = (-(-(k + b - 1) // b) for k, b in zip(kernel_size, block, strict=True))
    return qh, qw


def stored(x: Array) -> Array:
    """Returns ``x`` such that XLA:CPU writes it to memory once."""
    # XLA:CPU fuses a cheap producer (a gather of examples, max-pooling, a sum of patches) into each
    # of its consumers, which are all slices of the patches and all entries of pooling windows. It
    # does not fuse concatenations along a long last axis.
    flat = lax.collapse(x, 1)
    half = flat.shape[1] // 2
    # Without the barrier the two halves would be simplified to the whole.
    halves = lax.optimization_barrier((flat[:, :half], flat[:, half:]))
    return lax.concatenate(halves, 1).reshape(x.shape)


def _zero(x: Array) -> Array:
    return jnp.zeros((), x.dtype)
