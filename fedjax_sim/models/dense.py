"""Linear models and multilayer perceptrons."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from fedjax_sim.checks import check_count, check_counts
from fedjax_sim.models.base import Model, from_nnx
from fedjax_sim.types import plain_integers

LECUN_NORMAL = jax.nn.initializers.lecun_normal()


# (x [B, inputs], kernel [outputs, inputs]) -> x kernel^T [B, outputs]
Product: TypeAlias = Callable[[Array, Array], Array]


def dense_product(x: Array, kernel: Array) -> Array:
    """Returns ``x kernel^T``, the default of every dense layer: ``[B, i], [o, i] -> [B, o]``."""
    # Computed as (kernel x^T)^T: XLA:CPU transposes the second factor, which is the small one when
    # many models (hyper-parameters of a sweep) see the same x.
    contract_inputs = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(kernel, x, contract_inputs).T


@plain_integers
def softmax_regression(features: int | Sequence[int], num_classes: int) -> Model:
    """Multinomial logistic regression: ``[B, *features] -> logits [B, num_classes]``.

    ``logits = x W + b`` on flattened inputs.  Parameters start at zero, where all classes are
    equally likely and the loss is log(num_classes).

    Args:
        features: number of features, or the shape of one example.
        num_classes: number of classes C.

    Raises:
        ValueError: sizes that are no integers of at least 1.

    Example:
        >>> model = softmax_regression((28, 28, 1), num_classes=10)
        >>> params = model.init(jax.random.key(0))
        >>> model.apply(params, jax.numpy.ones((5, 28, 28, 1))).shape
        (5, 10)
    """
    size = _size(features)
    check_count(1, num_classes=num_classes)
    return from_nnx(lambda rngs: _Linear(size, num_classes, rngs))


@plain_integers
def logistic_regression(features: int | Sequence[int]) -> Model:
    """Binary logistic regression: ``[B, *features] -> logits [B]``, starting at zero.

    ``P(y = 1 | x) = sigmoid(x w + b)``.

    Args:
        features: number of features, or the shape of one example.

    Raises:
        ValueError: sizes that are no integers of at least 1.

    Example:
        >>> model = logistic_regression(123)
        >>> model.apply(model.init(jax.random.key(0)), jax.numpy.ones((5, 123))).shape
        (5,)
    """
    size = _size(features)
    linear = from_nnx(lambda rngs: _Linear(size, 1, rngs))
    return linear._replace(apply=lambda params, x: linear.apply(params, x)[:, 0])


@plain_integers
def mlp(
    features: int | Sequence[int],
    hidden: Sequence[int],
    num_classes: int,
    activation: Callable[[Array], Array] = jax.nn.relu,
    initializer: nnx.Initializer = LECUN_NORMAL,
    dot: Product = dense_product,
) -> Model:
    """Multilayer perceptron: ``[B, *features] -> logits [B, num_classes]``.

    Args:
        features: number of features, or the shape of one example.
        hidden: widths of the hidden layers.
        num_classes: number of outputs.
        activation: function after every hidden layer.
        initializer: of every kernel, for example ``jax.nn.initializers.he_normal()``; biases start
            at zero.
        dot: implementation of the layers' products, ``(x, kernel) -> x kernel^T``.

    Raises:
        ValueError: sizes that are no integers of at least 1.

    Example:
        >>> model = mlp(64, hidden=(32, 16), num_classes=10)
        >>> sorted(model.init(jax.random.key(0)))
        ['dense1', 'dense2', 'dense3']
    """
    size = _size(features)
    check_counts(1, hidden=hidden)
    check_count(1, num_classes=num_classes)
    return from_nnx(
        lambda rngs: Dense(size, hidden, num_classes, activation, initializer, rngs, dot)
    )


class Linear(nnx.Module):
    """Layer ``x W^T + b`` with the kernel W stored as ``[outputs, inputs]``."""

    # With nnx.Linear's [inputs, outputs] XLA:CPU computes the kernel gradient of a layer with few
    # outputs (the last layer of a classifier) as a product with a long thin result, which is twice
    # as slow.

    axis_roles: ClassVar = {"kernel": "oi"}

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        initializer: nnx.Initializer,
        rngs: nnx.Rngs,
        dot: Product = dense_product,
    ):
        self.dot = dot
        # Initialisers take fan-in and fan-out from [inputs, outputs].
        self.kernel = nnx.Param(initializer(rngs.params(), (inputs, outputs), jnp.float32).T)
        self.bias = nnx.Param(jnp.zeros(outputs, jnp.float32))

    def __call__(self, x: Array) -> Array:
        return self.dot(x, self.kernel[...]) + self.bias[...]


class Dense(nnx.Module):
    """Layers ``dense1``, ``dense2``, ... on flattened inputs, ``activation`` between them."""

    def __init__(
        self, features, hidden, num_outputs, activation, initializer, rngs, dot=dense_product
    ):
        widths = [features, *hidden, num_outputs]
        self.activation = activation
        self.names = tuple(f"dense{i}" for i in range(1, len(widths)))
        for name, fan_in, fan_out in zip(self.names, widths[:-1], widths[1:], strict=True):
            setattr(
                self, name, Linear(fan_in, fan_out, initializer=initializer, rngs=rngs, dot=dot)
            )

    def __call__(self, x: Array) -> Array:
        x = jax.lax.collapse(x, 1)
        for name in self.names[:-1]:
            x = self.activation(getattr(self, name)(x))
        return getattr(self, self.names[-1])(x)


class _Linear(nnx.Module):
    def __init__(self, features, num_outputs, rngs):
        zeros = jax.nn.initializers.zeros
        self.linear = Linear(features, num_outputs, initializer=zeros, rngs=rngs)

    def __call__(self, x: Array) -> Array:
        return self.linear(jax.lax.collapse(x, 1))


def _size(features: int | Sequence[int]) -> int:
    """Number of features of an example."""
    sides = tuple(features) if isinstance(features, Iterable) else (features,)
    for side in sides:
        check_count(1, features=side)
    return math.prod(map(operator.index, sides))
