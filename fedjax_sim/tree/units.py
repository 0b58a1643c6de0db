"""Powers of two as units, in which squares, sums and quotients of a tensor stay within range.

XLA divides a tensor by one number by multiplying it with the reciprocal, which is subnormal, and so
0 on a CPU, for divisors above 2^126 in single precision.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from optax.tree import norm

from fedjax_sim.types import PyTree


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


def in_units(x: PyTree) -> tuple[PyTree, Array]:
    """Returns ``x / u`` and u, a power of two, with ``1 <= max |x / u| < 4``; zeros stay zeros.

    Exact for entries that are not subnormal in x or in x / u.  The leaves are floating and have one
    dtype.  The derivative is that for a constant u.

    Example:
        >>> scaled, unit = in_units(jnp.array([5.0, -3.0]))
        >>> scaled.tolist(), float(unit)
        ([1.25, -0.75], 4.0)
    """
    largest = jnp.stack([max_magnitude(leaf) for leaf in jax.tree.leaves(x)]).max()
    info = jnp.finfo(largest.dtype)
    # Both u and 1 / u are normal numbers.
    unit = power_of_two_below(jnp.maximum(largest, info.tiny))
    unit = jax.lax.stop_gradient(jnp.minimum(unit, 2.0 ** (info.maxexp - 2)))
    inverse = 1 / unit
    return jax.tree.map(lambda leaf: leaf * inverse, x), unit


def safe_norm(x: PyTree) -> Array:
    """Returns the norm over all leaves, in at least single precision.

    Squares neither overflow nor underflow, since a power of two is taken out of them.  The
    derivative at 0 is 0.

    Example:
        >>> float(safe_norm([jnp.array([3e30]), jnp.array([4e30])]) / 1e30)
        5.0
    """
    x = jax.tree.map(jnp.asarray, x)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(x)]
    if not dtypes:
        return jnp.zeros(())
    dtype = functools.reduce(np.promote_types, dtypes, np.dtype(np.float32))
    scaled, unit = in_units(jax.tree.map(lambda leaf: leaf.astype(dtype), x))
    squared = norm(scaled, squared=True)
    # The root has no derivative at 0.
    return jnp.where(squared > 0, unit * jnp.sqrt(jnp.where(squared > 0, squared, 1)), 0)


def quotient(x: Array, divisor: Array) -> Array:
    """Returns ``x / divisor`` for one positive number, also for one whose reciprocal is subnormal.

    Example:
        >>> quotient(jnp.array([1.0, 3.0]), jnp.array(2.0)).tolist()
        [0.5, 1.5]
    """
    scaled, unit = in_units(divisor)
    return x * (1 / unit) / scaled
