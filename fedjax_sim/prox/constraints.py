r"""Constraints: indicators of convex sets. Their proximal operators are projections.

References:
    Parikh and Boyd, "Proximal Algorithms", 2014, section 6.
    Michelot, "A Finite Algorithm for Finding the Projection of a Point onto the Canonical
        Simplex of R^n", 1986.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_at_least, check_positive, is_concrete, least_entries
from fedjax_sim.prox.base import indicator, like, norm, pytree
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
        check_at_least(0.0, **least_entries(radius=self.radius))

    def value(self, x: Array) -> Array:
        return indicator(jnp.sum(jnp.abs(x)) - like(x, self.radius), x, self.radius)

    def prox(self, v: Array, c: Scalar) -> Array:
        size, radius = jnp.abs(v), like(v, self.radius)
        inside = jnp.sum(size) <= radius
        # For a point inside, the level is not used; a total of 0 ends the search at once.
        return jnp.where(inside, v, jnp.sign(v) * _above_level(size, jnp.where(inside, 0, radius)))


@pytree
@dataclasses.dataclass(frozen=True)
class L2Ball:
    r""":math:`\{\|x\|_2 \le \rho\}`, ``radius`` being rho; for a matrix, the Frobenius norm.

    Raises:
        ValueError: a negative radius.

    Example:
        >>> L2Ball(2.5).prox(jnp.array([3.0, 4.0]), 0.0).tolist()
        [1.5, 2.0]
    """

    radius: Scalar

    def __post_init__(self) -> None:
        check_at_least(0.0, **least_entries(radius=self.radius))

    def value(self, x: Array) -> Array:
        return indicator(norm(x) - like(x, self.radius), x, self.radius)

    def prox(self, v: Array, c: Scalar) -> Array:
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
        if not (is_concrete(self.low) and is_concrete(self.high)):
            return
        if not np.all(np.asarray(self.low) <= np.asarray(self.high)):
            raise ValueError(f"low is {self.low}; expected at most high, {self.high}")

    def value(self, x: Array) -> Array:
        low, high = like(x, self.low), like(x, self.high)
        below, above = indicator(low - x, x, jnp.abs(low)), indicator(x - high, x, jnp.abs(high))
        return jnp.max(jnp.maximum(below, above))

    def prox(self, v: Array, c: Scalar) -> Array:
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
        check_positive(**least_entries(total=self.total))

    def value(self, x: Array) -> Array:
        off = jnp.abs(jnp.sum(x) - like(x, self.total))
        return indicator(jnp.maximum(off, jnp.max(-x)), x, self.total)

    def prox(self, v: Array, c: Scalar) -> Array:
        return _above_level(v, like(v, self.total))


def _above_level(v: Array, total: Array) -> Array:
    r""":math:`\max(v - \theta, 0)` with the theta at which the entries sum to the total.

    Newton's method (Michelot, 1986) on the sum, which is convex and piecewise linear in theta. It
    approaches theta from the left without overshooting and ends exactly. It takes about a dozen
    passes over v; sorting costs far more.
    """
    still, goal = jax.lax.stop_gradient((v, total))
    largest = jnp.max(still)

    def climb(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        theta, _ = carry
        new = theta + _excess(still, goal, theta, still > theta)
        return jnp.maximum(new, theta), new > theta

    start = jnp.maximum((jnp.sum(still) - goal) / v.size, largest - goal)
    start = jnp.minimum(start, largest)
    start += _newton(still, goal, start)  # goes left where rounding put the start to the right
    theta, _ = jax.lax.while_loop(lambda carry: carry[1], climb, (start, jnp.array(True)))
    # A last, differentiable step, not added to theta: the rounding of theta may exceed the total.
    return jnp.maximum((v - theta) - _newton(v, total, theta), 0)


def _newton(v: Array, total: Array, theta: Array) -> Array:
    """Newton's step for theta; at a kink it uses the slope of the side it moves to."""
    right, left = _excess(v, total, theta, v > theta), _excess(v, total, theta, v >= theta)
    return jnp.where(right > 0, right, left)


def _excess(v: Array, total: Array, theta: Array, above: Array) -> Array:
    """The excess of the sum over the total, per entry above theta; a small excess is exact."""
    count = jnp.maximum(jnp.sum(above, dtype=v.dtype), 1)
    return (jnp.sum(jnp.where(above, v - theta, 0)) - total) / count
