"""Rules, ``(points, previous aggregate, key) -> aggregate``, and the parts that they share."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least
from fedjax_sim.types import PyTree, Spec, Upload, shown, with_spec


@shown
class Points(NamedTuple):
    """Uploads of a round as a rule receives them.

    An upload with a NaN or an infinity is not ``finite``: it counts in n, has distance infinity to
    all others, comes last in every order and weighs 0.  A rule that selects it all the same adds a
    zero.
    """

    x: PyTree  # [S, ...] zeros where not finite
    weights: Array | None  # [S]; None: equal
    arrived: Array  # [S] bool    slots with an upload
    finite: Array  # [S] bool    slots with a finite upload
    clients: Array  # [S] int

    @property
    def n(self) -> Array:
        """Number of uploads, a traced integer."""
        return self.arrived.sum()

    @property
    def finite_weights(self) -> Array:
        """Weights ``[S]``, 0 where there is no finite upload."""
        dtype = jnp.result_type(float)
        weights = jnp.ones((), dtype) if self.weights is None else self.weights.astype(dtype)
        return jnp.where(self.finite, weights, 0)


@with_spec
@shown
class Rule(NamedTuple):
    """Robust aggregation rule; made by :func:`median`, :func:`krum` and the others.

    Example:
        >>> from fedjax_sim.wrappers.robust import krum
        >>> rule = krum(f=2)
        >>> rule.name, rule.smallest
        ('krum(f=2)', 7)
    """

    name: str
    aggregate: Callable[[Points, PyTree, Array], Upload]  # (points, previous aggregate, key)
    smallest: int = 1  # least number of uploads per round
    f: int | None = None  # most attackers per round that the rule is made for; None: not stated
    weighted: bool = False  # uses the weights of uploads; False: they have to be equal
    distances: bool = False  # computes the distances of all pairs
    # (previous aggregate, upload) -> change of the aggregate, if the aggregate is the previous one
    # plus the weighted mean of these changes over the finite uploads. None: another rule.
    change: Callable[[PyTree, Upload], Upload] | None = None
    remembers: bool = False  # uses the previous aggregate
    spec: Spec | None = None  # the factory and its arguments


def check_rule(rule: Any) -> None:
    """Refuses values that are no rules, such as a function that was not called."""
    if not isinstance(rule, Rule):
        raise ValueError(
            f"rule is {rule!r:.60}; expected a robust.Rule, for example robust.median(f=1)"
        )


def check_f(f: Any) -> int:
    """Returns the number of attackers that a rule is made for."""
    if isinstance(f, bool) or not isinstance(f, numbers.Integral):
        raise ValueError(f"f is {f!r}; expected an integer, the number of attackers per round")
    check_at_least(0, f=f)
    return int(f)


def majority(f: int | None) -> int:
    """Returns the least n with n > 2 f, 1 if f is not stated."""
    return 1 if f is None else 2 * check_f(f) + 1


def per_slot(values: Array, leaf: Array) -> Array:
    """Returns values ``[S]`` as ``[S, 1, ...]`` for a leaf; numbers get its dtype."""
    values = values if values.dtype == bool else values.astype(leaf.dtype)
    return values.reshape(values.shape + (1,) * (leaf.ndim - 1))


def weighted_sum(weights: Array, x: PyTree) -> PyTree:
    """Returns ``sum_i weights[i] x[i]`` of leaves ``[S, ...]``, summed in float32 or more."""

    def total(leaf: Array) -> Array:
        wide = tree.wide(leaf)
        return (per_slot(weights, wide) * wide).sum(0).astype(leaf.dtype)

    return jax.tree.map(total, x)


def mixed(weights: Array, x: PyTree) -> PyTree:
    """Returns ``sum_j weights[i, j] x[j]`` per i, of leaves ``[S, ...]``, in float32 or more."""

    def products(leaf: Array) -> Array:
        flat = tree.wide(leaf.reshape(leaf.shape[0], -1))
        product = jnp.matmul(weights.astype(flat.dtype), flat, precision="highest")
        return product.astype(leaf.dtype).reshape(weights.shape[0], *leaf.shape[1:])

    return jax.tree.map(products, x)


def mean_over(values: Array, count: Array) -> Array:
    """Returns the sum over slots divided by a count, computed in float32 or more bits."""
    wide = tree.wide(values)
    return (wide.sum(0) / count.astype(wide.dtype)).astype(values.dtype)


def shares(selected: Array, count: Array) -> Array:
    """Returns the weights of a mean of ``count`` selected values."""
    dtype = jnp.result_type(float)
    return selected.astype(dtype) / jnp.asarray(count).astype(dtype)


def average(weights: Array, x: PyTree) -> PyTree:
    """Returns the weighted mean of leaves ``[S, ...]``; zeros if all weights are 0."""
    total = weights.sum()
    return weighted_sum(weights / jnp.where(total > 0, total, 1), x)


def length(x: PyTree) -> Array:
    """Returns the norm over all leaves, in JAX's default precision; see ``tree.safe_norm``."""
    return tree.safe_norm(jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(float)), x))


