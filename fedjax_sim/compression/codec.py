"""Codecs as pairs of functions, with and without memory, and the number of bits of a message."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import called, check_at_least, check_takes, is_concrete
from fedjax_sim.tree import bits_of_arrays, plain_bits
from fedjax_sim.types import PyTree, Scalar, Spec, shown, specified, with_spec


@shown
class Unbiased(NamedTuple):
    r"""Statement of a codec Q: :math:`\mathbb{E}\, Q(v) = v`, with the variance :math:`\omega`.

    ``variance(leaf)`` returns :math:`\omega`, with
    :math:`\mathbb{E} \|Q(v) - v\|^2 \le \omega \|v\|^2` for every tensor v with the shape of
    ``leaf``, an array or a ``jax.ShapeDtypeStruct``.

    Example:
        >>> from fedjax_sim.compression import random_k
        >>> random_k(1).kind.variance(jnp.ones(4))
        3.0
    """

    variance: Callable[[Any], float]


# A contraction has E|C(v) - v|^2 <= (1 - alpha) |v|^2 with an alpha in (0, 1].
Kind = Literal["contraction"] | Unbiased | None


@with_spec
@shown
class Codec(NamedTuple):
    r"""Channel from a sender to a receiver, as two functions.

    ``through(key, x, near)`` returns the pytree x after encoding, sending and decoding. The
    receiver already holds the pytree ``near``, with the structure, shapes and dtypes of x; only
    :func:`lattice` uses it. The function is pure, preserves dtypes, draws its random numbers from
    ``key``, and can be jitted and vmapped.

    ``bits(x)`` returns the number of bits that are sent, a Python int, for a pytree with the shapes
    and dtypes of x (of arrays or ``jax.ShapeDtypeStruct``). It includes the numbers that are sent
    with the entries of a tensor (its scale, its smallest and largest entry). Entries are sent in
    the dtype of their tensor; numbers that are computed from them (norms, factors, powers of two)
    in that of the computation, which has single precision at least.

    ``kind`` states what is known of the errors, and so which memories suit the codec:
    "contraction" if :math:`\mathbb{E} \|C(v) - v\|^2 \le (1 - \alpha) \|v\|^2` with an
    :math:`\alpha \in (0, 1]`, :class:`Unbiased` with its variance, or None if nothing is known.

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
    kind: Kind = None
    spec: Spec | None = None  # the factory and its arguments


@with_spec
@shown
class StatefulCodec(NamedTuple):
    """Codec whose sender keeps a memory between its messages.

    ``init(x)`` returns the memory before the first message, for a pytree with the shapes and dtypes
    of x.  ``through(key, x, memory)`` returns x after encoding, sending and decoding, and the next
    memory.  ``bits`` and ``kind`` are those of a :class:`Codec`.

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
    kind: Kind = None
    spec: Spec | None = None  # the factory and its arguments


_KEEPS_FORM = "a function that JAX can trace and that keeps the form of x"
AnyCodec = TypeVar("AnyCodec", bound=Codec | StatefulCodec)


def check_codec(codec: Any, name: str = "codec") -> None:
    """Refuses values that are no codecs without memory."""
    if isinstance(codec, StatefulCodec):
        raise ValueError(
            f"{name} keeps a memory between messages; expected a compression.Codec, or "
            "error feedback, for example fs.ef14(algorithm, codec)"
        )
    if not isinstance(codec, Codec):
        raise ValueError(
            f"{name} is {codec!r:.60}; expected a codec, for example compression.top_k(10)"
        )
    _check_functions(codec, name, through=("key", "x", "near"))


def _check_functions(codec: Any, name: str, **functions: tuple[str, ...]) -> None:
    """Refuses functions of a codec that do not take their arguments."""
    for part, arguments in {"bits": ("x",), **functions}.items():
        check_takes(f"{name}.{part}", getattr(codec, part), arguments)


def decoded(codec: Codec, key: Array, x: PyTree, near: PyTree) -> PyTree:
    """Returns x after a codec, which must keep its structure, shapes and dtypes."""
    result = called("codec.through", f"(key, x, near) of the form {_form(x)}", _KEEPS_FORM,
                    codec.through, key, x, near)  # fmt: skip
    return _of_form(result, x)


def _of_form(result: PyTree, x: PyTree) -> PyTree:
    """Returns a decoded tree, which must have the form of the encoded one."""
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
        ValueError: the argument is no codec, or it has functions of other arguments; when tensors
            are encoded, a codec that returns another form.

    Example:
        >>> x = jnp.ones(2)
        >>> stateful(identity()).through(jax.random.key(0), x, ())[0].tolist()
        [1.0, 1.0]
    """
    if isinstance(codec, StatefulCodec):
        _check_functions(codec, "codec", init=("x",), through=("key", "x", "memory"))

        def checked(key: Array, x: PyTree, memory: PyTree) -> tuple[PyTree, PyTree]:
            given = f"(key, x, memory) of the form {_form((x, memory))}"
            result = called("codec.through", given, _KEEPS_FORM, codec.through, key, x, memory)
            if not (isinstance(result, tuple) and len(result) == 2):
                raise ValueError(
                    f"codec.through returns {_form(result)}; expected a pair (decoded x, memory)"
                )
            return _of_form(result[0], x), result[1]

        return codec._replace(through=checked)
    check_codec(codec)

    def through(key: Array, x: PyTree, memory: tuple) -> tuple[PyTree, tuple]:
        return decoded(codec, key, x, jax.tree.map(jnp.zeros_like, x)), memory

    return StatefulCodec(lambda x: (), through, codec.bits, codec.kind)


