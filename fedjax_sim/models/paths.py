"""Nested dicts from flax's paths."""

from typing import Any

from fedjax_sim.types import Params


def nested(flat: dict[tuple, Any]) -> Params:
    """Returns nested dicts with string keys.

    Integer and string keys in one dict cannot be sorted, and checkpoints do not keep integer keys.

    Example:
        >>> nested({("layers", 0, "bias"): 1.0, ("scale",): 2.0})
        {'layers': {'0': {'bias': 1.0}}, 'scale': 2.0}
    """
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(str(key), {})
        node[str(path[-1])] = value
    return tree


def lookup(params: Params, path: tuple) -> Any:
    """Returns the value at a path of nested dicts.

    Example:
        >>> lookup({"layers": {"0": 1.0}}, ("layers", 0))
        1.0
    """
    for key in path:
        params = params[str(key)]
    return params


def strings(path: tuple) -> tuple[str, ...]:
    """Returns a path with string keys.

    Example:
        >>> strings(("layers", 0))
        ('layers', '0')
    """
    return tuple(map(str, path))
