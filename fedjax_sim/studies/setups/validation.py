"""JSON files that are validated: one line names the file, the key and what was expected."""

import dataclasses
import functools
import json
import pathlib
import typing
from typing import Any

from fedjax_sim.checks import did_you_mean
from fedjax_sim.runs import FolderError

# Kinds of errors of pydantic -> what was expected.
_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "text",
    "tuple_type": "a list",
    "dict_type": "an object",
    "dataclass_type": "an object",
    "missing": "a value",
    "missing_argument": "a value",
}


def validated(kind: Any, path: pathlib.Path, content: bytes | None = None) -> Any:
    """Returns the values in a JSON file as a type, such as a dataclass.

    Types are strict: ``"40"``, ``40.0`` and ``true`` are no integers.

    Args:
        kind: the type.
        path: the file.
        content: its content, if it has been read.

    Raises:
        FolderError: the file cannot be read, is no JSON, or has values of other types.

    Example:
        >>> @dataclasses.dataclass
        ... class Point:
        ...     x: int
        >>> validated(Point, pathlib.Path("point.json"), b'{"x": "1"}')
        Traceback (most recent call last):
        fedjax_sim.runs.storage.files.FolderError: point.json: x is "1"; expected an integer
    """
    import pydantic  # slow to import

    try:
        content = path.read_bytes() if content is None else content
        return _adapter(kind).validate_json(content, strict=True)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror or error}") from error
    except pydantic.ValidationError as error:
        raise FolderError(f"{path}{_problem(kind, error.errors()[0])}") from None


@functools.cache
def _adapter(kind: Any) -> Any:
    import pydantic

    return pydantic.TypeAdapter(kind)


def _problem(kind: Any, error: Any) -> str:
    if error["type"] == "json_invalid":
        return f" is no valid JSON: {error['ctx']['error']}"
    name = ".".join(map(str, error["loc"])) or "the file"
    if error["type"] in ("missing", "missing_argument"):
        return f" lacks {name}"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f" has the unknown key {name}{_suggestion(kind, error['loc'])}"
    expected = _EXPECTED.get(error["type"]) or error.get("ctx", {}).get("expected")
    expected = expected or error["msg"][0].lower() + error["msg"][1:]
    value = json.dumps(error["input"], default=repr)
    return f": {name} is {value[:80]}; expected {expected}"


def _suggestion(kind: Any, where: tuple) -> str:
    """Returns the known key that is most like an unknown one, as a question."""
    for key in where[:-1]:
        kind = typing.get_type_hints(kind)[key]
    known = [field.name for field in dataclasses.fields(kind)]
    return did_you_mean(where[-1], known)
