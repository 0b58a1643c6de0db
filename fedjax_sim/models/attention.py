"""Attention of queries, keys and values, and rotary positions."""

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree


def attend(queries: Array, keys: Array, values: Array, mask: Array | None = None) -> Array:
    """Returns ``softmax(Q K^T / sqrt(d)) V`` by heads, ``[B, T, heads, d]``.

    The mask ``[T, T]`` is True where the query of the row sees the key of the column.  The
    softmax is computed in at least float32.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries * queries.shape[-1] ** -0.5, keys)
    scores = tree.wide(scores)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    weights = jax.nn.softmax(scores).astype(values.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values)


def causal(tokens: int) -> Array:
    """Returns the mask ``[tokens, tokens]`` with which a position sees itself and earlier ones."""
    return jnp.tril(jnp.ones((tokens, tokens), bool))


def rotary(x: Array, positions: Array, base: float = 10_000.0) -> Array:
    r"""Rotates queries or keys by angles that grow with their positions.

    The pair :math:`(x_j, x_{j + d/2})` of a vector at position p is rotated by the angle
    :math:`p\, b^{-2j/d}`, for j = 0, ..., d/2 - 1 and the base b.  The inner product of a rotated
    query and a rotated key depends on their positions by the difference only.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021
    (https://arxiv.org/abs/2104.09864), section 3.2, which pairs neighbouring entries.

    Args:
        x: ``[..., T, heads, d]`` with an even d.
        positions: ``[T]``.
        base: b.
    """
    half = x.shape[-1] // 2
    # Angles in at least float32: bfloat16 cannot distinguish positions above 256.
    wide = tree.wide(x)
    speeds = base ** (-jnp.arange(half, dtype=wide.dtype) / half)
    angles = positions.astype(wide.dtype)[:, None] * speeds  # [T, d / 2]
    cosines, sines = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]  # of every head
    first, second = wide[..., :half], wide[..., half:]
    rotated = (first * cosines - second * sines, first * sines + second * cosines)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
