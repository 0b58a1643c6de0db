"""Convolutions of images whose pixels are in pairs, for TPUs.

Neighbouring pixels of a row become channels of one: ``[B, H, W, C] -> [B, H, W / 2, 2 C]``.  So 64
channels fill the 128 lanes of a register, and elementwise operations and sums take half of the
time.  A convolution k x k is one on pairs whose kernel has zeros.  With stride 2 its outputs are
pixels, because output j is then at pair j.

Shifted pairs start one pixel earlier: pair j has the pixels 2 j - 1 and 2 j, and there is one pair
more, whose first and last pixels are outside of the image.  Two pixels of a convolution 3 x 3 read
four, which are three pairs, but two pairs if one of both images is shifted.
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array, lax


def in_pairs(x: Array) -> Array:
    """``[B, H, W, C] -> [B, H, W / 2, 2 C]`` for an even width."""
    batch, height, width, channels = x.shape
    return x.reshape(batch, height, width // 2, 2 * channels)


def conv_pairs(layer: nnx.Conv, x: Array, shift: int = 0) -> Array:
    """Returns the layer's outputs, in pairs if its stride is 1.

    Args:
        layer: convolution without bias, with an odd side k, padding (k - 1) / 2, stride 1 or 2.
        x: images in pairs ``[B, H, W / 2, 2 C]``, or shifted ones for the shift 1.
        shift: -1 for outputs in shifted pairs and 1 for inputs in them, with stride 1.
    """
    strides: Any = layer.strides  # a pair in every layer of `conv_layer`
    kernel, stride = layer.kernel[...], strides[0]
    side, _, channels, outputs = kernel.shape
    pad = side // 2
    # Number r of output pair j reads the numbers r + shift - pad + l after the first one of input
    # pair j: pairs from j - low to j + high.
    places = range(2 // stride)
    low, high = (pad - shift + 1) // 2, (pad + shift + len(places) - 1) // 2
    size = low + high + 1
    shifts = [2 * low + shift - pad + r for r in places]
    shifted = [
        jnp.pad(kernel, ((0, 0), (shift, 2 * size - side - shift), (0, 0), (0, 0)))
        for shift in shifts
    ]
    kernel = lax.concatenate(shifted, 3)
    kernel = kernel.reshape(side, size, 2 * channels, len(places) * outputs)
    return layer.conv_general_dilated(
        x, kernel, (stride, 1), ((pad, pad), (low, high - shift)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
