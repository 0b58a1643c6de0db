"""Nested dicts from flax's paths."""

from typing import Any

from flax.traverse_util import unflatten_dict

from fedjax_sim.types import Params


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
