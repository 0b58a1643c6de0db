"""Partitions of a model's leaves: trainable ones, frozen ones, running statistics.

A part of a model has the structure of the model with ``None`` instead of the leaves that do not
belong to it.  ``None`` is a pytree without leaves, so every tree function applies to a part, and
the paths of its leaves are those of the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

from fedjax_sim.types import Params, PyTree, shown

Path: TypeAlias = tuple[str, ...]  # keys from the root to a leaf, for example ("dense1", "kernel")
# True for the leaves that belong to a part. Filters of flax (nnx.PathContains, nnx.Not, nnx.Any)
# are such predicates.
Where: TypeAlias = Callable[[Path, Any], bool]


@shown
class OfModel(NamedTuple):
    """Selection of leaves that depends on the whole model.

    ``find(params)`` returns the predicate.  Every function and wrapper that takes a predicate takes
    such a selection, too.
    """

    find: Callable[[Params], Where]


Selection: TypeAlias = Where | OfModel


def split(params: Params, where: Selection) -> tuple[Params, Params]:
    """Returns the leaves that a predicate selects, and all others.

    Args:
        params: any pytree.
        where: ``(path, leaf) -> bool``; the path is a tuple of strings.  Or a selection such as
            :data:`last_layer`.

    Raises:
        ValueError: ``where`` is no predicate, or the selection finds no leaves.

    Example:
        >>> model = {"body": {"w": 1.0, "b": 2.0}, "head": {"w": 3.0}}
        >>> split(model, lambda path, leaf: path[0] == "head")
        ({'body': {'b': None, 'w': None}, 'head': {'w': 3.0}}, \
{'body': {'b': 2.0, 'w': 1.0}, 'head': {'w': None}})
    """
    check_selection(where)
    if isinstance(where, OfModel):
        where = where.find(params)
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    selected = [bool(where(names(path), leaf)) for path, leaf in leaves]
    # Parts keep the structure of the model, so tree functions, predicates of paths and checkpoints
    # apply to them.
    return tuple(  # pyright: ignore[reportReturnType]
        structure.unflatten(
            [
                leaf if mine == part else None
                for mine, (_, leaf) in zip(selected, leaves, strict=True)
            ]
        )
        for part in (True, False)
    )


def split_some(params: Params, where: Selection) -> tuple[Params, Params]:
    """Returns what :func:`split` does, and refuses a predicate that selects no leaves.

    A misspelt name in a predicate would otherwise be silent.  An :class:`OfModel`, which has seen
    the model, may select none, and so may a predicate of leaves that a part does not have.

    Raises:
        ValueError: as :func:`split`; a predicate selects no leaves.

    Example:
        >>> split_some({"body": 1.0, "head": 2.0}, lambda path, leaf: path[0] == "haed")
        Traceback (most recent call last):
        ...
        ValueError: where selects none of the leaves; expected some of body, head
    """
    part, rest = split(params, where)
    whole = not any(map(_is_none, jax.tree.leaves(params, is_leaf=_is_none)))
    if whole and not isinstance(where, OfModel) and not jax.tree.leaves(part):
        raise unexpected("none", params)
    return part, rest


def unexpected(amount: str, params: Params) -> ValueError:
    """Returns the error of a predicate that selects "all" or "none" of a model's leaves.

    Example:
        >>> print(unexpected("all", {"body": 1.0, "head": 2.0}))
        where selects all of the leaves; expected some of body, head
    """
    paths = ["/".join(names(path)) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return ValueError(f"where selects {amount} of the leaves; expected some of {', '.join(paths)}")


def check_selection(where: Any) -> None:
    """Refuses values that select no leaves.

    Raises:
        ValueError: ``where`` is neither a predicate nor an :class:`OfModel`.

    Example:
        >>> check_selection(lambda path, leaf: path[0] == "head")
    """
    if not isinstance(where, OfModel) and not callable(where):
        raise ValueError(
            f"where is {where!r}; expected a predicate (path, leaf) -> bool, for example "
            "lambda path, leaf: path[0] == 'body', or nnx.PathContains('body')"
        )


def others(where: Selection) -> OfModel:
    """Returns the selection of all leaves that another one leaves out.

    Raises:
        ValueError: ``where`` is neither a predicate nor an :class:`OfModel`; with the model, a
            predicate that selects no leaves.

    Example:
        >>> split({"w": 1.0, "b": 2.0}, others(lambda path, leaf: path[0] == "b"))[0]
        {'b': None, 'w': 1.0}
    """
    check_selection(where)
    return OfModel(_Complement(where))


class _Complement(NamedTuple):
    where: Selection

    def __call__(self, params: Params) -> Where:
        split_some(params, self.where)
        where = self.where.find(params) if isinstance(self.where, OfModel) else self.where
        return lambda path, leaf: not where(path, leaf)


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


# ---- selections by the layers of a model

_HEADS = {"classifier", "fc", "head", "logits", "output"}
_NORM = re.compile(r"norm|(^|_)bn(_|\d|$)")
_NORM_LEAVES = {"scale", "bias", "mean", "var"}


def _layers(params: Params) -> dict[Path, set[str]]:
    """Returns the names of the leaves of every layer, by the layer's path."""
    layers: dict[Path, set[str]] = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        *layer, name = names(path) or ("",)
        layers.setdefault(tuple(layer), set()).add(name)
    return layers


def _is_norm(layer: Path, parts: set[str]) -> bool:
    named = bool(layer) and _NORM.search(layer[-1].lower()) is not None
    return parts <= _NORM_LEAVES and (named or bool(parts - {"bias"}))


def _natural(layer: Path) -> list[tuple]:
    """Key that orders names by the numbers in them: dense2 before dense10."""
    return [
        tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)
        for parts in (re.split(r"(\d+)", name) for name in layer)
    ]


def _last_layer(params: Params) -> Where:
    layers = [layer for layer, parts in _layers(params).items() if not _is_norm(layer, parts)]
    heads = [layer for layer in layers if _HEADS & {name.lower() for name in layer}]
    if not layers:
        raise ValueError("params has no layers besides normalisations; expected a last layer")
    last = max(heads or layers, key=_natural)
    return lambda path, leaf: path[:-1] == last


def _normalisation(params: Params) -> Where:
    found = {layer for layer, parts in _layers(params).items() if _is_norm(layer, parts)}
    if not found:
        shown = ", ".join("/".join(layer) or "one layer" for layer in _layers(params))
        raise ValueError(
            f"params has the layers {shown}; expected a normalisation among them: a layer named "
            "norm or bn, or one with a scale and no kernel"
        )
    return lambda path, leaf: path[:-1] in found


last_layer = OfModel(_last_layer)
"""The last layer of a model, its head: a layer inside "head", "classifier", "fc", "logits" or
"output" if there is one, else the last by name, with numbers in their order (dense2, dense10).
"""

normalisation = OfModel(_normalisation)
"""All leaves of normalisation layers (batch, group, layer): scales, biases, running statistics.

A layer counts if its leaves are among scale, bias, mean and var, and it is named norm or bn or has
another leaf than a bias.
"""


def _is_none(leaf: Any) -> bool:
    return leaf is None
