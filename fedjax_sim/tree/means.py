"""Weighted means of uploads, on one device and over the devices of a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.tree.arithmetic import divide, scale, wide
from fedjax_sim.types import PyTree, Upload


def weighted_mean(uploads: Upload, weights: Array) -> Upload:
    """Returns the weighted mean of uploads ``[S, ...]``; zeros if all weights are 0."""
    return mean_from_sum(weighted_sum(uploads, weights), weights.sum(), uploads)


def weighted(upload: Upload, weight: Array) -> Upload:
    """Returns ``weight * upload``, weights ``[...]`` against leaves ``[..., *shape]``.

    Exactly 0 for weight 0, also if the upload of an empty slot is not finite.  In single precision
    at least: in half precision weights would be rounded, products overflow and long sums stop.
    """

    def scaled(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"an upload has a leaf of dtype {leaf.dtype}; expected floating leaves, since "
                "uploads are averaged"
            )
        leaf = wide(leaf)
        w = jnp.expand_dims(weight.astype(leaf.dtype), tuple(range(weight.ndim, leaf.ndim)))
        return jnp.where(w > 0, w * leaf, 0)

    return jax.tree.map(scaled, upload)


def weighted_sum(uploads: Upload, weights: Array) -> Upload:
    """Returns the sum of ``weights * uploads`` over the slots ``[S, ...]``."""
    return jax.tree.map(lambda u: u.sum(axis=0), weighted(uploads, weights))


def mean_from_sum(total: Upload, weight: Array, uploads: Upload) -> Upload:
    """Returns ``total / weight`` in the dtypes of uploads; zeros for an empty round."""
    safe = jnp.where(weight <= 0, 1, weight)
    return jax.tree.map(lambda t, u: (t / safe.astype(t.dtype)).astype(u.dtype), total, uploads)


def divide_or_keep(x: PyTree, weight: Array) -> PyTree:
    """Returns ``x / weight``, or x where the weight is 0.

    The update of a round without uploads is computed, then discarded.
    """
    return divide(x, jnp.where(weight > 0, weight, 1))


def all_reduced(mean: Upload, weight: Array, axis: str) -> Upload:
    """Returns the mean over all devices, by one all-reduce inside ``shard_map``."""
    total, weights = _all_reduce((scale(weight, wide(mean)), weight), axis)
    return mean_from_sum(total, weights, mean)


def _all_reduce(values: PyTree, axis: str) -> PyTree:
    """Returns the sums over all devices; values of one dtype travel as one vector."""
    leaves, structure = jax.tree.flatten(values)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        numbers = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        joined = jnp.concatenate([leaves[i].reshape(-1) for i in numbers])
        ends = np.cumsum([leaves[i].size for i in numbers])
        parts = jnp.split(jax.lax.psum(joined, axis), ends[:-1])
        for i, part in zip(numbers, parts, strict=True):
            leaves[i] = part.reshape(leaves[i].shape)
    return jax.tree.unflatten(structure, leaves)