def squared_norm(x: PyTree) -> Array:
    """Returns the squared norm over all leaves, in JAX's default precision."""
    dtype = jnp.result_type(float)
    leaves = jax.tree.leaves(x)
    return jnp.stack([jnp.square(leaf.astype(dtype)).sum() for leaf in leaves]).sum()


def from_point(points: Points, centre: PyTree) -> Array:
    """Returns the distances of all uploads from a point, ``[S]``; 0 where not finite."""

    def distance(upload: Upload) -> Array:
        return length(jax.tree.map(jnp.subtract, upload, centre))

    return jnp.where(points.finite, jax.vmap(distance)(points.x), 0)


def squared_distances(points: Points) -> Array:
    """Returns the squared distances of all pairs, ``[S, S]``; infinity where one is not finite.

    They are norms of differences: inner products would lose the digits of small distances.  Squares
    beyond the range of the dtype (above 1e38 in single precision) are infinity, so their uploads
    come last.
    """

    def row(upload: Upload) -> Array:  # one after the other, in the memory of one stack
        def squared(other: Upload) -> Array:
            return squared_norm(jax.tree.map(jnp.subtract, other, upload))

        return jax.vmap(squared)(points.x)

    pairs = points.finite[:, None] & points.finite
    return jnp.where(pairs, jax.lax.map(row, points.x), jnp.inf)


def ranks(values: Array, among: Array) -> Array:
    """Returns the position of every value in ascending order, along the last axis; ties by index.

    Args:
        values: ``[..., S]``.
        among: ``[S]`` bool, the values that count; the others come after them.
    """
    order = jnp.lexsort((values, jnp.broadcast_to(~among, values.shape)))
    return jnp.argsort(order, stable=True)


def ascending(x: Array) -> Array:
    """Returns ``x`` sorted along its first axis.

    A bitonic network of minima and maxima, several times faster than a sort of short columns.

    References:
        Batcher, "Sorting Networks and Their Applications", 1968.
    """
    # On a CPU, XLA's sort of columns of 20 to 100 uploads takes 4 to 15 times as long.
    count, rest = x.shape[0], x.shape[1:]
    size = 1 << (count - 1).bit_length()
    x = jnp.concatenate([x, jnp.full((size - count, *rest), jnp.inf, x.dtype)])
    block = 2  # rows that are in order after the stages below
    while block <= size:
        halves = x.reshape(size // block, 2, block // 2, *rest)
        low, high = halves[:, 0], halves[:, 1, ::-1]
        merged = [jnp.minimum(low, high), jnp.maximum(low, high)[:, ::-1]]
        x = jnp.stack(merged, axis=1).reshape(size, *rest)
        step = block // 4
        while step:
            pairs = x.reshape(size // (2 * step), 2, step, *rest)
            merged = [pairs.min(axis=1), pairs.max(axis=1)]
            x = jnp.stack(merged, axis=1).reshape(size, *rest)
            step //= 2
        block *= 2
    return x[:count]
