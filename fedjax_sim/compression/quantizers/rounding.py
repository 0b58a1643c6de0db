"""Random rounding."""

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree


def bernoulli(key: Array, p: Array) -> Array:
    """1 with probability p, else 0, in the dtype of p; probabilities are exact to 2^-23.

    The draws are in single precision, so a float64 run has the same draws as a float32 run.
    """
    full = tree.wide(p)  # in half precision draws near 1 would round to 1
    drawn = jax.random.uniform(key, p.shape, jnp.float32).astype(full.dtype)
    return (drawn < full).astype(p.dtype)


def stochastic_round(key: Array, x: Array) -> Array:
    """Rounds x to one of the two nearest integers at random, with expectation x.

    Example:
        >>> stochastic_round(jax.random.key(0), jnp.array([2.0, -3.0])).tolist()
        [2.0, -3.0]
    """
    full = tree.wide(x)  # whose fractions half precision would round
    below = jnp.floor(full)
    return (below + bernoulli(key, full - below)).astype(x.dtype)


def check_floating(x: Array) -> None:
    """Refuses tensors of integers, to which the values of a grid would be truncated."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x has dtype {x.dtype}; expected a floating one, which grids are of")
