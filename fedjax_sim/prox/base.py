"""What regularisers have in common."""

import dataclasses
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim.types import PyTree, Scalar

T = TypeVar("T")


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


def pytree(cls: type[T]) -> type[T]:
    """Registers a dataclass, whose trees are put together without the constructor's checks.

    A gradient with respect to a weight is a tree of the same class, and may be negative.
    """
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    data = [f.name for f in fields if not f.metadata.get("static", False)]
    static = [f.name for f in fields if f.metadata.get("static", False)]

    def flatten(tree: T) -> tuple[list[Any], tuple[Any, ...]]:
        leaves = [(jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in data]
        return leaves, tuple(getattr(tree, name) for name in static)

    def unflatten(values: tuple[Any, ...], leaves: Any) -> T:
        tree = object.__new__(cls)
        for name, value in zip(data + static, (*leaves, *values), strict=True):
            object.__setattr__(tree, name, value)  # the class is frozen
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


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


def norm(x: Array) -> Array:
    """The Euclidean norm, of any magnitude whose square need not be a number; derivative 0 at 0."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x)))
    scale = jnp.where(largest > 0, largest, 1)
    return scale * root(jnp.sum((x / scale) ** 2))


def indicator(violation: Array, x: Array, size: Scalar) -> Array:
    """0 where the violation is rounding, relative to a size, infinity elsewhere."""
    # Rounding of a sum of many entries; a tenth is what sums in half precision are good for.
    slack = min(1000 * float(jnp.finfo(x.dtype).eps), 0.1) * like(x, size)
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
