"""Random trees."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.types import PyTree


def normal(key: Array, std: Array | float, like: PyTree) -> PyTree:
    """Returns independent normal numbers of mean 0, one key per leaf.

    They are drawn in single precision, so that runs in double precision see the same noise.
    """
    leaves, structure = jax.tree.flatten(like)

    def of(number: int, leaf: Any) -> Array:
        drawn = jax.random.normal(jax.random.fold_in(key, number), leaf.shape, jnp.float32)
        scaled = drawn.astype(np.promote_types(leaf.dtype, np.float32))
        return (jnp.asarray(std).astype(scaled.dtype) * scaled).astype(leaf.dtype)

    return structure.unflatten([of(number, leaf) for number, leaf in enumerate(leaves)])
