"""Standardisation, for layer and group normalisation."""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from fedjax_sim import tree


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
    wide = tree.wide(x)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    variance = jnp.square(centred).mean(axis=axes, keepdims=True)
    return (centred * lax.rsqrt(variance + epsilon)).astype(x.dtype)
