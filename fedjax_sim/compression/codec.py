"""Codecs as pairs of functions, with and without memory, and the number of bits of a message."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least
from fedjax_sim.types import PyTree, Scalar


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


class StatefulCodec(NamedTuple):
    """Codec whose sender keeps a memory between its messages.

    ``init(x)`` returns the memory before the first message, for a pytree with the shapes and dtypes
    of x.  ``through(key, x, memory)`` returns x after encoding, sending and decoding, and the next
    memory.  ``bits`` is that of a :class:`Codec`.

    Example:
        >>> from fedjax_sim.compression import power_sgd
        >>> codec, x = power_sgd(rank=1), {"w": jnp.ones((3, 2))}
        >>> y, memory = codec.through(jax.random.key(0), x, codec.init(x))
        >>> [q.shape for q in memory]
        [(2, 1)]
    """

    init: Callable[[PyTree], PyTree]
    through: Callable[[Array, PyTree, PyTree], tuple[PyTree, PyTree]]
    bits: Callable[[PyTree], int]


def check_codec(codec: Any, name: str = "codec") -> None:
    """Refuses values that are no codecs without memory.

    Raises:
        ValueError: naming the value.

    Example:
        >>> check_codec(3)
        Traceback (most recent call last):
        ValueError: codec is 3; expected a codec, for example compression.top_k(10)
    """
    if isinstance(codec, StatefulCodec):
        raise ValueError(
            f"{name} keeps a memory between messages; expected a compression.Codec, or "
            "error feedback, for example fs.ef14(algorithm, codec)"
        )
    if not isinstance(codec, Codec):
        raise ValueError(
            f"{name} is {codec!r:.60}; expected a codec, for example compression.top_k(10)"
        )


def decoded(codec: Codec, key: Array, x: PyTree, near: PyTree) -> PyTree:
    """Returns x after a codec, which must keep its structure, shapes and dtypes.

    Raises:
        ValueError: the codec returns another form.

    Example:
        >>> x = jnp.ones(2)
        >>> decoded(Codec(lambda key, x, near: x[:1], lambda x: 32), jax.random.key(0), x, x)
        Traceback (most recent call last):
        ValueError: codec.through returns float32[1]; expected float32[2], the form of its argument
    """
    result = codec.through(key, x, near)
    form, expected = (_form(value) for value in (result, x))
    if form != expected:
        raise ValueError(
            f"codec.through returns {form}; expected {expected}, the form of its argument"
        )
    return result


def stateful(codec: Codec | StatefulCodec) -> StatefulCodec:
    """Returns a codec as one with a memory, which is empty for a :class:`Codec`.

    The codec decodes near zeros.

    Raises:
        ValueError: the argument is no codec.

    Example:
        >>> x = jnp.ones(2)
        >>> stateful(identity()).through(jax.random.key(0), x, ())[0].tolist()
        [1.0, 1.0]
    """
    if isinstance(codec, StatefulCodec):
        return codec
    check_codec(codec)

    def through(key: Array, x: PyTree, memory: tuple) -> tuple[PyTree, tuple]:
        return decoded(codec, key, x, jax.tree.map(jnp.zeros_like, x)), memory

    return StatefulCodec(lambda x: (), through, codec.bits)


def contractive(codec: Codec, variance: Scalar) -> Codec:
    r"""Returns :math:`Q / (1 + \omega)` for an unbiased codec Q with the variance :math:`\omega`.

    It is a contraction with the constant :math:`\alpha = 1 / (1 + \omega)`, as error feedback
    requires.

    Args:
        codec: Q, with :math:`\mathbb{E}\, Q(v) = v`.
        variance: :math:`\omega`, with
            :math:`\mathbb{E} \|Q(v) - v\|^2 \le \omega \|v\|^2`.

    Raises:
        ValueError: a codec with memory, or a negative variance.

    Example:
        >>> from fedjax_sim.compression import random_k
        >>> x = jnp.array([3.0, 4.0])
        >>> y = contractive(random_k(1), variance=1.0).through(jax.random.key(0), x, x)
        >>> y.tolist() in ([3.0, 0.0], [0.0, 4.0])
        True
    """
    check_codec(codec)
    check_at_least(0, variance=variance)

    def through(key: Array, x: PyTree, near: PyTree) -> PyTree:
        # Q(v) may leave the range of half precision where its share does not.
        return tree.cast_like(
            jax.tree.map(share, codec.through(key, tree.wide(x), tree.wide(near))), x
        )

    def share(v: Array) -> Array:
        return v / jnp.asarray(1 + variance).astype(v.dtype) if is_coded(v) else v

    return Codec(through, codec.bits)


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
            through(jax.random.fold_in(key, i), tree.wide(a), tree.wide(b)).astype(a.dtype)
            if is_coded(a)
            else a
            for i, (a, b) in enumerate(zip(leaves, near_leaves, strict=True))
        ]
        return structure.unflatten(decoded)

    def bits_of_tree(x: PyTree) -> int:
        leaves = jax.tree.leaves(x)
        return sum(bits(leaf) if is_coded(leaf) else plain_bits(leaf) for leaf in leaves)

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


def is_coded(leaf: Any) -> bool:
    """True for tensors that codecs encode: floating ones with entries.

    Example:
        >>> is_coded(jnp.ones(2)), is_coded(jnp.arange(2)), is_coded(jnp.ones(0))
        (True, False, False)
    """
    return jnp.issubdtype(leaf.dtype, jnp.floating) and math.prod(leaf.shape) > 0


def _form(x: PyTree) -> str:
    """Returns a pytree with the dtypes and shapes of its leaves as text."""
    return str(jax.tree.map(lambda v: f"{jnp.result_type(v)}{list(jnp.shape(v))}", x))
