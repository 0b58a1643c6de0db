"""Rows of a batch that count in batch statistics."""

import jax.numpy as jnp
from jax import Array


def present(weights: Array) -> Array:
    """Returns True for examples of positive weight, or for all examples if there are none."""
    # A batch without examples (of an empty slot) then still has finite statistics.
    positive = weights.astype(bool)
    return positive | ~positive.any()


def row_mask(rows: Array, x: Array, axis: int = -1) -> Array:
    """Returns the mask of a layer's input ``[k B, ...]``, k entries per example of ``rows [B]``."""
    if x.ndim < 2 or x.shape[0] % rows.shape[0] or axis % x.ndim == 0:
        raise ValueError(
            f"a batch normalisation has an input of shape {x.shape} with features on axis {axis}; "
            f"expected the {rows.shape[0]} examples of the batch on the first axis, since short "
            "batches are filled up with examples that must not count"
        )
    repeated = jnp.repeat(rows, x.shape[0] // rows.shape[0])
    return repeated.reshape(-1, *[1] * (x.ndim - 1))
