"""Partitions of a model's leaves: trainable ones, frozen ones, running statistics.

A part of a model has the structure of the model with ``None`` instead of the leaves that do not
belong to it.  ``None`` is a pytree without leaves, so every tree function applies to a part, and
the paths of its leaves are those of the model.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax

from fedjax_sim.types import Params, PyTree

Path: TypeAlias = tuple[str, ...]  # keys from the root to a leaf, for example ("dense1", "kernel")
# True for the leaves that belong to a part. Filters of flax (nnx.PathContains, nnx.Not, nnx.Any)
# are such predicates.
Where: TypeAlias = Callable[[Path, Any], bool]


def split(params: Params, where: Where) -> tuple[Params, Params]:
    """Returns the leaves that a predicate selects, and all others.

    Args:
        params: any pytree.
        where: ``(path, leaf) -> bool``; the path is a tuple of strings.

    Raises:
        ValueError: ``where`` is not callable.

    Example:
        >>> model = {"body": {"w": 1.0, "b": 2.0}, "head": {"w": 3.0}}
        >>> split(model, lambda path, leaf: path[0] == "head")
        ({'body': {'b': None, 'w': None}, 'head': {'w': 3.0}}, \
{'body': {'b': 2.0, 'w': 1.0}, 'head': {'w': None}})
    """
    if not callable(where):
        raise ValueError(
            f"where is {where!r}; expected a predicate (path, leaf) -> bool, for example "
            "lambda path, leaf: path[0] == 'body', or nnx.PathContains('body')"
        )
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    selected = [bool(where(names(path), leaf)) for path, leaf in leaves]
    return tuple(  # pyright: ignore[reportReturnType]
        structure.unflatten(
            [
                leaf if mine == part else None
                for mine, (_, leaf) in zip(selected, leaves, strict=True)
            ]
        )
        for part in (True, False)
    )


def join(part: PyTree, other: PyTree) -> Params:
    """Returns the model of which :func:`split` returned the two parts.

    Example:
        >>> join({"w": 1.0, "b": None}, {"w": None, "b": 2.0})
        {'b': 2.0, 'w': 1.0}
    """
    return jax.tree.map(lambda a, b: b if a is None else a, part, other, is_leaf=_is_none)


def without(params: Params, part: PyTree) -> Params:
    """Returns the leaves of a model that are not leaves of a part.

    Example:
        >>> without({"w": 1.0, "b": 2.0}, {"w": 3.0, "b": None})
        {'b': 2.0, 'w': None}
    """
    return jax.tree.map(lambda a, b: b if a is None else None, part, params, is_leaf=_is_none)


def names(path: tuple[Any, ...]) -> Path:
    """Returns the strings of one of JAX's key paths.

    Example:
        >>> [(path, _)] = jax.tree_util.tree_leaves_with_path({"layers": [1.0]})
        >>> names(path)
        ('layers', '0')
    """
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _is_none(leaf: Any) -> bool:
    return leaf is None
