"""Tree arithmetic that :mod:`optax.tree` lacks, or that it does for leaves of other shapes.

Sums of trees are of equal structures and shapes: broadcasting would make a step of every parameter
from a single number, and the result would have the shape that a server expects.

Scalars adopt the dtype of the leaf that they are combined with.  With optax's functions a float32
learning rate swept over a bfloat16 or float64 model would change the dtype of the loop
carry (or fail under strict promotion).
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import optax.tree
from jax import Array
from optax.tree import norm

from fedjax_sim.tree.units import safe_norm
from fedjax_sim.types import PyTree, Scalar

_BEFORE = 40  # characters of a structure in a message, before what differs


def _as(leaf: Array, scalar: Scalar) -> Array:
    return jnp.asarray(scalar).astype(leaf.dtype)


def cast_like(x: PyTree, other: PyTree) -> PyTree:
    """Returns ``x`` in the dtypes of another tree; leaves of equal dtypes are not touched.

    Example:
        >>> cast_like(jnp.ones(2), jnp.zeros(2, jnp.bfloat16)).dtype
        dtype(bfloat16)
    """
    return jax.tree.map(lambda a, b: a if a.dtype == b.dtype else a.astype(b.dtype), x, other)


def wide(x: PyTree) -> PyTree:
    """Returns ``x`` with its floating leaves in float32, or as they are if they have more bits.

    Example:
        >>> wide(jnp.ones(2, jnp.bfloat16)).dtype
        dtype('float32')
    """

    def at_least_float32(leaf: Array) -> Array:
        half = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4
        return leaf.astype(jnp.float32) if half else leaf

    return jax.tree.map(at_least_float32, x)


def scale(scalar: Scalar, x: PyTree) -> PyTree:
    """Returns ``scalar * x``.

    Example:
        >>> scale(2, {"w": jnp.ones(2)})["w"].tolist()
        [2.0, 2.0]
    """
    return jax.tree.map(lambda leaf: _as(leaf, scalar) * leaf, x)


def add(x: PyTree, *others: PyTree) -> PyTree:
    """Returns the sum of trees of equal structures and shapes.

    Raises:
        ValueError: leaves of other shapes.

    Example:
        >>> add({"w": jnp.ones(2)}, {"w": jnp.ones(2)})["w"].tolist()
        [2.0, 2.0]
    """
    for other in others:
        check_alike("y", other, x, "x")
    return optax.tree.add(x, *others) if others else x


def sub(x: PyTree, y: PyTree) -> PyTree:
    """Returns ``x - y``, of trees of equal structures and shapes.

    Raises:
        ValueError: leaves of other shapes.

    Example:
        >>> sub({"w": jnp.ones(2)}, {"w": jnp.ones(2)})["w"].tolist()
        [0.0, 0.0]
        >>> sub(jnp.ones(2), jnp.ones(1))
        Traceback (most recent call last):
        ...
        ValueError: y has shape (1,); expected (2,), as x
    """
    check_alike("y", y, x, "x")
    return optax.tree.sub(x, y)


def check_alike(name: str, found: PyTree, expected: PyTree, other: str) -> None:
    """Refuses a tree of another structure or other shapes than another one's.

    Leaves of other shapes would be broadcast.

    Example:
        >>> check_alike("update", {"w": jnp.ones(1)}, {"w": jnp.ones(2)}, "the model")
        Traceback (most recent call last):
        ...
        ValueError: update['w'] has shape (1,); expected (2,), as the model
    """
    structures = [jax.tree.structure(x) for x in (found, expected)]
    if structures[0] != structures[1]:
        first, second = _where_different(*(str(x).removeprefix("PyTreeDef") for x in structures))
        raise ValueError(f"{name} has the structure {first}; expected {second}, as {other}")
    leaves = jax.tree_util.tree_leaves_with_path(found)
    for (path, leaf), like in zip(leaves, jax.tree.leaves(expected), strict=True):
        if jnp.shape(leaf) != jnp.shape(like):
            raise ValueError(
                f"{name}{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}; expected "
                f"{jnp.shape(like)}, as {other}"
            )


def _where_different(*texts: str) -> list[str]:
    """Returns the parts of texts where they begin to differ, with what is before it."""
    same = itertools.takewhile(
        lambda characters: len(set(characters)) == 1, zip(*texts, strict=False)
    )
    begin = max(0, sum(1 for _ in same) - _BEFORE)
    end = begin + 2 * _BEFORE
    return ["..." * (begin > 0) + text[begin:end] + "..." * (len(text) > end) for text in texts]


def add_scale(x: PyTree, scalar: Scalar, y: PyTree) -> PyTree:
    """Returns ``x + scalar * y``, of trees of equal structures and shapes.

    Raises:
        ValueError: leaves of other shapes.

    Example:
        >>> add_scale(jnp.ones(2), -0.5, jnp.ones(2)).tolist()
        [0.5, 0.5]
    """
    check_alike("y", y, x, "x")
    return jax.tree.map(lambda a, b: a + _as(a, scalar) * b, x, y)


def divide(x: PyTree, scalar: Scalar) -> PyTree:
    """Returns ``x / scalar``; an integer scalar is converted to the leaf's precision first.

    Example:
        >>> divide(jnp.ones(2), 4).tolist()
        [0.25, 0.25]
    """
    return jax.tree.map(lambda leaf: leaf / _as(leaf, scalar), x)


def over_norm(scalar: Scalar, x: PyTree, eps: Scalar = 0.0) -> Array:
    """Returns ``scalar / (||x|| + eps)`` with the global norm, in at least single precision.

    A norm of exactly 0 counts as 1e-12, so the result is finite; the derivative at x = 0 is 0, not
    NaN.  If x has leaves in float16, the result is at most the largest number of this type.  In
    single precision the squares limit norms: those below 1e-23 count as 0, and above 1.8e19 the
    result is 0.  :func:`clip_factor` has no such limits, for one more pass over x.

    Example:
        >>> float(over_norm(10.0, {"w": jnp.array([3.0, 4.0])}))
        2.0
        >>> float(over_norm(1e-12, jnp.zeros(3)))
        1.0
    """
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(x)}
    # In float16 squares above 65,504 are infinite, and 1e-12 is 0.
    squared = norm(wide(x), squared=True)
    positive = squared > 0
    safe = jnp.where(positive, jnp.sqrt(jnp.where(positive, squared, 1.0)), 1e-12)
    result = _as(safe, scalar) / (safe + _as(safe, eps))
    half = jnp.dtype(jnp.float16)
    return jnp.minimum(result, float(jnp.finfo(half).max)) if half in dtypes else result


def clip_factor(bound: Scalar, x: PyTree, eps: Scalar = 0.0) -> Array:
    r"""Returns :math:`\min(1, c / (\|x\| + \epsilon))` with the global norm, for any finite x.

    Example:
        >>> round(float(clip_factor(10.0, jnp.array([3e25, 4e25])) * 5e25), 4)
        10.0
    """
    length = safe_norm(x)
    length = jnp.where(length > 0, length, 1e-12)
    return jnp.minimum(1, _as(length, bound) / (length + _as(length, eps)))


def take(x: PyTree, index: Array) -> PyTree:
    """Returns ``x[index]`` of every leaf; the index must be in bounds.

    Example:
        >>> take({"w": jnp.arange(4)}, jnp.array([3, 0]))["w"].tolist()
        [3, 0]
    """
    return jax.tree.map(lambda leaf: leaf.at[index].get(mode="promise_in_bounds"), x)


def vdot(x: PyTree, y: PyTree) -> Array:
    """The inner product ``<x, y>``, summed over leaves.

    Example:
        >>> float(vdot({"w": jnp.ones(2)}, {"w": jnp.array([3.0, 4.0])}))
        7.0
    """
    return jnp.asarray(optax.tree.vdot(x, y))


def where(condition: Array | bool, x: PyTree, y: PyTree) -> PyTree:
    """Returns the leaves of ``x`` if a condition holds, those of ``y`` otherwise.

    Leaves that both trees share, such as frozen parameters, are passed on.

    Raises:
        ValueError: leaves of other shapes.

    Example:
        >>> shared = jnp.ones(2)
        >>> chosen = where(jnp.array(False), {"w": 1, "frozen": shared}, {"w": 2, "frozen": shared})
        >>> int(chosen["w"]), chosen["frozen"] is shared
        (2, True)
    """
    check_alike("y", y, x, "x")
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), x, y)


def all_finite(x: PyTree) -> Array:
    """Returns a scalar bool: no floating leaf contains NaN or Inf.

    Example:
        >>> bool(all_finite({"w": jnp.ones(2), "n": jnp.arange(3)}))
        True
    """
    leaves = [leaf for leaf in jax.tree.leaves(x) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves] or [jnp.array(True)]))
