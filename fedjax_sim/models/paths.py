"""Nested dicts from flax's paths."""

from typing import Any

from fedjax_sim.types import Params


def nested(flat: dict[tuple, Any]) -> Params:
    """Returns nested dicts with string keys."""
    # Integer and string keys in one dict cannot be sorted, and checkpoints do not keep integer
    # keys.
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(str(key), {})
        node[str(path[-1])] = value
    return tree


def lookup(params: Params, path: tuple) -> Any:
    """Returns the value at a path of nested dicts."""
    for key in path:
        params = params[str(key)]
    return params


def strings(path: tuple) -> tuple[str, ...]:
    """Returns a path with string keys."""
    return tuple(map(str, path))
