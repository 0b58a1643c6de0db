"""Convolutional networks of the federated learning literature.

All models are configurations of :func:`cnn`.  Inputs are floating images ``[B, H, W, C]``, outputs
logits ``[B, num_classes]``; biases start at zero.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from fedjax_sim.checks import check_count, check_counts
from fedjax_sim.models.base import Model, from_nnx
from fedjax_sim.models.convolution.geometry import Setting
from fedjax_sim.models.convolution.layers import Layer, layers_in_blocks
from fedjax_sim.models.convolution.lowering import Convolution, auto, automatic, canonical
from fedjax_sim.models.convolution.pooling import max_pool
from fedjax_sim.models.dense import LECUN_NORMAL, Dense, Product, dense_product
from fedjax_sim.types import plain_integers
from fedjax_sim.types.platforms import CHOICES, by_platform

# Four times as many fill two tiles of 128 lanes; with more, blocks only add arithmetic.
_MAX_BLOCK_CHANNELS = 64


@plain_integers
def cnn(
    image_shape: tuple[int, int, int],
    num_classes: int,
    *,
    channels: Sequence[int],
    kernel_size: int,
    hidden: Sequence[int],
    pool_after: Sequence[bool] | None = None,
    activation: Callable[[Array], Array] = jax.nn.relu,
    conv_activation: Callable[[Array], Array] | None = None,
    kernel_init: nnx.Initializer = LECUN_NORMAL,
    conv: Convolution = auto,
    dot: Product = dense_product,
) -> Model:
    """Convolutions without padding, 2x2 max-pooling, dense layers.

    Args:
        image_shape: height, width, channels of one image.
        num_classes: number of logits.
        channels: output channels of each convolution ``conv1``, ``conv2``, ....
        kernel_size: side of every kernel.
        hidden: widths of the hidden dense layers ``head.dense1``, ....
        pool_after: for each convolution, whether 2x2 max-pooling follows its activation; None
            means after every one.
        activation: function after every hidden layer.
        conv_activation: elementwise function after the convolutions; None means ``activation``.
        kernel_init: initializer of every kernel.
        conv: implementation of convolutions (:mod:`fedjax_sim.models.convolution.lowering`).  With
            the default, TPUs compute layers of up to 64 channels in blocks of 2 x 2 pixels, and so
            do CPUs for layers of up to 32 channels with larger patches.
        dot: implementation of the dense layers' products, ``(x, kernel) -> x kernel^T``.

    Raises:
        ValueError: sizes that are no integers of at least 1, or no sequences of them; no channels;
            ``pool_after`` and ``channels`` of different lengths; an ``image_shape`` of another
            length than 3, or too small for the layers; from ``apply``, images of another shape.

    Example:
        >>> model = cnn((16, 16, 1), 4, channels=(8, 8), kernel_size=3, hidden=(32,))
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> sorted(params), params["head"]["dense1"]["kernel"].shape
        (['conv1', 'conv2', 'head'], (32, 32))
    """
    check_counts(1, image_shape=image_shape, channels=channels, hidden=hidden)
    check_count(1, num_classes=num_classes, kernel_size=kernel_size)
    if len(image_shape) != 3:
        raise ValueError(f"image_shape is {image_shape}; expected height, width, channels")
    pool_after = [True] * len(channels) if pool_after is None else list(pool_after)
    if len(pool_after) != len(channels):
        raise ValueError(
            f"pool_after has {len(pool_after)} entries; expected {len(channels)} as in channels"
        )
    if not channels:
        raise ValueError(f"channels is {channels!r}; expected at least one convolution")
    height, width, _ = image_shape
    for pool in pool_after:
        height, width = height - kernel_size + 1, width - kernel_size + 1
        height, width = (height // 2, width // 2) if pool else (height, width)
        if min(height, width) < 1:
            raise ValueError(
                f"image_shape is {image_shape}; expected an image large enough for "
                f"{len(channels)} kernels of side {kernel_size} with pooling after {pool_after}"
            )
    conv_activation = activation if conv_activation is None else conv_activation
    size = height * width * channels[-1]

    def build(rngs: nnx.Rngs) -> nnx.Module:
        inputs = [image_shape[2], *channels[:-1]]
        layers = [
            conv_layer(*sizes, kernel_size, conv, kernel_init, rngs)
            for sizes in zip(inputs, channels, strict=True)
        ]
        head = Dense(size, tuple(hidden), num_classes, activation, kernel_init, rngs, dot)
        return _Cnn(tuple(image_shape), layers, tuple(pool_after), conv_activation, conv, head)

    return from_nnx(build)


def check_images(x: Array, image_shape: tuple[int, ...]) -> None:
    """Refuses other images than those that a model is made for.

    Pooling ignores the last row of an odd number, so that slightly larger images would fit.
    """
    if jnp.shape(x)[1:] != image_shape:
        raise ValueError(f"x has shape {jnp.shape(x)}; expected [B, *{image_shape}]")


def conv_layer(
    inputs: int, outputs: int, side: int, conv: Convolution, kernel_init: nnx.Initializer,
    rngs: nnx.Rngs, *, stride: int = 1, padded: bool = False, use_bias: bool = True,
) -> nnx.Conv:  # fmt: skip
    """Returns a convolution with square kernels, padded by half of their side or not at all."""
    # Explicit padding, since "SAME" pads an even image only at its end if the stride is 2.
    padding = [(side // 2, side // 2)] * 2 if padded else "VALID"
    return nnx.Conv(
        inputs, outputs, (side, side), (stride, stride), padding=padding, use_bias=use_bias,
        kernel_init=kernel_init, conv_general_dilated=conv, rngs=rngs,
    )  # fmt: skip


@plain_integers
def lenet5(
    num_classes: int = 10,
    channels: tuple[int, int] = (6, 16),
    widths: tuple[int, int] = (120, 84),
    conv: Convolution = auto,
    dot: Product = dense_product,
) -> Model:
    """LeNet-5 with ReLU and max-pooling for 32 x 32 x 3 images (CIFAR).

    Conv 5x5 - ReLU - pool - conv 5x5 - ReLU - pool - dense - ReLU - dense - ReLU - dense.
    The default is the classical 6-16-120-84; much of the federated literature calls
    ``channels=(64, 64), widths=(384, 192)`` LeNet-5 too.

    Example:
        >>> model = lenet5()
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        62006
    """
    return cnn(
        (32, 32, 3),
        num_classes,
        channels=channels,
        kernel_size=5,
        hidden=widths,
        conv=conv,
        dot=dot,
    )


@plain_integers
def femnist_cnn(
    num_classes: int = 62, conv: Convolution = auto, dot: Product = dense_product
) -> Model:
    """The two-layer network of federated EMNIST benchmarks, for 28 x 28 x 1 images, no dropout.

    Conv 3x3, 32 - ReLU - conv 3x3, 64 - ReLU - pool - dense 128 - ReLU - dense.  The network
    of Reddi et al. (2021, https://arxiv.org/abs/2003.00295) for EMNIST, without its dropout.

    Example:
        >>> model = femnist_cnn()
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        1206590
    """
    return cnn(
        (28, 28, 1), num_classes, channels=(32, 64), kernel_size=3, hidden=(128,),
        pool_after=(False, True), conv=conv, dot=dot,
    )  # fmt: skip


@plain_integers
def digits_cnn(
    num_classes: int = 10, conv: Convolution = auto, dot: Product = dense_product
) -> Model:
    """A small network for the 8 x 8 x 1 images of scikit-learn's digits.

    Conv 3x3, 16 - ReLU - conv 3x3, 32 - ReLU - pool - dense 64 - ReLU - dense.

    Example:
        >>> model = digits_cnn()
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        13706
    """
    return cnn(
        (8, 8, 1), num_classes, channels=(16, 32), kernel_size=3, hidden=(64,),
        pool_after=(False, True), conv=conv, dot=dot,
    )  # fmt: skip


class _Cnn(nnx.Module):
    def __init__(self, image_shape, layers, pool_after, conv_activation, conv, head):
        self.image_shape = image_shape
        self.pool_after, self.conv_activation, self.conv = pool_after, conv_activation, conv
        for i, layer in enumerate(layers, 1):
            setattr(self, f"conv{i}", layer)
        self.head = head

    def __call__(self, x: Array) -> Array:
        check_images(x, self.image_shape)
        layers = [(getattr(self, f"conv{i}"), pool) for i, pool in enumerate(self.pool_after, 1)]
        plain = functools.partial(self._convolutions, layers, 0, None)
        forms = {
            "channels last": (_num_for_tpus(layers), canonical),
            "channels first": (_num_for_cpus(layers, x), None),
        }
        branches = {
            platform: functools.partial(self._convolutions, layers, *forms[choice.stack])
            if self.conv is auto and choice.stack and forms[choice.stack][0]
            else plain
            for platform, choice in CHOICES.items()
        }
        return self.head(by_platform(branches, x))

    def _convolutions(
        self, layers: list[tuple[nnx.Conv, bool]], count: int, conv: Convolution | None, x: Array
    ) -> Array:
        """The layers, the first ``count`` by :func:`layers_in_blocks` with ``conv``."""
        arrays = [
            Layer(layer.kernel[...], layer.bias[...], pool)
            for layer, pool in layers[:count]
            if layer.bias is not None  # all have one
        ]
        if arrays:
            x = x.astype(jnp.result_type(x, arrays[0].kernel, arrays[0].bias))
            x = layers_in_blocks(x, arrays, self.conv_activation, conv)
        for layer, pool in layers[count:]:
            x = self.conv_activation(layer(x))
            x = max_pool(x) if pool else x
        return x


def _num_for_tpus(layers: list[tuple[nnx.Conv, bool]]) -> int:
    """Number of first layers whose arrays are in blocks on a TPU."""
    narrow = (layer.out_features <= _MAX_BLOCK_CHANNELS for layer, _ in layers)
    return sum(itertools.takewhile(bool, narrow))


def _num_for_cpus(layers: list[tuple[nnx.Conv, bool]], x: Array) -> int:
    """Returns the number of first layers whose arrays are in blocks on a CPU."""
    # Those that `auto` computes by blocks; between them the arrays need not be rearranged.
    (height, width), count = x.shape[1:3], 0
    for layer, pool in layers:
        side = layer.kernel.shape[0]
        height, width = height - side + 1, width - side + 1
        patch_size = side * side * layer.in_features
        patch_bytes = x.shape[0] * height * width * patch_size * layer.kernel.dtype.itemsize
        channels, outputs = layer.in_features, layer.out_features
        setting = Setting("conv", "cpu", channels, patch_size, patch_bytes, outputs)
        if automatic(setting) != "blocks":
            break
        height, width = (height // 2, width // 2) if pool else (height, width)
        count += 1
    return count
