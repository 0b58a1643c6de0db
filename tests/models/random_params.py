"""Parameters from NumPy, where the law of the initial ones is not the subject: less to compile."""

import math

import jax
import jax.numpy as jnp
import numpy as np


def random_params(model, dtype=np.float32):
    """Kernels that keep the size of a signal, scales near one, other vectors near zero."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        values = rng.standard_normal(leaf.shape)
        if len(leaf.shape) == 1:
            return jnp.asarray((path[-1].key == "scale") + 0.3 * values, dtype)
        # Convolutions have the outputs last, dense layers first.
        inputs = leaf.shape[-1] if len(leaf.shape) == 2 else math.prod(leaf.shape[:-1])
        return jnp.asarray(values * (2 / inputs) ** 0.5, dtype)

    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree_util.tree_map_with_path(draw, shapes)


def draws(*shapes):
    """Normal numbers in double precision."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]
