r"""Penalties: regularisers that are finite everywhere.

References:
    Parikh and Boyd, "Proximal Algorithms", 2014, section 6.
    Cai, Candes, Shen, "A Singular Value Thresholding Algorithm for Matrix Completion", 2010.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim.checks import check_at_least, least_entries
from fedjax_sim.prox.base import like, pytree, root, soft_threshold, times
from fedjax_sim.prox.constraints import L1Ball
from fedjax_sim.tree import singular_values, thin_svd
from fedjax_sim.types import Scalar


@pytree
@dataclasses.dataclass(frozen=True)
class Zero:
    """The penalty 0.

    Example:
        >>> Zero().prox(jnp.array([3.0]), 2.0).tolist()
        [3.0]
    """

    def value(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def prox(self, v: Array, c: Scalar) -> Array:
        return v

    def subgradient(self, x: Array) -> Array:
        return jnp.zeros_like(x)


@pytree
@dataclasses.dataclass(frozen=True)
class L1:
    r""":math:`\lambda \|x\|_1`, ``weight`` being lambda.

    Raises:
        ValueError: a negative weight.

    Example:
        >>> L1(0.5).prox(jnp.array([3.0, -0.5]), 2.0).tolist()
        [2.0, 0.0]
    """

    weight: Scalar

    def __post_init__(self) -> None:
        check_at_least(0.0, **least_entries(weight=self.weight))

    def value(self, x: Array) -> Array:
        return like(x, self.weight) * jnp.sum(jnp.abs(x))

    def prox(self, v: Array, c: Scalar) -> Array:
        return soft_threshold(v, times(v, c, self.weight))

    def subgradient(self, x: Array) -> Array:
        return like(x, self.weight) * jnp.sign(x)


@pytree
@dataclasses.dataclass(frozen=True)
class SquaredL2:
    r""":math:`\lambda \|x\|_2^2` without a factor 1/2, ``weight`` being lambda.

    Raises:
        ValueError: a negative weight.

    Example:
        >>> SquaredL2(0.5).prox(jnp.array([3.0]), 2.0).tolist()
        [1.0]
    """

    weight: Scalar

    def __post_init__(self) -> None:
        check_at_least(0.0, **least_entries(weight=self.weight))

    def value(self, x: Array) -> Array:
        return like(x, self.weight) * jnp.sum(x**2)

    def prox(self, v: Array, c: Scalar) -> Array:
        return v / (1 + 2 * times(v, c, self.weight))

    def subgradient(self, x: Array) -> Array:
        return 2 * like(x, self.weight) * x


@pytree
@dataclasses.dataclass(frozen=True)
class ElasticNet:
    r""":math:`\lambda_1 \|x\|_1 + \lambda_2 \|x\|_2^2` without a factor 1/2.

    Raises:
        ValueError: a negative weight.

    Example:
        >>> ElasticNet(l1=1.0, l2=0.5).prox(jnp.array([5.0, -0.5]), 1.0).tolist()
        [2.0, 0.0]
    """

    l1: Scalar
    l2: Scalar

    def __post_init__(self) -> None:
        check_at_least(0.0, **least_entries(l1=self.l1, l2=self.l2))

    def value(self, x: Array) -> Array:
        return L1(self.l1).value(x) + SquaredL2(self.l2).value(x)

    def prox(self, v: Array, c: Scalar) -> Array:
        return SquaredL2(self.l2).prox(L1(self.l1).prox(v, c), c)

    def subgradient(self, x: Array) -> Array:
        return L1(self.l1).subgradient(x) + SquaredL2(self.l2).subgradient(x)


@pytree
@dataclasses.dataclass(frozen=True)
class GroupL1:
    r""":math:`\lambda \sum_g \|x_g\|_2`: the group lasso, which sets whole groups to 0.

    Args:
        weight: lambda.
        axis: every slice along this axis is a group.
        labels: replaces the axis: the group of every entry, a number below ``labels.size``.

    Raises:
        ValueError: a negative weight; an array without the axis.

    Example:
        >>> rows = GroupL1(1.0)
        >>> rows.prox(jnp.array([[6.0, 8.0], [0.3, 0.4]]), 5.0).tolist()
        [[3.0, 4.0], [0.0, 0.0]]
        >>> GroupL1(1.0, labels=jnp.array([0, 1, 0])).value(jnp.array([3.0, 1.0, 4.0])).item()
        6.0
    """

    weight: Scalar
    axis: int = dataclasses.field(default=0, metadata={"static": True})
    labels: Array | None = None

    def __post_init__(self) -> None:
        check_at_least(0.0, **least_entries(weight=self.weight))

    def value(self, x: Array) -> Array:
        return like(x, self.weight) * jnp.sum(self._norms(x))

    def prox(self, v: Array, c: Scalar) -> Array:
        shrink = jnp.maximum(1 - times(v, c, self.weight) / self._divisors(v), 0)
        return self._spread(shrink, v) * v

    def subgradient(self, x: Array) -> Array:
        return like(x, self.weight) * (x / self._spread(self._divisors(x), x))

    def _divisors(self, x: Array) -> Array:
        """The norm of every group, or a tiny number instead of 0."""
        norms = self._norms(x)
        return jnp.where(norms > 0, norms, float(jnp.finfo(x.dtype).tiny) ** 0.5)

    def _norms(self, x: Array) -> Array:
        """The norm of every group, whose square may overflow or underflow."""
        sizes = self._per_group(jnp.abs(x), jnp.max, jax.ops.segment_max)
        largest = jax.lax.stop_gradient(sizes)
        scale = jnp.where(largest > 0, largest, 1)
        squares = jnp.square(x / self._spread(scale, x))
        return scale * root(self._per_group(squares, jnp.sum, jax.ops.segment_sum))

    def _per_group(self, x: Array, reduce: Callable, reduce_by_label: Callable) -> Array:
        """One number per group."""
        if self.labels is not None:
            return reduce_by_label(x.ravel(), self.labels.ravel(), self.labels.size)
        if x.ndim and not -x.ndim <= self.axis < x.ndim:
            raise ValueError(f"axis is {self.axis}; expected one of an array of shape {x.shape}")
        rest = tuple(i for i in range(x.ndim) if i != self.axis % x.ndim)
        return reduce(x, axis=rest, keepdims=True)

    def _spread(self, per_group: Array, x: Array) -> Array:
        """Numbers per group, repeated for the group's entries."""
        if self.labels is not None:
            return per_group[self.labels.ravel()].reshape(x.shape)
        return per_group


