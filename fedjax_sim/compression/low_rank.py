r"""PowerSGD: matrices as products of two thin ones, by one step of the power iteration.

A tensor ``[..., m]`` counts as a matrix ``[n, m]``; tensors of one dimension or none are sent
unchanged.  With the matrix M and a start Q, ``[m, r]``,

.. math:: P = \operatorname{orth}(M Q), \qquad Q \leftarrow M^T P, \qquad \hat M = P Q^T = P P^T M

The result is a projection of M, exact if M has the rank r.  A client sends P and Q, r (n + m)
numbers in the precision of the products, which is single for tensors in half precision.  For a
small or a thin matrix these may be more bits than those of its n m entries.  This is the form for
clients: each compresses its own matrix.  The published program averages P over the workers, then Q,
in two messages per step, and computes the error against the averaged output.

References:
    Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
        Optimization", 2019, https://arxiv.org/abs/1905.13727.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_count
from fedjax_sim.compression.codec import Codec, StatefulCodec, is_coded, per_tensor
from fedjax_sim.tree import computed_bits, in_units, plain_bits
from fedjax_sim.types import PyTree, specified


@specified
def power_sgd(rank: int) -> StatefulCodec:
    """PowerSGD with a warm start: a visit starts from the Q of the client's previous visit.

    The first Q is Gaussian, and so are the columns of the next one after a visit that found nothing
    in their directions: all, if the matrix is orthogonal to its start and arrives as zeros.  If a
    client always sends the same matrix, its results converge to the best approximation of the rank
    r.

    Args:
        rank: r; at most the smaller dimension is used.

    Raises:
        ValueError: a rank below 1.

    Example:
        >>> x = jnp.outer(jnp.arange(3.0), jnp.array([1.0, 2.0]))
        >>> codec = power_sgd(rank=1)
        >>> y, memory = codec.through(jax.random.key(0), x, codec.init(x))
        >>> bool(jnp.allclose(x, y, atol=1e-5)), codec.bits(x), memory[0].shape
        (True, 160, (2, 1))
    """
    check_count(1, rank=rank)

    def init(x: PyTree) -> list[Array]:
        leaves = enumerate(jax.tree.leaves(x))
        key = jax.random.key(0)
        return [_gaussian(jax.random.fold_in(key, i), v, rank) for i, v in leaves if _factored(v)]

    def through(key: Array, x: PyTree, memory: list[Array]) -> tuple[PyTree, list[Array]]:
        leaves, structure = jax.tree.flatten(x)
        starts, kept, decoded = iter(memory), [], []
        for i, leaf in enumerate(leaves):
            if _factored(leaf):
                start = next(starts)
                decoded_leaf, right = _project(leaf, start)
                # A column without an image would be one forever, and the matrix would arrive with
                # fewer directions, or as zeros. A matrix of zeros has no directions to start from.
                fresh = _gaussian(jax.random.fold_in(key, i), leaf, rank)
                other = jnp.where(jnp.any(leaf != 0), fresh, start)
                kept.append(jnp.where(jnp.any(right != 0, axis=0), right, other))
                leaf = decoded_leaf
            decoded.append(leaf)
        return structure.unflatten(decoded), kept

    return StatefulCodec(
        init,
        through,
        lambda x: sum(_bits(leaf, rank) for leaf in jax.tree.leaves(x)),
        "contraction",
    )


@specified
def gaussian_low_rank(rank: int) -> Codec:
    """PowerSGD without memory: every visit starts from a Gaussian Q of its own key.

    Args:
        rank: r, as for :func:`power_sgd`.

    Raises:
        ValueError: a rank below 1.

    Example:
        >>> x = jnp.outer(jnp.arange(3.0), jnp.array([1.0, 2.0]))
        >>> y = gaussian_low_rank(rank=1).through(jax.random.key(0), x, x)
        >>> bool(jnp.allclose(x, y, atol=1e-5))
        True
    """
    check_count(1, rank=rank)

    def through(key: Array, x: Array, near: Array) -> Array:
        return _project(x, _gaussian(key, x, rank))[0] if _factored(x) else x

    return per_tensor(through, lambda leaf: _bits(leaf, rank), "contraction")


def _project(x: Array, start: Array) -> tuple[Array, Array]:
    """Returns the projection of a tensor, and the right factor, in other units."""
    # Only the span of a start counts, so it may be that of the scaled matrix. In other units the
    # product of a matrix and the start from one of its size would leave the range of its entries.
    matrix, unit = in_units(x.reshape(-1, x.shape[-1]).astype(start.dtype))
    left, _ = jnp.linalg.qr(matrix @ start)
    right = matrix.T @ left
    return (unit * (left @ right.T)).reshape(x.shape).astype(x.dtype), right


def _gaussian(key: Array, x: Any, rank: int) -> Array:
    dtype = jnp.float32 if x.dtype.itemsize < 4 else x.dtype
    return jax.random.normal(key, (x.shape[-1], min(rank, *_shape(x))), dtype)


def _shape(x: Any) -> tuple[int, int]:
    return math.prod(x.shape[:-1]), x.shape[-1]


def _factored(x: Any) -> bool:
    return is_coded(x) and len(x.shape) > 1


def _bits(x: Any, rank: int) -> int:
    if not _factored(x):
        return plain_bits(x)
    return min(rank, *_shape(x)) * sum(_shape(x)) * computed_bits(x)
