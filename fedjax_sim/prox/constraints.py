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

from fedjax_sim.prox.base import check_least, concrete, indicator, like, root, soft_threshold
from fedjax_sim.typing import Scalar


@jax.tree_util.register_dataclass
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
        return jnp.where(inside, v, soft_threshold(v, _level(size, radius)))


@jax.tree_util.register_dataclass
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
        return indicator(root(jnp.sum(x**2)) - like(x, self.radius), x, self.radius)

    def prox(self, v: Array, c: Scalar) -> Array:
        del c
        norm, radius = root(jnp.sum(v**2)), like(v, self.radius)
        outside = norm > radius
        return jnp.where(outside, radius / jnp.where(outside, norm, 1), 1) * v


@jax.tree_util.register_dataclass
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
        if concrete(self.low) and concrete(self.high) and np.any(self.low > self.high):
            raise ValueError(f"low is {self.low}; expected at most high, {self.high}")

    def value(self, x: Array) -> Array:
        low, high = like(x, self.low), like(x, self.high)
        return indicator(jnp.max(jnp.maximum(low - x, x - high)), x, jnp.max(jnp.abs(x)))

    def prox(self, v: Array, c: Scalar) -> Array:
        del c
        return jnp.clip(v, like(v, self.low), like(v, self.high))


@jax.tree_util.register_dataclass
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
        return jnp.maximum(v - _level(v, like(v, self.total)), 0)


def _level(v: Array, total: Array) -> Array:
    r"""The theta at which :math:`\sum_i \max(v_i - \theta, 0)` is the total (Michelot, 1986).

    Newton's method on this convex, piecewise linear function comes from the left without
    overshooting and ends exactly; a dozen passes over v, where sorting costs far more.
    """

    def newton(v: Array, total: Array, theta: Array) -> Array:
        above = v > theta
        count = jnp.maximum(jnp.sum(above, dtype=v.dtype), 1)
        return (jnp.sum(jnp.where(above, v, 0)) - total) / count

    still, goal = jax.lax.stop_gradient((v, total))
    start = jnp.maximum((jnp.sum(still) - goal) / v.size, jnp.max(still) - goal)

    def climb(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        theta, _ = carry
        new = jnp.maximum(newton(still, goal, theta), theta)
        return new, new > theta

    theta, _ = jax.lax.while_loop(lambda carry: carry[1], climb, (start, jnp.array(True)))
    # Once more, differentiably: which entries lie above theta is known.
    return newton(v, total, theta)
