"""Arrays as texts: dtypes and shapes, and the values of those that can be read at no cost."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

P = ParamSpec("P")
R = TypeVar("R")

_MOST_BYTES = 2**20  # that a text copies from a device
_MOST_LEAVES = 4  # of a tree, one by one


def dtype_and_shape(array: Any) -> str:
    """Returns "float32[3, 10]" of an array, a tracer or a ShapeDtypeStruct."""
    return f"{array.dtype}{list(array.shape)}"


def is_array(value: Any) -> bool:
    """Returns True for arrays of NumPy and JAX, tracers, and the structures that stand for them."""
    return isinstance(value, (np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct))


def readable(value: Any) -> np.ndarray | None:
    """Returns an array's values; None if it is traced, deleted, elsewhere or large on a device."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return None
    if jnp.issubdtype(value.dtype, jax.dtypes.extended):  # keys
        return None
    if value.is_deleted() or not value.is_fully_addressable or value.nbytes > _MOST_BYTES:
        return None
    return np.asarray(value)


def plain_integer(value: Any) -> Any:
    """Returns one integer of NumPy or JAX as Python's, other values as they are.

    2 and ``np.int64(2)`` are equal, but only the first one takes the type of the array that it is
    multiplied by.
    """
    if not isinstance(value, (np.ndarray, np.generic, jax.Array)) or value.ndim:
        return value
    known = readable(value)
    return value if known is None or known.dtype.kind not in "iu" else known.item()


def plain_number(value: Any) -> Any:
    """Returns one number of NumPy or JAX as Python's: a floating one as its shortest decimal.

    ``np.float32(0.1)`` is 0.1, as it is shown, and not 0.10000000149.
    """
    value = plain_integer(value)
    if not isinstance(value, (np.ndarray, np.generic, jax.Array)) or value.ndim:
        return value
    known = readable(value)
    if known is None or not jnp.issubdtype(known.dtype, np.floating):
        return value
    return float(str(known[()]))


def plain_integers(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function whose counts may be integers of NumPy: they become Python's.

    A count from an array, such as ``labels.max() + 1``, would overflow at the width of its type or
    give the arithmetic with arrays another type.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        plain: Any = {name: plain_integer(value) for name, value in kwargs.items()}
        return cast(Any, function)(*map(plain_integer, args), **plain)

    return call


def tree_text(tree: Any) -> str:
    """Returns the arrays of a pytree: each by its path, or of many the number of their entries."""
    leaves = [(path, x) for path, x in jax.tree_util.tree_leaves_with_path(tree)]
    if not leaves:
        return "no arrays"
    if len(leaves) > _MOST_LEAVES:
        entries = sum(int(np.prod(np.shape(x))) for _, x in leaves)
        dtypes = dict.fromkeys(str(x.dtype) for _, x in leaves if hasattr(x, "dtype"))
        return f"{len(leaves)} arrays of {', '.join(dtypes)}, {entries:,} numbers"
    return ", ".join(f"{_path(path)}{_leaf(x)}" for path, x in leaves)


def _path(path: Any) -> str:
    text = "/".join(str(getattr(part, "key", getattr(part, "name", part))) for part in path)
    return f"{text} " if text else ""


def _leaf(leaf: Any) -> str:
    return dtype_and_shape(leaf) if is_array(leaf) else type(leaf).__name__
