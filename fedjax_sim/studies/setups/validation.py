"""JSON files that are validated: one line names the file, the key and what was expected."""

import dataclasses
import functools
import json
import pathlib
import typing
from typing import Any

from fedjax_sim.checks import did_you_mean
from fedjax_sim.runs import FolderError
from fedjax_sim.studies.setups import fields

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
    name = ".".join(map(str, _without_kinds(kind, error["loc"]))) or "the file"
    if error["type"] in ("missing", "missing_argument"):
        return f" lacks {name}"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f" has the unknown key {name}{_suggestion(kind, error['loc'])}"
    if error["type"] == "union_tag_not_found":
        return f" lacks {name}.kind"
    if error["type"] == "union_tag_invalid":
        kinds = error["ctx"]
        return f": {name}.kind is {kinds['tag']!r}; expected one of {kinds['expected_tags']}"
    expected = _EXPECTED.get(error["type"]) or error.get("ctx", {}).get("expected")
    expected = expected or error["msg"][0].lower() + error["msg"][1:]
    value = json.dumps(error["input"], default=repr)
    return f": {name} is {value[:80]}; expected {expected}"


def _without_kinds(kind: Any, where: tuple) -> tuple:
    """Returns the place of an error without the kinds of choices, which are no keys of the file."""
    place: tuple = ()
    choice = False
    for key in where:
        if not choice:
            place = (*place, key)
        field = None if choice else _fields(kind).get(key)
        if choice:
            kind = next((k for k in kind if fields.kind_of(k) == key), None)
            choice = False
        elif field is None:
            kind = None
        else:
            choice = len(field.alternatives) > 1
            kind = field.alternatives if choice else next(iter(field.alternatives), None)
    return place


def _fields(kind: Any) -> dict[str, fields.Field]:
    if not dataclasses.is_dataclass(kind):
        return {}
    return {field.name: field for field in fields.fields_of(typing.cast(type, kind))}


def _suggestion(kind: Any, where: tuple) -> str:
    """Returns the known key that is most like an unknown one, as a question."""
    for key in where[:-1]:
        if isinstance(kind, tuple):
            kind = next((k for k in kind if fields.kind_of(k) == key), None)
        elif (field := _fields(kind).get(key)) is not None:
            several = len(field.alternatives) > 1
            kind = field.alternatives if several else next(iter(field.alternatives), None)
    return did_you_mean(where[-1], list(_fields(kind)))
