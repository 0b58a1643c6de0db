"""Protocols of regularisers, their registration as pytrees, and numerical helpers."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.types import Scalar

T = TypeVar("T")


@runtime_checkable
class Regularizer(Protocol):
    """A closed convex function of one array.

    Example:
        >>> from fedjax_sim.prox import L1, Box
        >>> isinstance(Box(0.0, 1.0), Regularizer)
        True
        >>> L1(1.0).prox(jnp.array([3.0, 0.5]), 1.0).tolist()
        [2.0, 0.0]
    """

    def value(self, x: Array) -> Array:
        """psi(x)."""
        ...

    def prox(self, v: Array, c: Scalar) -> Array:
        """The minimiser of ``||x - v||^2 / 2 + c psi(x)``."""
        ...


@runtime_checkable
class Penalty(Regularizer, Protocol):
    """A regulariser that is finite everywhere.

    Example:
        >>> from fedjax_sim.prox import L1, Box
        >>> isinstance(L1(1.0), Penalty), isinstance(Box(0.0, 1.0), Penalty)
        (True, False)
    """

    def subgradient(self, x: Array) -> Array:
        """An element of the subdifferential at x."""
        ...


def pytree(cls: type[T]) -> type[T]:
    """Registers a dataclass as a pytree that is unflattened without the constructor's checks.

    A gradient with respect to a weight is an instance of the same class and may be negative.
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
    """The scalar in the dtype of x."""
    return jnp.asarray(scalar).astype(x.dtype)


def times(x: Array, a: Scalar, b: Scalar) -> Array:
    """``a b`` in the dtype of x."""
    return like(x, a) * like(x, b)


def root(squared: Array) -> Array:
    """The square root, with derivative 0 at 0."""
    positive = squared > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1)), 0)


def norm(x: Array) -> Array:
    """The Euclidean norm, with derivative 0 at 0.

    The square of the norm may overflow or underflow.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x)))
    scale = jnp.where(largest > 0, largest, 1)
    return scale * root(jnp.sum((x / scale) ** 2))


def indicator(violation: Array, x: Array, size: Scalar) -> Array:
    """0 where the violation, relative to a size, is at most rounding; infinity elsewhere."""
    # Allows for rounding of a sum of many entries; sums in half precision err by up to a tenth.
    slack = min(1000 * float(jnp.finfo(x.dtype).eps), 0.1) * like(x, size)
    return jnp.where(violation <= slack, 0, jnp.inf).astype(x.dtype)
