"""Types of parameters, by their annotations."""

import types
import typing
from collections.abc import Callable
from typing import Any


def annotated_kinds(function: Callable) -> dict[str, set[Any]]:
    """Returns the types of the parameters that have annotations, members of unions one by one.

    Keywords ``**names: Unpack[TypedDict]`` (PEP 692) are parameters of their own.
    """
    try:
        hints = typing.get_type_hints(getattr(function, "func", function))
    except (TypeError, NameError):  # no function, or names that only type checkers import
        return {}
    for name, kind in list(hints.items()):
        if typing.get_origin(kind) is typing.Unpack:
            del hints[name]
            hints |= typing.get_type_hints(typing.get_args(kind)[0])
    return {name: set(_members(kind)) for name, kind in hints.items()}


def _members(kind: Any) -> list[Any]:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return [member for part in typing.get_args(kind) for member in _members(part)]
    if origin is typing.Annotated:
        return _members(typing.get_args(kind)[0])
    if origin is typing.Literal:
        return [type(value) for value in typing.get_args(kind)]
    return [kind]
