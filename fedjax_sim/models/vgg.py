"""VGG-11 for 32 x 32 images, without normalisation and without dropout."""

from __future__ import annotations

import jax
from flax import nnx
from jax import Array

from fedjax_sim.checks import check_count
from fedjax_sim.models.base import Model, from_nnx
from fedjax_sim.models.cnn import check_images, conv_layer
from fedjax_sim.models.convolution.lowering import Convolution, auto
from fedjax_sim.models.convolution.pooling import max_pool
from fedjax_sim.models.dense import Dense
from fedjax_sim.types import plain_integers

# Output channels of each convolution, and whether 2x2 max-pooling follows: 32 -> 1 pixel.
_LAYERS = (
    (64, True), (128, True), (256, False), (256, True), (512, False), (512, True), (512, False),
    (512, True),
)  # fmt: skip


@plain_integers
def vgg11(num_classes: int = 10, hidden: int | None = None, conv: Convolution = auto) -> Model:
    """VGG-11 for 32 x 32 x 3 images: ``[B, 32, 32, 3] -> logits [B, num_classes]``.

    Eight 3x3 convolutions with one pixel of zero padding, each followed by ReLU, with channels
    ``64 M 128 M 256 256 M 512 512 M 512 512 M``, where M is 2x2 max-pooling; then flatten (512) -
    dense ``hidden`` - ReLU - dense.  Kernels start He-normal (variance 2 / fan-in), which preserves
    the scale of the signal through layers of ReLU, since there is no normalisation.  Biases
    start at zero.

    Source: Simonyan and Zisserman (2015, https://arxiv.org/abs/1409.1556), configuration A, with
    the small head of the FedSWA experiments, not the 4096-wide one.

    Args:
        num_classes: number of logits.
        hidden: width of the hidden dense layer; None means 100 for 10 classes, otherwise 256.
        conv: implementation of convolutions (:mod:`fedjax_sim.models.convolution.lowering`).

    Raises:
        ValueError: ``num_classes`` or ``hidden`` is no integer of at least 1; from ``apply``,
            images of another shape.

    Example:
        >>> model = vgg11()
        >>> params = jax.eval_shape(model.init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        9272790
    """
    hidden = (100 if num_classes == 10 else 256) if hidden is None else hidden
    check_count(1, num_classes=num_classes, hidden=hidden)
    return from_nnx(lambda rngs: _Vgg(num_classes, hidden, conv, rngs))


class _Vgg(nnx.Module):
    conv1: nnx.Conv

    def __init__(self, num_classes, hidden, conv, rngs):
        kernel_init = jax.nn.initializers.he_normal()
        fan_in = 3
        for i, (fan_out, _) in enumerate(_LAYERS, 1):
            layer = conv_layer(fan_in, fan_out, 3, conv, kernel_init, rngs, padded=True)
            setattr(self, f"conv{i}", layer)
            fan_in = fan_out
        self.head = Dense(fan_in, (hidden,), num_classes, jax.nn.relu, kernel_init, rngs)

    def __call__(self, x: Array) -> Array:
        check_images(x, (32, 32, 3))
        x = x.astype(self.conv1.kernel.dtype)
        for i, (_, pool) in enumerate(_LAYERS, 1):
            x = jax.nn.relu(getattr(self, f"conv{i}")(x))
            x = max_pool(x) if pool else x
        return self.head(x)
