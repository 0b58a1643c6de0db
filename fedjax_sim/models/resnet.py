"""Residual networks for small images, with group normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from fedjax_sim.checks import check_count, check_counts
from fedjax_sim.models.base import Model, from_nnx
from fedjax_sim.models.cnn import conv_layer
from fedjax_sim.models.convolution.lowering import Convolution, auto
from fedjax_sim.models.convolution.pairs import conv_pairs, in_pairs
from fedjax_sim.models.dense import Dense, Product, dense_product
from fedjax_sim.models.layers import normalise_groups, normalise_groups_later
from fedjax_sim.models.recomputed import Recomputed, later, read
from fedjax_sim.types import plain_integers

_HE_NORMAL = jax.nn.initializers.he_normal()


@plain_integers
def resnet(
    num_classes: int,
    *,
    channels: Sequence[int],
    blocks: Sequence[int],
    groups: int = 2,
    image_channels: int = 3,
    large_stem: bool = False,
    conv: Convolution = auto,
    dot: Product = dense_product,
    pairs: bool = False,
    remat: bool = False,
) -> Model:
    """Residual network of basic blocks: ``[B, H, W, image_channels] -> logits``.

    Stem for small images: conv 3x3 to ``channels[0]``, norm, ReLU, no pooling.  Stem of the paper
    for large images: conv 7x7 of stride 2, norm, ReLU, 3x3 max-pooling of stride 2.  Stage s has
    ``blocks[s]`` blocks of ``channels[s]``; the first block of every stage but the first has
    stride 2.  One block is

        ``relu(norm(conv3x3(relu(norm(conv3x3_stride(x))))) + shortcut(x))``

    with the identity as shortcut, or ``norm(conv1x1_stride(x))`` where the shape changes.  The last
    layers are the mean over all pixels and a dense layer.  Convolutions k x k pad (k - 1) / 2
    pixels and have no bias; norm is group normalisation with epsilon 1e-5, a scale and a bias per
    channel, so an example's output does not depend on the rest of its batch.  Kernels start
    He-normal, scales at one, biases at zero.

    Sources: He et al. (2016, https://arxiv.org/abs/1512.03385), Wu and He (2018,
    https://arxiv.org/abs/1803.08494).

    Args:
        num_classes: number of logits.
        channels: channels of each stage.
        blocks: number of blocks of each stage.
        groups: groups of channels that are normalised together with all their pixels.
        image_channels: channels of the images.
        large_stem: the stem for large images.
        conv: implementation of convolutions (:mod:`fedjax_sim.models.convolution.lowering`).
        dot: implementation of the dense layer's product, ``(x, kernel) -> x kernel^T``.
        pairs: compute the first stage in pairs of pixels, with the same parameters and outputs up
            to rounding.  64 channels then fill the 128 lanes of a TPU's register
            (docs/performance.md); elsewhere it only costs arithmetic.  ``conv`` then serves the
            later stages.
        remat: compute residual sums again in every layer that reads them, forward and backward, so
            that none is stored: fewer passes over memory on a TPU (docs/performance.md), for a
            little arithmetic.

    Raises:
        ValueError: no stage, or ``blocks`` and ``channels`` of different lengths; a number that is
            no integer of at least 1; ``groups`` that do not divide the channels; pairs with one
            stage or the large stem.  The model raises it for pairs in images of an odd width.

    Example:
        >>> model = resnet(10, channels=(4, 8), blocks=(1, 1))
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> sorted(params), sorted(params["blocks"]["1"])
        (['blocks', 'conv', 'head', 'norm'], ['conv1', 'conv2', 'norm1', 'norm2', 'shortcut'])
    """
    check_counts(1, channels=channels, blocks=blocks)
    check_count(1, num_classes=num_classes, image_channels=image_channels, groups=groups)
    if not channels or len(channels) != len(blocks):
        raise ValueError(
            f"blocks is {tuple(blocks)} and channels is {tuple(channels)}; expected one number "
            "of each for every stage, and at least one stage"
        )
    if any(width % groups for width in channels):
        raise ValueError(f"groups is {groups}; expected a divisor of each of {tuple(channels)}")
    if pairs and (large_stem or len(channels) == 1):
        raise ValueError(
            f"pairs is True, with {len(channels)} stages and large_stem {large_stem}; expected the "
            "stem for small images and a second stage, whose stride ends the pairs"
        )
    sizes = num_classes, tuple(channels), tuple(blocks), groups, image_channels
    return from_nnx(lambda rngs: _ResNet(*sizes, large_stem, conv, dot, pairs, remat, rngs))


@plain_integers
def resnet18(
    num_classes: int = 10,
    groups: int = 2,
    conv: Convolution = auto,
    dot: Product = dense_product,
    pairs: bool = False,
    remat: bool = False,
) -> Model:
    """ResNet-18 with the stem for small images, ``[B, H, W, 3] -> logits [B, num_classes]``.

    Four stages of two blocks with 64, 128, 256 and 512 channels; see :func:`resnet`.

    Example:
        >>> model = resnet18()
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        11173962
    """
    channels, blocks = (64, 128, 256, 512), (2, 2, 2, 2)
    return resnet(
        num_classes, channels=channels, blocks=blocks, groups=groups, conv=conv, dot=dot,
        pairs=pairs, remat=remat,
    )  # fmt: skip


@plain_integers
def resnet20(
    num_classes: int = 10, groups: int = 2, conv: Convolution = auto, dot: Product = dense_product
) -> Model:
    """ResNet-20 of the CIFAR family, ``[B, H, W, 3] -> logits [B, num_classes]``.

    Three stages of three blocks with 16, 32 and 64 channels; see :func:`resnet`.  He et al. (2016)
    use shortcuts without parameters here, zeros for the new channels; this one has the 1x1
    convolutions of the larger networks, 2,752 parameters more.

    Example:
        >>> model = resnet20()
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        272474
    """
    channels, blocks = (16, 32, 64), (3, 3, 3)
    return resnet(num_classes, channels=channels, blocks=blocks, groups=groups, conv=conv, dot=dot)


class _ResNet(nnx.Module):
    def __init__(
        self,
        num_classes,
        channels,
        blocks,
        groups,
        image_channels,
        large_stem,
        conv,
        dot,
        pairs,
        remat,
        rngs,
    ):
        self.large_stem = large_stem
        size, stride = (7, 2) if large_stem else (3, 1)
        self.conv = _conv(image_channels, channels[0], size, stride, conv, rngs)
        self.norm = _GroupNorm(channels[0], groups, remat)
        self.blocks = nnx.List()
        fan_in = channels[0]
        for stage, (width, count) in enumerate(zip(channels, blocks, strict=True)):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                self.blocks.append(_BasicBlock(fan_in, width, stride, groups, conv, remat, rngs))
                fan_in = width
        self.pairs = pairs
        self.head = Dense(fan_in, (), num_classes, jax.nn.relu, _HE_NORMAL, rngs, dot)

    def __call__(self, x: Array) -> Array:
        x = x.astype(self.conv.kernel.dtype)
        if self.pairs:  # until the first stride of 2
            if x.shape[2] % 2:
                raise ValueError(
                    f"x has images of width {x.shape[2]}; expected an even one (pairs)"
                )
            x = in_pairs(x)
        h = later(jax.nn.relu, self.norm(_convolved(self.conv, x)))
        if self.large_stem:
            h = read(_pool, h)
        for block in self.blocks:
            h = block(h)
        return self.head(read(lambda h: h.mean(axis=(1, 2)), h))


def _pool(x: Array) -> Array:
    """Maxima of 3 x 3 pixels around every second one."""
    lowest = np.array(-np.inf, x.dtype)  # a constant, as the gradient requires
    padding = ((0, 0), (1, 1), (1, 1), (0, 0))
    return jax.lax.reduce_window(x, lowest, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)


class _BasicBlock(nnx.Module):
    def __init__(self, fan_in, width, stride, groups, conv, remat, rngs):
        self.conv1 = _conv(fan_in, width, 3, stride, conv, rngs)
        self.norm1 = _GroupNorm(width, groups)
        self.conv2 = _conv(width, width, 3, 1, conv, rngs)
        self.norm2 = _GroupNorm(width, groups, remat)
        if stride > 1 or fan_in != width:
            self.shortcut = _Shortcut(fan_in, width, stride, groups, conv, remat, rngs)

    def __call__(self, x: Array | Recomputed) -> Array | Recomputed:
        # In pairs both convolutions read and write pairs that are one pixel apart.
        paired = x.shape[3] != self.conv1.in_features
        shift = int(paired and not hasattr(self, "shortcut"))
        h = jax.nn.relu(self.norm1(_convolved(self.conv1, x, -shift), shift))
        h = self.norm2(_convolved(self.conv2, h, shift))
        x = self.shortcut(x) if hasattr(self, "shortcut") else x
        return later(lambda h, x: jax.nn.relu(h + x), h, x)


class _Shortcut(nnx.Module):
    def __init__(self, fan_in, width, stride, groups, conv, remat, rngs):
        self.conv = _conv(fan_in, width, 1, stride, conv, rngs)
        self.norm = _GroupNorm(width, groups, remat)

    def __call__(self, x: Array | Recomputed) -> Array | Recomputed:
        return self.norm(_convolved(self.conv, x))


class _GroupNorm(nnx.Module):
    """Group normalisation in any dtype; nnx.GroupNorm needs float32 under strict promotion."""

    def __init__(self, width, groups, remat=False):
        self.groups = groups
        self.normalise = normalise_groups_later if remat else normalise_groups
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

    def __call__(self, x: Array, outside: int = 0) -> Any:
        return self.normalise(x, self.scale[...], self.bias[...], self.groups, 1e-5, outside)


def _convolved(layer: nnx.Conv, x: Array | Recomputed, shift: int = 0) -> Array:
    """The convolution of images, or of images whose pixels are in pairs."""
    graph, kernel = nnx.split(layer)

    def convolve(x: Array, kernel: nnx.State) -> Array:
        layer: nnx.Conv = nnx.merge(graph, kernel)
        return layer(x) if x.shape[3] == layer.in_features else conv_pairs(layer, x, shift)

    return read(convolve, x, kernel)


def _conv(fan_in, fan_out, size, stride, conv, rngs) -> nnx.Conv:
    return conv_layer(
        fan_in, fan_out, size, conv, _HE_NORMAL, rngs, stride=stride, padded=True, use_bias=False
    )
