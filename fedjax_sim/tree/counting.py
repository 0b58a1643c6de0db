"""Bits of uploads and messages, for files and figures of runs.

A wrapper decodes what it encodes, so the arrays of an upload say nothing about its size.
"""

import math
from collections.abc import Callable
from typing import Any

import jax

from fedjax_sim.types import FedAlgorithm, PyTree

Count = Callable[[PyTree], int]


def with_upload_bits(
    algorithm: FedAlgorithm, bits: Count | None, all_report: Count | None = None
) -> FedAlgorithm:
    """Returns an algorithm with the bits of its encoded uploads.

    The upload itself is the decoded one, whose arrays have more bits.  Files of runs, and figures
    against bits, count these.

    Args:
        algorithm: the algorithm.
        bits: ``upload -> bits``; None: those of the arrays.
        all_report: other bits in rounds in which all clients report; None: the same.

    Example:
        >>> import fedjax_sim as fs
        >>> import jax.numpy as jnp
        >>> upload_bits(with_upload_bits(fs.fedavg(0.1), lambda upload: 8))(jnp.ones(2))
        8
    """
    counted = algorithm.requires.bits._replace(upload=bits, upload_if_all=all_report)
    return algorithm.requiring(bits=counted)


def with_message_bits(algorithm: FedAlgorithm, bits: Count) -> FedAlgorithm:
    """Returns an algorithm with ``message -> bits`` of its encoded messages.

    Example:
        >>> import fedjax_sim as fs
        >>> import jax.numpy as jnp
        >>> message_bits(with_message_bits(fs.fedavg(0.1), lambda message: 8))(jnp.ones(2))
        8
    """
    return algorithm.requiring(bits=algorithm.requires.bits._replace(message=bits))


def upload_bits(algorithm: FedAlgorithm) -> Count:
    """Returns ``upload -> bits`` of an algorithm.

    Example:
        >>> import fedjax_sim as fs
        >>> import jax.numpy as jnp
        >>> upload_bits(fs.fedavg(0.1))(jnp.ones(9))
        288
        >>> upload_bits(fs.ef14(fs.fedavg(0.1), fs.compression.scaled_sign()))(jnp.ones(9))
        41
    """
    return algorithm.requires.bits.upload or bits_of_arrays


def bits_if_all_report(algorithm: FedAlgorithm) -> Count | None:
    """Returns ``upload -> bits`` in rounds in which all clients report, None if they are the same.

    Example:
        >>> import fedjax_sim as fs
        >>> bits_if_all_report(fs.fedavg(0.1))
    """
    return algorithm.requires.bits.upload_if_all


def message_bits(algorithm: FedAlgorithm) -> Count:
    """Returns ``message -> bits`` of an algorithm.

    Example:
        >>> import fedjax_sim as fs
        >>> import jax.numpy as jnp
        >>> message_bits(fs.ef21_p(fs.fedavg(0.1), fs.compression.scaled_sign()))(jnp.ones(9))
        41
    """
    return algorithm.requires.bits.message or bits_of_arrays


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
