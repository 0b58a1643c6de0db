"""Quantised models: layers multiply quantised weights and quantised activations.

Parameters stay in full precision; the forward and backward passes use their quantised values.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_count
from fedjax_sim.compression import Clip, by_sign, luq_gradient, mse_clip, signed, symmetric
from fedjax_sim.compression.quantizers.uniform import check_bits
from fedjax_sim.models.base import Model
from fedjax_sim.models.convolution.lowering import Convolution, auto
from fedjax_sim.models.dense import Product, dense_product
from fedjax_sim.models.stateful import present, row_mask
from fedjax_sim.objectives import KeyedApply
from fedjax_sim.types import Params, Scalar, plain_integers, shown

Build: TypeAlias = Callable[[Convolution, Product], Model]


def _unchanged(x: Array) -> Array:
    return x


def _unchanged_gradient(key: Array, x: Array) -> Array:
    del key
    return x


@shown
class Quantizers(NamedTuple):
    """Quantisation functions of a layer; the default leaves all values unchanged.

    ``weight`` and ``activation`` map the kernel and the input of a layer to the factors of the
    product and define their own gradients.  ``gradient(key, output)`` returns the product's output
    unchanged and quantises its cotangent.  In a short minibatch the rows that fill it up are zeros;
    an ``activation`` that takes means over its input has a method ``of_share(input, share)``, which
    is called instead with the share of the other rows.

    Example:
        >>> from fedjax_sim.compression.quantizers import luq_gradient
        >>> only_gradients = Quantizers(gradient=luq_gradient)
    """

    weight: Callable[[Array], Array] = _unchanged
    activation: Callable[[Array], Array] = _unchanged
    gradient: Callable[[Array, Array], Array] = _unchanged_gradient


@plain_integers
def low_bit(
    weight_bits: int = 3,
    activation_bits: int = 3,
    gradient_levels: int = 6,
    clip: Clip | None = None,
) -> Quantizers:
    """Quantizers that round weights and activations to few bits and use LUQ for gradients.

    The defaults are those of FAVANO's quantised networks: 3 bits, and 15 values (4 bits) for
    gradients.  Weights have a signed range; activations have a non-negative range if no entry is
    negative.

    Args:
        weight_bits: b of :func:`~fedjax_sim.compression.quantizers.symmetric`, at least 2.
        activation_bits: the same for activations.
        gradient_levels: J of :func:`~fedjax_sim.compression.quantizers.luq`.
        clip: clipping range of weights and activations, default
            :func:`~fedjax_sim.compression.quantizers.mse_clip`.

    Raises:
        ValueError: bits that are no integer in 2 to 31; ``gradient_levels`` that are no integer
            of at least 0.

    Sources: "FAVANO: Federated AVeraging with Asynchronous Nodes", 2023, Appendix C.3
    (https://arxiv.org/abs/2305.16099); Chmiel et al., 2021 (https://arxiv.org/abs/2112.10769).

    Example:
        >>> kernel = low_bit().weight(jax.random.normal(jax.random.key(0), (30, 40)))
        >>> len(jax.numpy.unique(kernel))
        7
    """
    check_bits(2, weight_bits=weight_bits, activation_bits=activation_bits)
    check_count(gradient_levels=gradient_levels)
    clip = clip or mse_clip()
    return Quantizers(
        weight=lambda w: symmetric(w, signed(weight_bits), clip),
        activation=_LowBitActivation(activation_bits, clip),
        gradient=lambda key, x: luq_gradient(key, x, gradient_levels),
    )


@dataclasses.dataclass(frozen=True)
class _LowBitActivation:
    """Activations in few bits, with levels by their sign."""

    bits: int
    clip: Clip

    def __call__(self, x: Array) -> Array:
        return self.of_share(x, 1)

    def of_share(self, x: Array, share: Scalar) -> Array:
        """Quantised input, of whose entries a share counts in means; the others are zeros."""
        return symmetric(x, by_sign(x, self.bits)._replace(share=share), self.clip)


def quantized(
    build: Build, quantizers: Quantizers | None = None, exempt: Sequence[int] = (-1,)
) -> KeyedApply:
    r"""Model with quantised products of its layers: ``apply(params, x, key) -> outputs``.

    For a layer :math:`z = W * a` (dense or convolution; its bias is added in full precision), with
    the cotangent :math:`\delta = \partial \ell / \partial z`,

    .. math::
        z = Q_w(W) * Q_a(a), \qquad
        \frac{\partial \ell}{\partial W} = Q_g(\delta) * Q_a(a), \qquad
        \frac{\partial \ell}{\partial a} = Q_g(\delta) * Q_w(W)

    where the gradients of :math:`Q_w` and :math:`Q_a` are straight-through.  A tensor has one
    scale, so an example's outputs depend on its batch.  Examples that fill up a short minibatch are
    no part of it: ``quantizers.activation`` receives zeros in their rows.  The key is used only in
    the backward pass; any key can be used for evaluation.  Only reverse-mode differentiation is
    supported.

    Args:
        build: ``(conv, dot) -> Model``, a model that computes each layer by one of these products.
        quantizers: default :func:`low_bit`.
        exempt: numbers of the layers in full precision, in the order of computation; negative
            numbers count from the last layer.

    Returns:
        ``apply``, an argument of :func:`~fedjax_sim.objectives.keyed`; parameters are those of the
        plain model, ``build(auto, dense_product)``.

    Raises:
        ValueError: when ``apply`` is called, the model has no layer of a number in ``exempt``.

    Example:
        >>> from fedjax_sim import objectives
        >>> from fedjax_sim.models import mlp
        >>> def build(conv, dot):
        ...     return mlp(4, hidden=(8,), num_classes=3, dot=dot)
        >>> params = build(auto, dense_product).init(jax.random.key(0))
        >>> objective = objectives.keyed(objectives.cross_entropy, quantized(build))
        >>> examples = {"x": jax.numpy.ones((2, 4)), "y": jax.numpy.array([0, 2])}
        >>> objective(params, examples, jax.random.key(1)).shape
        (2,)
    """
    chosen = low_bit() if quantizers is None else quantizers
    return _Quantized(build, chosen, tuple(exempt))


@dataclasses.dataclass(frozen=True, eq=False)
class _Quantized:
    """Function ``apply`` of a model with quantised products."""

    build: Build
    quantizers: Quantizers
    exempt: tuple[int, ...]

    def __call__(self, params: Params, x: Any, key: Array) -> Any:
        return self._outputs(params, x, key, None)

    def weighted(self, params: Params, x: Any, key: Array, weights: Array) -> Any:
        """Outputs of a batch of which examples of weight 0 are no part."""
        return self._outputs(params, x, key, present(weights))

    def _outputs(self, params: Params, x: Any, key: Array, rows: Array | None) -> Any:
        chosen, shapes = self.quantizers, _shapes(self.build, params, x)
        count, of_batch = len(shapes), set()
        if rows is not None:
            # Inputs of other layers have no axis of examples: those of one example's model, or of
            # products of parameters.
            twice = _shapes(self.build, params, jax.tree.map(_twice, x))
            of_batch = {number for number in range(count) if shapes[number] != twice[number]}
        if any(not -count <= number < count for number in self.exempt):
            raise ValueError(
                f"exempt is {self.exempt}; expected numbers of the model's {count} layers"
            )
        plain = {number % count for number in self.exempt}

        def layer(number: int, product: Callable[..., Array], x, kernel, *rest, **options) -> Array:
            if number in plain:
                return product(x, kernel, *rest, **options)
            # As in the product itself; the values of a grid are no integers.
            x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(kernel.dtype)
            x = self._activation(x, rows if number in of_batch else None)
            z = product(x, chosen.weight(kernel), *rest, **options)
            return chosen.gradient(jax.random.fold_in(key, number), z)

        return _intercepted(self.build, layer).apply(params, x)

    def _activation(self, x: Array, rows: Array | None) -> Array:
        """The quantised input of a layer, in which other rows are zeros."""
        if rows is None:
            return self.quantizers.activation(x)
        # Examples that fill up a short batch would decide on the scale of the others.
        x = jnp.where(row_mask(rows, x), x, jnp.zeros_like(x))
        of_share = getattr(self.quantizers.activation, "of_share", None)
        if of_share is None:
            return self.quantizers.activation(x)
        return of_share(x, rows.mean(dtype=jnp.float32))


def _intercepted(build: Build, layer: Callable[..., Array]) -> Model:
    """The model with every product replaced by ``layer(number, product, *arguments)``."""
    numbers = itertools.count()

    def through(product: Callable[..., Array]) -> Callable[..., Array]:
        return lambda *args, **options: layer(next(numbers), product, *args, **options)

    return build(cast(Convolution, through(auto)), through(dense_product))


def _shapes(build: Build, params: Params, x: Any) -> list[tuple[int, ...]]:
    """Returns the shapes of the inputs of the model's products; traces it once."""
    seen = []

    def layer(number: int, product: Callable[..., Array], x: Array, *rest, **options) -> Array:
        del number
        seen.append(x.shape)
        return product(x, *rest, **options)

    jax.eval_shape(_intercepted(build, layer).apply, params, x)
    return seen


def _twice(x: Array) -> jax.ShapeDtypeStruct:
    """Returns the shape of a batch with twice as many examples."""
    return jax.ShapeDtypeStruct((2 * x.shape[0], *x.shape[1:]), x.dtype)
