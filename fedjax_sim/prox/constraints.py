r"""Constraints: indicators of convex sets, whose proximal operators are projections.

References:
    Parikh and Boyd, "Proximal Algorithms", 2014, section 6.
    Michelot, "A Finite Algorithm for Finding the Projection of a Point onto the Canonical
        Simplex of R^n", 1986.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.prox.base import check_least, concrete, indicator, like, norm, pytree
from fedjax_sim.types import Scalar


@pytree
@dataclasses.dataclass(frozen=True)
class L1Ball:
    r""":math:`\{\|x\|_1 \le \rho\}`, ``radius`` being rho.

    Raises:
        ValueError: a negative radius.

    Example:
        >>> L1Ball(2.0).prox(jnp.array([3.0, -1.5, 0.2]), 0.0).tolist()
        [1.75, -0.25, 0.0]
    """

    radius: Scalar

    def __post_init__(self) -> None:
        check_least(0.0, radius=self.radius)

    def value(self, x: Array) -> Array:
        return indicator(jnp.sum(jnp.abs(x)) - like(x, self.radius), x, self.radius)

    def prox(self, v: Array, c: Scalar) -> Array:
        del c
        size, radius = jnp.abs(v), like(v, self.radius)
        inside = jnp.sum(size) <= radius
        # Inside the goal does not matter; from 0 the search ends at once.
        return jnp.where(inside, v, jnp.sign(v) * _above_level(size, jnp.where(inside, 0, radius)))


@pytree
@dataclasses.dataclass(frozen=True)
class L2Ball:
    r""":math:`\{\|x\|_2 \le \rho\}`, of a matrix the Frobenius norm.

    Raises:
        ValueError: a negative radius.

    Example:
        >>> L2Ball(2.5).prox(jnp.array([3.0, 4.0]), 0.0).tolist()
        [1.5, 2.0]
    """

    radius: Scalar

    def __post_init__(self) -> None:
        check_least(0.0, radius=self.radius)

    def value(self, x: Array) -> Array:
        return indicator(norm(x) - like(x, self.radius), x, self.radius)

    def prox(self, v: Array, c: Scalar) -> Array:
        del c
        size, radius = norm(v), like(v, self.radius)
        outside = size > radius
        return jnp.where(outside, radius / jnp.where(outside, size, 1), 1) * v


@pytree
@dataclasses.dataclass(frozen=True)
class Box:
    r""":math:`\{l \le x \le u\}`, entry by entry; ``Box(0.0)`` is the non-negative orthant.

    Raises:
        ValueError: a lower bound above the upper one.

    Example:
        >>> Box(0.0, 1.0).prox(jnp.array([-1.0, 0.5, 2.0]), 0.0).tolist()
        [0.0, 0.5, 1.0]
    """

    low: Scalar
    high: Scalar = np.inf

    def __post_init__(self) -> None:
        if not (concrete(self.low) and concrete(self.high)):
            return
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
            raise ValueError(f"low is {self.low}; expected at most high, {self.high}")

    def value(self, x: Array) -> Array:
        low, high = like(x, self.low), like(x, self.high)
        below, above = indicator(low - x, x, jnp.abs(low)), indicator(x - high, x, jnp.abs(high))
        return jnp.max(jnp.maximum(below, above))

    def prox(self, v: Array, c: Scalar) -> Array:
        del c
        return jnp.clip(v, like(v, self.low), like(v, self.high))


@pytree
@dataclasses.dataclass(frozen=True)
class Simplex:
    r""":math:`\{x \ge 0,\ \sum_i x_i = s\}`, ``total`` being s.

    Raises:
        ValueError: a total that is not positive.

    Example:
        >>> Simplex(1.0).prox(jnp.array([1.0, 0.5, -1.0]), 0.0).tolist()
        [0.75, 0.25, 0.0]
    """

    total: Scalar = 1.0

    def __post_init__(self) -> None:
        if concrete(self.total) and not np.all(self.total > 0):
            raise ValueError(f"total is {self.total}; expected a positive number")

    def value(self, x: Array) -> Array:
        off = jnp.abs(jnp.sum(x) - like(x, self.total))
        return indicator(jnp.maximum(off, jnp.max(-x)), x, self.total)

    def prox(self, v: Array, c: Scalar) -> Array:
        del c
        return _above_level(v, like(v, self.total))


def _above_level(v: Array, total: Array) -> Array:
    r""":math:`\max(v - \theta, 0)` with the theta at which it sums to the total (Michelot, 1986).

    Newton's method on the sum, convex and piecewise linear in theta, comes from the left without
    overshooting and ends exactly; a dozen passes over v, where sorting costs far more.
    """

    still, goal = jax.lax.stop_gradient((v, total))
    largest = jnp.max(still)

    def climb(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        theta, _ = carry
        new = theta + _excess(still, goal, theta, still > theta)
        return jnp.maximum(new, theta), new > theta

    start = jnp.maximum((jnp.sum(still) - goal) / v.size, largest - goal)
    start = jnp.minimum(start, largest)
    start += _newton(still, goal, start)  # back, where rounding of the sum put it to the right
    theta, _ = jax.lax.while_loop(lambda carry: carry[1], climb, (start, jnp.array(True)))
    # Once more, differentiably, and not added to theta: the total may be less than its rounding.
    return jnp.maximum((v - theta) - _newton(v, total, theta), 0)


def _newton(v: Array, total: Array, theta: Array) -> Array:
    """What Newton's method adds to theta; at a kink the slope is that of the side it goes to."""
    right, left = _excess(v, total, theta, v > theta), _excess(v, total, theta, v >= theta)
    return jnp.where(right > 0, right, left)


def _excess(v: Array, total: Array, theta: Array, above: Array) -> Array:
    """Over the total, for each of the entries above theta: exact to rounding when it is small."""
    count = jnp.maximum(jnp.sum(above, dtype=v.dtype), 1)
    return (jnp.sum(jnp.where(above, v - theta, 0)) - total) / count
