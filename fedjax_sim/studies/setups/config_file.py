"""Options as JSON: the files ``config.json`` that runs and sweeps write, read strictly.

Of a file that is not as expected one line names the key and what was expected.
"""

import dataclasses
import functools
import json
import math
import pathlib
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pydantic

from fedjax_sim.checks import did_you_mean
from fedjax_sim.runs import FolderError, is_sealed, read_json
from fedjax_sim.studies.setups.fields import (
    EXTENSIBLE,
    FREE,
    Field,
    fields_of,
    flat,
    kind_of,
    replaced,
)
from fedjax_sim.studies.setups.privacy import NoPrivacy, Privacy
from fedjax_sim.studies.setups.run import Run
from fedjax_sim.studies.setups.settings import HyperParameters
from fedjax_sim.studies.setups.study import Study, shown_settings


@dataclasses.dataclass(frozen=True)
class SavedData:
    """The part of ``config.json`` on the examples of a model."""

    shape: tuple[int, ...] | None = None  # of one example
    classes: int | None = None
    dtype: str = "float32"
    class_names: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class SavedModel:
    """The part of ``config.json`` on the model, whose name is never auto."""

    name: str | None = None


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """The parts of a comparison's ``config.json`` that are read again."""

    config: Run
    algorithms: dict[str, HyperParameters]  # as resolved
    own: tuple[str, ...] = ()  # names of the parts that are a study module's
    privacy: Privacy = NoPrivacy()  # with its noise
    data: SavedData = SavedData()
    model: SavedModel = SavedModel()


class Record(NamedTuple):
    """The options of a comparison as JSON values."""

    config: dict[str, Any]  # all of them, by group
    settings: dict[str, Any]  # those that count, by name, for tables and figures
    fixed: dict[str, Any]  # those on which results depend, by name
    identity: dict[str, Any]  # the same with the noise of a target, without the extensible ones
    privacy: dict[str, Any]  # with that noise
    own: tuple[str, ...]  # names of the parts that are a study module's


def record_of(study: Study, privacy: Privacy) -> Record:
    """Returns the record of a comparison, whose privacy has its noise."""
    run, own = study.options, study.own_parts
    settings = as_json(shown_settings(study, run))
    known = fixed_values(dataclasses.replace(run, privacy=privacy))
    identity = {name: value for name, value in known.items() if name not in EXTENSIBLE}
    return Record(to_json(run), settings, fixed_values(run), identity, to_json(privacy), own)


def to_json(options: Any) -> dict[str, Any]:
    """Returns options as JSON values."""
    return as_json(_adapter(type(options)).dump_python(options, mode="json"))


@functools.cache
def _adapter(kind: Any) -> pydantic.TypeAdapter:
    return pydantic.TypeAdapter(kind)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns a text for every value that differs, among the names that both have."""
    return [
        f"{name} is {value!r} there and {new[name]!r} here"
        for name, value in old.items()
        if name in new and new[name] != value
    ]


def all_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns a text for every value that differs, and for every name that only one has."""
    return differences(old, new) + [
        f"{name} is given {'here' if name in new else 'there'} only"
        for name in sorted(old.keys() ^ new.keys())
    ]


def fixed_values(run: Run) -> dict[str, Any]:
    """Returns the options on which results depend, by name, as JSON values.

    Algorithms and hyper-parameters are not among them; they are compared as resolved.
    """
    values = {name: value for name, value in flat(run).items() if name not in FREE}
    # JSON has no infinity, and null would not say in a message what is infinite.
    return as_json({name: "inf" if x == math.inf else x for name, x in values.items()})


def read_saved(path: pathlib.Path) -> SavedRun:
    """Returns the options and the resolved hyper-parameters of a comparison.

    Options that the file lacks have their defaults.
    """
    members = members_of(path)
    if "sweep" in members:
        raise FolderError(f"{path} is the file of a sweep; expected one that fedjax-sim run wrote")
    if "tuning" in members:
        raise FolderError(f"{path} is the file of a tuning; expected the best.json beside it")
    return validated(SavedRun, path, None if not members else json.dumps(members).encode())


def read(path: str | pathlib.Path) -> Run:
    """Returns the options in a comparison's ``config.json``, hyper-parameters as resolved.

    Options for all algorithms remain, for algorithms that the file does not have.
    """
    path = pathlib.Path(path)
    saved = read_saved(path)
    refuse_own(path, saved.own)
    names = saved.config.algorithms.algorithms
    missing = [name for name in names if name not in saved.algorithms]
    if missing:
        raise FolderError(f"{path} lacks algorithms.{missing[0]}")
    run = replaced(saved.config, "hyper", {name: dict(saved.algorithms[name]) for name in names})
    return dataclasses.replace(run, privacy=saved.privacy)


def refuse_own(path: pathlib.Path, own: tuple[str, ...]) -> None:
    """Refuses a file whose results have parts of a study module, which it does not name."""
    if own:
        raise FolderError(
            f"{path} has {', '.join(own)} of a study module, and a file names no code; expected "
            "the study module in place of the file"
        )


def members_of(path: pathlib.Path) -> dict[str, Any]:
    """Returns the members of a JSON object; none without one."""
    advice = "restore it from a copy, or remove its member sha256 to use it as it is"
    content = path.read_bytes() if path.is_file() else b""
    if is_sealed(content):
        return read_json(path, advice)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def as_json(value: Any) -> Any:
    """Returns JSON values: paths as text, tuples as lists, NaN and infinities as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(entry) for entry in value]
    if isinstance(value, pathlib.PurePath):
        return value.as_posix()
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


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
    try:
        content = path.read_bytes() if content is None else content
        return _adapter(kind).validate_json(content, strict=True)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror or error}") from error
    except pydantic.ValidationError as error:
        raise FolderError(f"{path}{_problem(kind, error.errors()[0])}") from None


def _problem(kind: Any, error: Any) -> str:
    if error["type"] == "json_invalid":
        return f" is no valid JSON: {error['ctx']['error']}"
    name = ".".join(map(str, _place(kind, error["loc"])[0])) or "the file"
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


def _place(kind: Any, where: tuple) -> tuple[tuple, Any]:
    """Returns a place without the kinds of choices, which are no keys of a file, and its type.

    Several types, if the place is a choice; None, if it is not of a group.
    """
    place: tuple = ()
    for key in where:
        if isinstance(kind, tuple):
            kind = next((k for k in kind if kind_of(k) == key), None)
            continue
        place = (*place, key)
        field = _fields(kind).get(key)
        kinds = () if field is None else field.alternatives
        kind = kinds if len(kinds) > 1 else next(iter(kinds), None)
    return place, kind


def _fields(kind: Any) -> dict[str, Field]:
    if not dataclasses.is_dataclass(kind):
        return {}
    return {field.name: field for field in fields_of(typing.cast(type, kind))}


def _suggestion(kind: Any, where: tuple) -> str:
    """Returns the known key that is most like an unknown one, as a question."""
    return did_you_mean(where[-1], list(_fields(_place(kind, where[:-1])[1])))
