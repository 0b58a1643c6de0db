"""Standardisation, for layer and group normalisation."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax


def standardise(x: Array, axes: Sequence[int], epsilon: float) -> Array:
    """``(x - mean) / sqrt(variance + epsilon)`` over ``axes``, computed in at least float32.

    The variance is the mean of the squared deviations from the mean; the difference of two means of
    squares would cancel where the mean is large.

    Example:
        >>> import numpy as np
        >>> x = jnp.array([[1.0, 3.0], [5.0, 5.0]])
        >>> np.asarray(standardise(x, axes=(1,), epsilon=0.5), np.float64).round(3).tolist()
        [[-0.816, 0.816], [0.0, 0.0]]
    """
    wide = at_least_float32(x)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    variance = jnp.square(centred).mean(axis=axes, keepdims=True)
    return (centred * lax.rsqrt(variance + epsilon)).astype(x.dtype)


def at_least_float32(x: Array) -> Array:
    """Converts ``x`` to float32 if its dtype has fewer than 32 bits.

    Example:
        >>> at_least_float32(jnp.ones(2, jnp.bfloat16)).dtype
        dtype('float32')
    """
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
