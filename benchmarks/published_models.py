"""Models of the published setups that the library does not have."""

import functools

import jax
from flax import nnx
from jax import Array

import fedjax_sim as fs
from fedjax_sim.models import Linear


def dropout_cnn(image_shape: tuple[int, int, int], num_classes: int) -> fs.models.Model:
    """The network of Reddi et al. (2021) for EMNIST with its dropout.

    Conv 3x3, 32 - ReLU - conv 3x3, 64 - ReLU - pool - dropout 0.25 - dense 128 - ReLU - dropout 0.5
    - dense; Glorot-uniform kernels.  FLUTE uses it for FEMNIST, pfl-research for CIFAR-10.

    Example:
        >>> params = jax.eval_shape(dropout_cnn((28, 28, 1), 10).init, jax.random.key(0))
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        1199882
    """
    return fs.models.from_nnx(lambda rngs: _DropoutCnn(image_shape, num_classes, rngs))


def sigmoid_regression(features: int, num_classes: int) -> fs.models.Model:
    """FLUTE's logistic regression: the logits of the softmax are sigmoids of a linear function.

    Example:
        >>> model = sigmoid_regression(4, 3)
        >>> model.apply(model.init(jax.random.key(0)), jax.numpy.ones((1, 4))).tolist()
        [[0.5, 0.5, 0.5]]
    """
    linear = fs.models.softmax_regression(features, num_classes)
    return fs.models.Model(linear.init, lambda params, x: jax.nn.sigmoid(linear.apply(params, x)))


class _DropoutCnn(nnx.Module):
    def __init__(self, image_shape, num_classes, rngs):
        height, width, channels = image_shape
        initializer = jax.nn.initializers.glorot_uniform()
        conv = functools.partial(
            nnx.Conv,
            kernel_size=(3, 3),
            padding="VALID",
            kernel_init=initializer,
            conv_general_dilated=fs.models.auto,
            rngs=rngs,
        )
        self.conv1, self.conv2 = conv(channels, 32), conv(32, 64)
        size = (height - 4) // 2 * ((width - 4) // 2) * 64
        self.dense1 = Linear(size, 128, initializer=initializer, rngs=rngs)
        self.dense2 = Linear(128, num_classes, initializer=initializer, rngs=rngs)
        self.dropout1 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout2 = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        x = jax.nn.relu(self.conv2(jax.nn.relu(self.conv1(x))))
        x = self.dropout1(fs.models.max_pool(x)).reshape(x.shape[0], -1)
        return self.dense2(self.dropout2(jax.nn.relu(self.dense1(x))))
