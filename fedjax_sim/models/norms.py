"""Standardisation, for layer and group normalisation."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim import tree


def standardise(x: Array, axes: Sequence[int], epsilon: float) -> Array:
    """Returns ``(x - mean) / sqrt(variance + epsilon)`` over axes, computed in at least float32."""
    # The variance is the mean of squared deviations: the difference of two means of squares would
    # cancel where the mean is large.
    wide = tree.wide(x)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    variance = jnp.square(centred).mean(axis=axes, keepdims=True)
    return (centred * lax.rsqrt(variance + epsilon)).astype(x.dtype)
