"""What a codec is."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.compression.quantizers.rounding import wide
from fedjax_sim.types import PyTree


class Codec(NamedTuple):
    """A channel from a sender to a receiver, as two functions.

    ``through(key, x, near)`` is what the receiver makes of the pytree x: x encoded, sent, decoded.
    The receiver holds the pytree ``near`` of the same structure, shapes and dtypes, which only
    :func:`lattice` looks at.  It is pure, keeps dtypes, draws from ``key``, and can be jitted and
    vmapped.

    ``bits(x)`` is the number of bits on the wire, a Python int, for a pytree of the shapes and
    dtypes of x (``jax.ShapeDtypeStruct`` will do), with what is sent beside the entries of a tensor
    (its scale, its smallest and largest entry).

    Leaves that are not floating are sent as they are, by all codecs.

    Example:
        >>> halves = Codec(
        ...     through=lambda key, x, near: jax.tree.map(lambda v: jnp.round(2 * v) / 2, x),
        ...     bits=lambda x: 8 * sum(leaf.size for leaf in jax.tree.leaves(x)),
        ... )
        >>> x = {"w": jnp.array([0.6, -1.1])}
        >>> halves.through(jax.random.key(0), x, x)["w"].tolist(), halves.bits(x)
        ([0.5, -1.0], 16)
    """

    through: Callable[[Array, PyTree, PyTree], PyTree]
    bits: Callable[[PyTree], int]


def identity() -> Codec:
    """Everything arrives as it was sent, in the bits of its dtype.

    Example:
        >>> identity().bits({"w": jax.ShapeDtypeStruct((3, 2), jnp.float32)})
        192
    """
    return Codec(
        lambda key, x, near: x,
        lambda x: sum(plain_bits(leaf) for leaf in jax.tree.leaves(x)),
    )


def per_tensor(
    through: Callable[[Array, Array, Array], Array], bits: Callable[[Any], int]
) -> Codec:
    """The codec of a pytree from that of one floating tensor, with its own key for every leaf.

    ``through`` gets tensors of at least single precision.

    Example:
        >>> codec = per_tensor(lambda key, x, near: jnp.round(x), lambda x: 4 * x.size)
        >>> codec.bits([jnp.ones(3), jnp.arange(2, dtype=jnp.int32)])
        76
    """

    def through_tree(key: Array, x: PyTree, near: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(x)
        held = structure.flatten_up_to(near)
        decoded = [
            through(jax.random.fold_in(key, i), wide(a), wide(b)).astype(a.dtype)
            if _coded(a)
            else a
            for i, (a, b) in enumerate(zip(leaves, held, strict=True))
        ]
        return structure.unflatten(decoded)

    def bits_of_tree(x: PyTree) -> int:
        leaves = jax.tree.leaves(x)
        return sum(bits(leaf) if _coded(leaf) else plain_bits(leaf) for leaf in leaves)

    return Codec(through_tree, bits_of_tree)


def plain_bits(leaf: Any) -> int:
    """Bits of a tensor that is sent as it is.

    Example:
        >>> plain_bits(jnp.ones(3, jnp.bfloat16))
        48
    """
    return math.prod(leaf.shape) * scalar_bits(leaf)


def scalar_bits(leaf: Any) -> int:
    """Bits of one number of a tensor's dtype.

    Example:
        >>> scalar_bits(jnp.ones(3, jnp.bfloat16))
        16
    """
    return 8 * leaf.dtype.itemsize


def code_bits(num_values: int) -> int:
    """Bits of one of so many values, in a code of fixed length.

    Example:
        >>> [code_bits(n) for n in (2, 15, 16, 17)]
        [1, 4, 4, 5]
    """
    return (num_values - 1).bit_length()


def _coded(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) and math.prod(leaf.shape) > 0
