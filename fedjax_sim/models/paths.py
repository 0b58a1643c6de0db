"""Nested dicts from flax's paths, and the parameters that a module must have."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict

from fedjax_sim.tree import Path, names
from fedjax_sim.types import Params, PyTree

Shapes = Mapping[Path, tuple[int, ...]]


def nested(flat: dict[tuple, Any]) -> Params:
    """Returns nested dicts with string keys."""
    # Integer and string keys in one dict cannot be sorted, and checkpoints do not keep integer
    # keys.
    return unflatten_dict({strings(path): value for path, value in flat.items()})


def lookup(params: Params, path: tuple) -> Any:
    """Returns the value at a path of nested dicts."""
    for key in path:
        params = params[str(key)]
    return params


def strings(path: tuple) -> tuple[str, ...]:
    """Returns a path with string keys."""
    return tuple(map(str, path))


def shapes_of(params: PyTree) -> Shapes:
    """Returns the shapes of arrays, abstract arrays or kernels with adapters by path."""
    leaves = jax.tree_util.tree_leaves_with_path(params, lambda leaf: hasattr(leaf, "shape"))
    return {names(path): jnp.shape(leaf) for path, leaf in leaves}


def check_params(params: PyTree, expected: Shapes) -> None:
    """Refuses parameters that are not those of a module: other names, other shapes.

    A module would broadcast a bias of one entry, and would ignore leaves that it does not know,
    which clients would send all the same.
    """
    given = shapes_of(params)
    if given == expected:
        return
    lacks, surplus = sorted(expected.keys() - given.keys()), sorted(given.keys() - expected.keys())
    others = [path for path in expected if path in given and given[path] != expected[path]]
    found = [f"lacks {_text(lacks)}"] if lacks else []
    found += [f"has {_text(surplus)}, which the model does not have"] if surplus else []
    found += [
        f"has {'/'.join(path)} of shape {given[path]} instead of {expected[path]}"
        for path in others[:3]
    ]
    raise ValueError(
        f"params {', and '.join(found)}; expected the names and shapes of the model's init(key)"
    )


def _text(paths: list[Path]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join("/".join(path) or "an array without a name" for path in paths[:3]) + more
