"""Bits of uploads and messages: marks on an algorithm's functions, for files and figures of runs.

A wrapper decodes what it encodes, so the arrays of an upload say nothing about its size.  A mark is
an attribute of a function and changes neither its digest nor the compiled program.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from fedjax_sim.types import FedAlgorithm, PyTree

Function = TypeVar("Function", bound=Callable[..., Any])
Bits = Callable[[PyTree], int]


def with_upload_bits(local: Function, bits: Bits, all_report: Bits | None = None) -> Function:
    """Marks an algorithm's ``local`` with the bits of its encoded uploads.

    The upload itself is the decoded one, whose arrays have more bits.  Files of runs, and figures
    against bits, count these.

    Args:
        local: the clients' work.
        bits: ``upload -> bits``.
        all_report: other bits in rounds in which all clients report; None: the same.

    Example:
        >>> import jax.numpy as jnp
        >>> algorithm = with_upload_bits(lambda *visit: visit, bits_of_arrays)
        >>> algorithm.upload_bits(jnp.ones(2))
        64
    """
    local.upload_bits = bits  # pyright: ignore[reportFunctionMemberAccess]
    local.upload_bits_if_all = all_report  # pyright: ignore[reportFunctionMemberAccess]
    return local


def with_message_bits(function: Function, bits: Bits) -> Function:
    """Marks an algorithm's ``broadcast``, or a ``local`` that decodes, with the bits of messages.

    Args:
        function: ``broadcast`` of a server that sends less than its message, or the ``local`` of
            clients that decode it.
        bits: ``message -> bits``.

    Example:
        >>> import jax.numpy as jnp
        >>> broadcast = with_message_bits(lambda state, round: state, lambda message: 8)
        >>> broadcast.message_bits(jnp.ones(2))
        8
    """
    function.message_bits = bits  # pyright: ignore[reportFunctionMemberAccess]
    return function


def with_bits_of(function: Function, inner: Callable[..., Any]) -> Function:
    """Marks a ``local`` that wraps another one and has uploads and messages of the same size.

    Example:
        >>> inner = with_message_bits(lambda *visit: visit, lambda message: 8)
        >>> with_bits_of(lambda *visit: inner(*visit), inner).message_bits(None)
        8
    """
    for mark in ("upload_bits", "upload_bits_if_all", "message_bits"):
        if hasattr(inner, mark):
            setattr(function, mark, getattr(inner, mark))
    return function


def upload_bits(algorithm: FedAlgorithm) -> Bits:
    """Returns ``upload -> bits`` of an algorithm: that of its mark, else the bits of the arrays.

    Example:
        >>> import fedjax_sim as fs
        >>> import jax.numpy as jnp
        >>> upload_bits(fs.fedavg(0.1))(jnp.ones(9))
        288
        >>> upload_bits(fs.ef14(fs.fedavg(0.1), fs.compression.scaled_sign()))(jnp.ones(9))
        41
    """
    return getattr(algorithm.local, "upload_bits", bits_of_arrays)


def bits_if_all_report(algorithm: FedAlgorithm) -> Bits | None:
    """Returns ``upload -> bits`` in rounds in which all clients report, None if they are the same.

    Example:
        >>> import fedjax_sim as fs
        >>> bits_if_all_report(fs.fedavg(0.1))
    """
    return getattr(algorithm.local, "upload_bits_if_all", None)


def message_bits(algorithm: FedAlgorithm) -> Bits:
    """Returns ``message -> bits`` of an algorithm: that of its mark, else the bits of the arrays.

    Example:
        >>> import fedjax_sim as fs
        >>> import jax.numpy as jnp
        >>> message_bits(fs.ef21_p(fs.fedavg(0.1), fs.compression.scaled_sign()))(jnp.ones(9))
        41
    """
    decoded = getattr(algorithm.local, "message_bits", bits_of_arrays)
    return getattr(algorithm.broadcast, "message_bits", decoded)


def bits_of_arrays(tree: PyTree) -> int:
    """Number of bits of all arrays of a pytree.

    Example:
        >>> import jax.numpy as jnp
        >>> bits_of_arrays({"w": jnp.ones(3), "step": jnp.array(1, jnp.int8)})
        104
    """
    return sum(plain_bits(leaf) for leaf in jax.tree.leaves(tree))


def plain_bits(leaf: Any) -> int:
    """Number of bits of a tensor that is sent unchanged.

    Example:
        >>> import jax.numpy as jnp
        >>> plain_bits(jnp.ones(3, jnp.bfloat16))
        48
    """
    return math.prod(leaf.shape) * scalar_bits(leaf)


def scalar_bits(leaf: Any) -> int:
    """Number of bits of one entry of a tensor.

    Example:
        >>> import jax.numpy as jnp
        >>> scalar_bits(jnp.ones(3, jnp.bfloat16))
        16
    """
    return 8 * leaf.dtype.itemsize
