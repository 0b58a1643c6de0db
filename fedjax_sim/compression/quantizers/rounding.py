"""Precision of quantisers, powers of two, and random rounding."""

import jax
import jax.numpy as jnp
from jax import Array


def bernoulli(key: Array, p: Array) -> Array:
    """1 with probability p, else 0, in the dtype of p; probabilities are exact to 2^-23.

    The draws are in single precision, so a float64 run has the same draws as a float32 run.
    """
    return (jax.random.uniform(key, p.shape, jnp.float32).astype(p.dtype) < p).astype(p.dtype)


def stochastic_round(key: Array, x: Array) -> Array:
    """Rounds x to one of the two nearest integers at random, with expectation x.

    Example:
        >>> stochastic_round(jax.random.key(0), jnp.array([2.0, -3.0])).tolist()
        [2.0, -3.0]
    """
    below = jnp.floor(x)
    return below + bernoulli(key, x - below)


def power_of_two_below(x: Array) -> Array:
    """The largest power of two that is at most x, for normal, finite x > 0.

    Exact, unlike the floor of a logarithm.  ``jnp.frexp`` is exact, too, but the XLA of jaxlib 0.12
    permutes the exponents of a constant that is stored by columns.
    """
    info = jnp.finfo(x.dtype)
    nearest = jax.lax.reduce_precision(x, info.nexp, mantissa_bits=0)
    nearest = jnp.minimum(nearest, 2.0 ** (info.maxexp - 1))  # near the largest number: infinity
    return jnp.where(nearest > x, nearest / 2, nearest)


def max_magnitude(x: Array) -> Array:
    """``max |x|``; 0 for a tensor without entries.

    Example:
        >>> float(max_magnitude(jnp.array([-2.0, 1.0])))
        2.0
    """
    return jnp.abs(x).max(initial=0)