@pytree
@dataclasses.dataclass(frozen=True)
class LInf:
    r""":math:`\lambda \|x\|_\infty`.

    Raises:
        ValueError: a negative weight.

    Example:
        >>> LInf(1.0).prox(jnp.array([3.0, -2.5, 1.0]), 1.0).tolist()
        [2.25, -2.25, 1.0]
    """

    weight: Scalar

    def __post_init__(self) -> None:
        check_at_least(0.0, **least_entries(weight=self.weight))

    def value(self, x: Array) -> Array:
        return like(x, self.weight) * jnp.max(jnp.abs(x))

    def prox(self, v: Array, c: Scalar) -> Array:
        # Moreau: the conjugate of c psi is the indicator of the l1 ball.
        return v - L1Ball(times(v, c, self.weight)).prox(v, 0.0)

    def subgradient(self, x: Array) -> Array:
        size = jnp.abs(x)
        largest = (size == size.max()).astype(x.dtype)
        return like(x, self.weight) * jnp.sign(x) * largest / jnp.sum(largest)


@pytree
@dataclasses.dataclass(frozen=True)
class Nuclear:
    r""":math:`\lambda \|X\|_*`: the sum of the singular values.

    An array with more than two axes is a stack of matrices in its last two axes.

    For several host devices of a CPU see the argument ``threads`` of
    :func:`fedjax_sim.engine.execution.devices.use_all_cores`.

    Raises:
        ValueError: a negative weight; an array with fewer than two axes.

    Example:
        >>> Nuclear(0.5).prox(jnp.diag(jnp.array([3.0, 0.5])), 2.0).round(4).tolist()
        [[2.0, 0.0], [0.0, 0.0]]
    """

    weight: Scalar

    def __post_init__(self) -> None:
        check_at_least(0.0, **least_entries(weight=self.weight))

    def value(self, x: Array) -> Array:
        size = jnp.sum(singular_values(_matrix(x)))
        return like(x, self.weight) * size.astype(x.dtype)

    def prox(self, v: Array, c: Scalar) -> Array:
        u, s, w = thin_svd(_matrix(v))
        x = (u * jnp.maximum(s - times(s, c, self.weight), 0)[..., None, :]) @ w
        return x.astype(v.dtype)

    def subgradient(self, x: Array) -> Array:
        u, s, w = thin_svd(_matrix(x))
        # Computed singular values below the cutoff are rounding errors of 0.
        cutoff = max(x.shape[-2:]) * float(jnp.finfo(x.dtype).eps) * s[..., :1]
        signs = (u * (s > cutoff).astype(s.dtype)[..., None, :]) @ w
        return like(x, self.weight) * signs.astype(x.dtype)


def _matrix(x: Array) -> Array:
    """Returns x in at least single precision, as a singular value decomposition requires."""
    if x.ndim < 2:
        raise ValueError(f"x has shape {x.shape}; expected a matrix for the nuclear norm")
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