@specified
def contractive(codec: AnyCodec, variance: Scalar | None = None) -> AnyCodec:
    r"""Returns a contraction: the codec if it is one, :math:`Q / (1 + \omega)` of an unbiased one.

    Its constant is :math:`\alpha = 1 / (1 + \omega)`, per tensor.  Error feedback
    (:func:`~fedjax_sim.wrappers.ef14`, :func:`~fedjax_sim.wrappers.ef21`,
    :func:`~fedjax_sim.wrappers.ef21_p`) requires a contraction, and applies this function to its
    codec: with a variance of 1 or more the memories of an unbiased codec grow without bound.

    Args:
        codec: a codec that states its ``kind``, or Q, with :math:`\mathbb{E}\, Q(v) = v`.
        variance: :math:`\omega`, with
            :math:`\mathbb{E} \|Q(v) - v\|^2 \le \omega \|v\|^2`; None: the one that the codec
            states.

    Raises:
        ValueError: a codec that states neither; with a variance a contraction, a codec with memory,
            or a negative variance; when tensors are encoded, a variance below that of the codec.

    Example:
        >>> from fedjax_sim.compression import random_k
        >>> x = jnp.array([3.0, 4.0])
        >>> y = contractive(random_k(1)).through(jax.random.key(0), x, x)
        >>> y.tolist() in ([3.0, 0.0], [0.0, 4.0])
        True
    """
    if not isinstance(codec, StatefulCodec) or variance is not None:
        check_codec(codec)
    kind = codec.kind
    if variance is None and kind == "contraction":
        return codec
    check_at_least(0, variance=variance)
    if kind == "contraction":
        raise ValueError(
            f"variance is {variance}; expected none with a codec that is a contraction already"
        )
    if variance is None and not (isinstance(kind, Unbiased) and isinstance(codec, Codec)):
        raise ValueError(
            f"codec has the kind {kind!r:.60}; expected a contraction or an unbiased codec without "
            "memory: state kind='contraction' or kind=compression.Unbiased(variance) in Codec(...)"
        )

    def through(key: Array, x: PyTree, near: PyTree) -> PyTree:
        # Q(v) may leave the range of half precision where its share does not.
        assert isinstance(codec, Codec)
        message = decoded(codec, key, tree.wide(x), tree.wide(near))
        return tree.cast_like(jax.tree.map(share, message), x)

    def share(v: Array) -> Array:
        # Also for omega below 1: the constant 1 / (1 + omega) is at least 1 - omega.
        return v / jnp.asarray(1 + omega(v)).astype(v.dtype) if is_coded(v) else v

    def omega(v: Array) -> Scalar:
        stated = kind.variance(v) if isinstance(kind, Unbiased) else 0.0
        if variance is None:
            return stated
        # Fractions such as 1 / 0.3 - 1 are rounded.
        if is_concrete(variance) and float(variance) < stated * (1 - 1e-6):
            raise ValueError(
                f"variance is {variance}; expected at least {stated:.6g}, the codec's for tensors "
                f"of the shape {list(v.shape)}"
            )
        return variance

    return codec._replace(through=through, kind="contraction")


def check_unbiased(codec: Codec | StatefulCodec) -> None:
    """Refuses codecs that do not state that they are unbiased, as DIANA and MARINA require."""
    if not isinstance(codec, StatefulCodec):
        check_codec(codec)
    if isinstance(codec.kind, Unbiased):
        return
    remedy = (
        "or error feedback, for example fs.ef21(algorithm, codec)"
        if codec.kind == "contraction"
        else "or state kind=compression.Unbiased(variance) in Codec(...)"
    )
    raise ValueError(
        f"codec has the kind {codec.kind!r}; expected an unbiased codec, for example "
        f"random_k(0.1) or natural(), {remedy}"
    )


@specified
def identity() -> Codec:
    """Returns the codec that sends every leaf unchanged, with the bits of its dtype.

    Example:
        >>> identity().bits({"w": jax.ShapeDtypeStruct((3, 2), jnp.float32)})
        192
    """
    return Codec(lambda key, x, near: x, bits_of_arrays, Unbiased(lambda leaf: 0.0))


def per_tensor(
    through: Callable[[Array, Array, Array], Array], bits: Callable[[Any], int], kind: Kind = None
) -> Codec:
    """Returns a codec for pytrees from the functions of a codec for one floating tensor.

    Every leaf has its own key. The function ``through`` receives tensors of at least single
    precision.
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

    return Codec(through_tree, bits_of_tree, kind)


def code_bits(num_values: int) -> int:
    """Number of bits of a fixed-length code for ``num_values`` values."""
    return (num_values - 1).bit_length()


def is_coded(leaf: Any) -> bool:
    """True for tensors that codecs encode: floating ones with entries."""
    return jnp.issubdtype(leaf.dtype, jnp.floating) and math.prod(leaf.shape) > 0


def _form(x: PyTree) -> str:
    """Returns a pytree with the dtypes and shapes of its leaves as text."""
    return str(jax.tree.map(lambda v: f"{jnp.result_type(v)}{list(jnp.shape(v))}", x))
