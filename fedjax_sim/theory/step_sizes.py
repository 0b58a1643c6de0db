"""Step sizes that bounds prescribe, and the parts their formulas share.

Theorems choose a rate as the smallest of several, most of them infinite without noise, and pay for
it with logarithms of ratios such as ``mu^5 K^2 R^8 Phi / (Q^2 sigma^4)``, which leave single
precision.  Such ratios are hence passed around as their logarithms.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.theory.constants import positive
from fedjax_sim.types import Scalar


class BestRate(NamedTuple):
    """The best rate of a grid."""

    lr: Array
    value: Array  # the bound at it


def best_lr(
    bound: Callable[[Array], Array], limit: Scalar, *, decades: float = 6.0, num: int = 301
) -> BestRate:
    r"""The rate of a logarithmic grid at which a bound is smallest.

    The grid is ``limit 10^(-decades i / (num - 1))``, i = 0 .. num - 1.  Bounds here are sums of
    falling and growing powers of the rate; between neighbours, a factor of
    ``10^(decades / (num - 1))`` apart (1.047 by default), one with the growing power p exceeds its
    minimum by at most that factor to the p.  For bounds whose paper has no closed form, or to see
    how much its closed form loses.

    Args:
        bound: the bound as a function of the rate alone.
        limit: the largest rate the bound's theorem allows.
        decades: how far down the grid goes, positive.
        num: points, at least 2.

    Returns:
        The rate and the bound there; NaNs are passed over.

    Raises:
        ValueError: ``limit`` or ``decades`` not positive, ``num`` below 2.

    Example:
        >>> found = best_lr(lambda lr: 1 / lr + lr, 10.0)  # 2 at 1
        >>> round(float(found.lr), 2), round(float(found.value), 2)
        (1.0, 2.0)
    """
    if num < 2:
        raise ValueError(f"num is {num}; expected at least 2 points")
    limit, span = positive(limit=limit, decades=decades)
    lrs = limit * 10 ** (-span * jnp.linspace(0.0, 1.0, num))
    values = jax.vmap(bound)(lrs)
    best = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
    return BestRate(lrs[best], values[best])


def smallest(*entries: Array) -> Array:
    """The smallest entry, elementwise; infinite ones, of a zero constant, drop out.

    Example:
        >>> float(smallest(jnp.array(0.5), jnp.array(1.0) / 0.0))
        0.5
    """
    return functools.reduce(jnp.minimum, entries)


def largest(*entries: Array) -> Array:
    """The largest entry, elementwise.

    Example:
        >>> float(largest(jnp.array(0.5), jnp.array(0.0)))
        0.5
    """
    return functools.reduce(jnp.maximum, entries)


def log_monomial(*factors: tuple[Array, float]) -> Array:
    """``log(prod_i x_i^p_i)`` for pairs ``(x_i, p_i)``, without the product.

    Infinite if a constant with a negative power is 0.

    Example:
        >>> round(float(log_monomial((jnp.array(10.0), 40), (jnp.array(2.0), -1))), 3)
        91.41
    """
    return functools.reduce(jnp.add, [power * jnp.log(x) for x, power in factors])


def log_plus(exponent: float, log_ratio: Array) -> Array:
    """``log(e^exponent + ratio)`` of a ratio given by its logarithm.

    Example:
        >>> round(float(log_plus(1.0, jnp.array(200.0))), 3)  # exp(200) is not a float32
        200.0
    """
    return jnp.logaddexp(exponent, log_ratio)


def times_log(coefficient: Array, logarithm: Array, power: int) -> Array:
    """``coefficient logarithm^power``; 0 where the coefficient is, whatever the logarithm.

    Example:
        >>> float(times_log(jnp.array(0.0), jnp.array(jnp.inf), 2))
        0.0
    """
    finite = jnp.where(coefficient > 0, logarithm, 1.0)
    return coefficient * finite**power
