"""Singular value decompositions that accept matrices with NaN or infinity.

In a grid of learning rates some runs diverge.  On a CPU LAPACK prints a message to the console for
every matrix with NaN or infinity.  Here such a matrix is replaced by zeros before the
decomposition, and its results are NaN.
"""

import jax.numpy as jnp
from jax import Array


def singular_values(x: Array) -> Array:
    """Singular values in decreasing order: ``[..., m, n] -> [..., min(m, n)]``."""
    finite = _is_finite(x)
    values = jnp.linalg.svd(jnp.where(finite, x, 0), compute_uv=False)
    return jnp.where(finite[..., 0], values, jnp.nan)


def thin_svd(x: Array) -> tuple[Array, Array, Array]:
    """``u, s, w`` with ``x = u diag(s) w``; k = min(m, n).

    Returns:
        ``u`` ``[..., m, k]``, ``s`` ``[..., k]`` in decreasing order, ``w`` ``[..., k, n]``.
    """
    finite = _is_finite(x)
    u, s, w = jnp.linalg.svd(jnp.where(finite, x, 0), full_matrices=False)
    s = jnp.where(finite[..., 0], s, jnp.nan)
    return jnp.where(finite, u, jnp.nan), s, jnp.where(finite, w, jnp.nan)


def _is_finite(x: Array) -> Array:
    """Returns whether all entries of each matrix are finite: ``[..., 1, 1]``."""
    return jnp.all(jnp.isfinite(x), axis=(-2, -1), keepdims=True)
