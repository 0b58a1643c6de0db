"""What regularisers have in common."""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.typing import PyTree, Scalar


@runtime_checkable
class Regularizer(Protocol):
    """A closed convex function of one array."""

    def value(self, x: Array) -> Array:
        """psi(x)."""
        ...

    def prox(self, v: Array, c: Scalar) -> Array:
        """The minimiser of ``||x - v||^2 / 2 + c psi(x)``."""
        ...


@runtime_checkable
class Penalty(Regularizer, Protocol):
    """A regulariser that is finite everywhere."""

    def subgradient(self, x: Array) -> Array:
        """An element of the subdifferential at x."""
        ...


def soft_threshold(v: Array, threshold: Scalar) -> Array:
    """``sign(v) max(|v| - threshold, 0)``.

    Example:
        >>> soft_threshold(jnp.array([-3.0, 0.5, 1.0]), 1.0).tolist()
        [-2.0, 0.0, 0.0]
    """
    t = like(v, threshold)
    return v - jnp.clip(v, -t, t)


def like(x: Array, scalar: Scalar) -> Array:
    return jnp.asarray(scalar).astype(x.dtype)


def times(x: Array, a: Scalar, b: Scalar) -> Array:
    return like(x, a) * like(x, b)


def root(squared: Array) -> Array:
    """The square root, of derivative 0 at 0."""
    positive = squared > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1)), 0)


def indicator(violation: Array, x: Array, size: Scalar) -> Array:
    """0 where the violation is rounding, relative to a size, infinity elsewhere."""
    slack = 1000 * jnp.finfo(x.dtype).eps * jnp.maximum(like(x, size), 1)
    return jnp.where(violation <= slack, 0, jnp.inf).astype(x.dtype)


def concrete(value: PyTree) -> bool:
    """Whether it is a number, rather than traced or what jax puts in a pytree meanwhile."""
    return isinstance(value, (int, float, np.ndarray, np.generic, Array)) and not isinstance(
        value, Tracer
    )


def check_least(least: float, **scalars: Scalar) -> None:
    for name, value in scalars.items():
        if concrete(value) and not np.all(np.asarray(value) >= least):
            raise ValueError(f"{name} is {value}; expected a number of at least {least:g}")
