"""Codecs as pairs of functions, the identity, and the number of bits of a message."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.compression.quantizers.rounding import wide
from fedjax_sim.types import PyTree


class Codec(NamedTuple):
    """Channel from a sender to a receiver, as two functions.

    ``through(key, x, near)`` returns the pytree x after encoding, sending and decoding. The
    receiver already holds the pytree ``near``, with the structure, shapes and dtypes of x; only
    :func:`lattice` uses it. The function is pure, preserves dtypes, draws its random numbers from
    ``key``, and can be jitted and vmapped.

    ``bits(x)`` returns the number of bits that are sent, a Python int, for a pytree with the shapes
    and dtypes of x (of arrays or ``jax.ShapeDtypeStruct``). It includes the numbers that are sent
    with the entries of a tensor (its scale, its smallest and largest entry).

    All codecs send leaves that are not floating unchanged.

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
    """Returns the codec that sends every leaf unchanged, with the bits of its dtype.

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
    """Returns a codec for pytrees from the functions of a codec for one floating tensor.

    Every leaf has its own key. The function ``through`` receives tensors of at least single
    precision.

    Example:
        >>> codec = per_tensor(lambda key, x, near: jnp.round(x), lambda x: 4 * x.size)
        >>> codec.bits([jnp.ones(3), jnp.arange(2, dtype=jnp.int32)])
        76
    """

    def through_tree(key: Array, x: PyTree, near: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(x)
        near_leaves = structure.flatten_up_to(near)
        decoded = [
            through(jax.random.fold_in(key, i), wide(a), wide(b)).astype(a.dtype)
            if _coded(a)
            else a
            for i, (a, b) in enumerate(zip(leaves, near_leaves, strict=True))
        ]
        return structure.unflatten(decoded)

    def bits_of_tree(x: PyTree) -> int:
        leaves = jax.tree.leaves(x)
        return sum(bits(leaf) if _coded(leaf) else plain_bits(leaf) for leaf in leaves)

    return Codec(through_tree, bits_of_tree)


def plain_bits(leaf: Any) -> int:
    """Number of bits of a tensor that is sent unchanged.

    Example:
        >>> plain_bits(jnp.ones(3, jnp.bfloat16))
        48
    """
    return math.prod(leaf.shape) * scalar_bits(leaf)


def scalar_bits(leaf: Any) -> int:
    """Number of bits of one entry of a tensor.

    Example:
        >>> scalar_bits(jnp.ones(3, jnp.bfloat16))
        16
    """
    return 8 * leaf.dtype.itemsize


def code_bits(num_values: int) -> int:
    """Number of bits of a fixed-length code for ``num_values`` values.

    Example:
        >>> [code_bits(n) for n in (2, 15, 16, 17)]
        [1, 4, 4, 5]
    """
    return (num_values - 1).bit_length()


def _coded(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) and math.prod(leaf.shape) > 0
