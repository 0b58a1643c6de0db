"""Bits of uploads and messages, for files and figures of runs.

A wrapper decodes what it encodes, so the arrays of an upload say nothing about its size.
"""

import math
from collections.abc import Callable
from typing import Any

import jax

from fedjax_sim.types import FedAlgorithm, PyTree, Upload

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
    """
    counted = algorithm.requires.bits._replace(upload=bits, upload_if_all=all_report)
    return algorithm.requiring(bits=counted)


def with_further_bits(
    algorithm: FedAlgorithm,
    counted: Callable[[Upload], Upload],
    further: Callable[[Upload], PyTree],
) -> FedAlgorithm:
    """Returns an algorithm that sends ``further(upload)`` beside the counted part of an upload."""

    def around(count: Count) -> Count:
        return lambda upload: count(counted(upload)) + bits_of_arrays(further(upload))

    all_report = bits_if_all_report(algorithm)
    return with_upload_bits(
        algorithm, around(upload_bits(algorithm)), all_report and around(all_report)
    )


def with_message_bits(algorithm: FedAlgorithm, bits: Count) -> FedAlgorithm:
    """Returns an algorithm with ``message -> bits`` of its encoded messages."""
    return algorithm.requiring(bits=algorithm.requires.bits._replace(message=bits))


def upload_bits(algorithm: FedAlgorithm) -> Count:
    """Returns ``upload -> bits`` of an algorithm."""
    return algorithm.requires.bits.upload or bits_of_arrays


def bits_if_all_report(algorithm: FedAlgorithm) -> Count | None:
    """Returns ``upload -> bits`` in rounds in which all clients report; None: the same."""
    return algorithm.requires.bits.upload_if_all


def message_bits(algorithm: FedAlgorithm) -> Count:
    """Returns ``message -> bits`` of an algorithm."""
    return algorithm.requires.bits.message or bits_of_arrays


def bits_of_arrays(tree: PyTree) -> int:
    """Number of bits of all arrays of a pytree."""
    return sum(plain_bits(leaf) for leaf in jax.tree.leaves(tree))


def plain_bits(leaf: Any) -> int:
    """Number of bits of a tensor that is sent unchanged."""
    return math.prod(leaf.shape) * scalar_bits(leaf)


def scalar_bits(leaf: Any) -> int:
    """Number of bits of one entry of a tensor."""
    return 8 * leaf.dtype.itemsize


def computed_bits(leaf: Any) -> int:
    """Number of bits of one number that is computed from a tensor, in single precision at least."""
    return max(scalar_bits(leaf), 32)
