"""Groups of options: frozen dataclasses, unions of them, and ranges as annotations.

A group is a frozen dataclass whose fields have a docstring (the text in ``--help``), a default and,
where the type does not say it, a :class:`Range`.  A choice is a union of groups, each with a field
``kind`` that names it.  The fields of a group that is :data:`OPEN` have names of their own, as
``rounds``; those of other groups have the group's name before theirs, as ``privacy.noise``.
"""

import dataclasses
import functools
import math
import pathlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import pydantic

from fedjax_sim.checks import INT32_MAX, check_known, did_you_mean

Group = TypeVar("Group")
Class = TypeVar("Class", bound=type)
OPEN = "open"  # annotation of a group whose fields have names of their own
HIDDEN = "hidden"  # annotation of a field that only files and programs set
# Options that may differ between two calls on one output folder, because no result depends on them
# or because algorithms and hyper-parameters are compared by their resolved values.
FREE = {
    "output", "data_dir", "algorithms", "lr", "server_lr", "lr_decay", "clip", "weight_decay",
    "tuning_steps", "tuning_lr", "hyper", "rates", "target_accuracy", "on_divergence",
    "examples_memory", "states", "measured", "accept_changed_code",
}  # fmt: skip
# Options that a later call on the same output folder may increase, to extend the run.
EXTENSIBLE = {"rounds"}
MOST_GIGABYTES = 9e9  # a count of bytes has 63 bits


@typing.dataclass_transform(frozen_default=True)
def group(kind: Class) -> Class:
    """Returns a group of options as a frozen dataclass; files may have no other keys."""
    setattr(kind, "__pydantic_config__", {"extra": "forbid"})  # noqa: B010
    return dataclasses.dataclass(frozen=True)(kind)


class Range(NamedTuple):
    """Values that a field admits."""

    expected: str  # as messages say it
    holds: Callable[[Any], bool]


def _integer(low: int, high: int = INT32_MAX) -> Range:
    def holds(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Range(f"an integer of at least {low} and at most {high}", holds)


def _number(expected: str, holds: Callable[[float], bool]) -> Range:
    return Range(expected, lambda x: isinstance(x, int | float) and math.isfinite(x) and holds(x))


Count = Annotated[int, _integer(1)]
Index = Annotated[int, _integer(0)]
Seed = Annotated[int, _integer(0, 2**32 - 1)]  # jax.random.key takes seeds modulo 2^32
Positive = Annotated[float, _number("a positive number", lambda x: x > 0)]
NotNegative = Annotated[float, _number("a number of at least 0", lambda x: x >= 0)]
# JSON has no infinity, so files have null for it.
Concentration = Annotated[
    float,
    pydantic.BeforeValidator(lambda x: math.inf if x is None else x),
    Range("a positive number", lambda x: x > 0),
]
Gigabytes = Annotated[
    float, _number(f"a positive number of at most {MOST_GIGABYTES:g}", lambda x: 0 < x <= 9e9)
]
Probability = Annotated[float, _number("a number in [0, 1]", lambda x: 0 <= x <= 1)]
PositiveProbability = Annotated[float, _number("a number in (0, 1]", lambda x: 0 < x <= 1)]
Fraction = Annotated[float, _number("a number in [0, 1)", lambda x: 0 <= x < 1)]
Inside = Annotated[float, _number("a number in (0, 1)", lambda x: 0 < x < 1)]
Finite = Annotated[float, _number("a finite number", lambda x: True)]


class Field(NamedTuple):
    """A field of a group."""

    name: str
    hint: Any  # without annotations
    marks: tuple[Any, ...]  # its annotations
    alternatives: tuple[type, ...]  # groups that it may hold; none for a value

    @property
    def is_open(self) -> bool:
        """True for a group whose fields have names of their own."""
        return OPEN in self.marks

    @property
    def has_name(self) -> bool:
        """False for an open group without alternatives, of which only the fields have names."""
        return len(self.alternatives) != 1 or not self.is_open


@functools.cache
def without(options: Any, *names: str) -> dict[str, Any]:
    """Returns the values of a group by name, without some of them."""
    return {name: value for name, value in vars(options).items() if name not in names}


def fields_of(kind: type) -> tuple[Field, ...]:
    """Returns the fields of a group, without ``kind``."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple(
        _field(entry.name, hints[entry.name])
        for entry in dataclasses.fields(kind)
        if entry.name != "kind"
    )


def _field(name: str, hint: Any) -> Field:
    marks: tuple[Any, ...] = ()
    while typing.get_origin(hint) is Annotated:
        hint, *own = typing.get_args(hint)
        marks = (*marks, *own)
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:  # the range of X | None is that of X
        if typing.get_origin(option) is Annotated:
            marks = (*marks, *typing.get_args(option)[1:])
    groups = tuple(option for option in options if dataclasses.is_dataclass(option))
    return Field(name, hint, marks, typing.cast(tuple[type, ...], groups))


def _is_union(hint: Any) -> bool:
    return isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union


def kind_of(group: Any) -> str | None:
    """Returns the name of a choice; None for a group without alternatives."""
    return getattr(group, "kind", None)


def flat(group: Any, before: str = "") -> dict[str, Any]:
    """Returns all values of a group by their names; a choice has its kind as a value."""
    values: dict[str, Any] = {}
    for field in fields_of(type(group)):
        value, name = getattr(group, field.name), before + field.name
        if not field.alternatives:
            values[name] = value
            continue
        if len(field.alternatives) > 1:
            values[name] = kind_of(value)
        values |= flat(value, "" if field.is_open else f"{name}.")
    return values


def names_of(kind: type, before: str = "") -> dict[str, Field]:
    """Returns the fields of a group and of all its alternatives by their names."""
    names: dict[str, Field] = {}
    for field in fields_of(kind):
        for name, own in names_in(kind, field, before).items():
            names.setdefault(name, own)
    return names


def names_in(kind: type, field: Field, before: str = "") -> dict[str, Field]:
    """Returns one field of a group and the fields of its alternatives by their names."""
    name, names = before + field.name, dict[str, Field]()
    if len(field.alternatives) != 1:
        names[name] = field
    for group in field.alternatives:
        if group is not kind:  # rules that mix uploads have rules
            names |= names_of(group, "" if field.is_open else f"{name}.") | names
    return names


def replaced(group: Group, name: str, value: Any) -> Group:
    """Returns a group with another value, which is not checked."""
    changed = _replaced(group, name, value)
    if changed is not None:
        return changed
    every = names_of(type(group))
    if name in every:
        choices = sorted(having(type(group), name))
        raise ValueError(f"{name} is {value!r}; expected {' or '.join(choices)} with it")
    raise ValueError(f"{name} is no option{did_you_mean(name, every)}")


def _replaced(group: Any, name: str, value: Any) -> Any:
    """Returns the changed group; None if it does not have the name."""
    for field in fields_of(type(group)):
        own = getattr(group, field.name)
        if field.name == name and field.has_name:
            new = _chosen(field, value) if field.alternatives else _as_path(field, value)
        elif not field.alternatives:
            continue
        elif field.is_open:
            new = _replaced(own, name, value)
        elif name.startswith(f"{field.name}."):
            new = _replaced(own, name.removeprefix(f"{field.name}."), value)
        else:
            continue
        if new is not None or (field.name == name and field.has_name):
            return dataclasses.replace(group, **{field.name: new})
    return None


def _as_path(field: Field, value: Any) -> Any:
    """Returns text as a path where the field takes one; other values as they are."""
    return (
        pathlib.Path(value) if isinstance(value, str) and pathlib.Path in _kinds(field) else value
    )


def _kinds(field: Field) -> list[Any]:
    """Returns the types of a value, without None; of tuple[str, ...] it is tuple."""
    options = typing.get_args(field.hint) if _is_union(field.hint) else (field.hint,)
    kinds = [typing.get_origin(option) or option for option in options]
    return [kind for kind in kinds if kind is not type(None)]


def _chosen(field: Field, value: Any) -> Any:
    """Returns the alternative of a kind with its defaults; other values as they are."""
    if not isinstance(value, str):
        return value
    kinds = {str(kind_of(group)): group for group in field.alternatives}
    check_known(kinds, **{field.name: value})
    chosen = kinds[value]
    for entry in dataclasses.fields(chosen):
        if entry.default is entry.default_factory is dataclasses.MISSING:
            raise ValueError(f"{field.name} is {value!r}; expected {entry.name} with it")
    return chosen()


def having(kind: type, name: str, before: str = "") -> Iterator[str]:
    """Yields the choices, as ``partition:shards``, that have a name."""
    for field in fields_of(kind):
        path = before + field.name
        for group in field.alternatives:
            if group is kind:
                continue
            inner = "" if field.is_open else f"{path}."
            if len(field.alternatives) > 1 and name in {
                inner + own.name for own in fields_of(group)
            }:
                yield f"{path}:{kind_of(group)}"
            yield from having(group, name, inner)


def check(group: Any, before: str = "") -> None:
    """Refuses values outside of their ranges."""
    for field in fields_of(type(group)):
        _check_field(before + field.name, field, getattr(group, field.name))


def _check_field(name: str, field: Field, value: Any) -> None:
    if value is None and _admits_none(field.hint):
        return
    if field.alternatives:
        if type(value) not in field.alternatives:
            kinds = [kind_of(group) or group.__name__ for group in field.alternatives]
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(kinds)}")
        check(value, "" if field.is_open else f"{name}.")
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            _check_field(f"{name}.{key}", _entry(field), entry)
    elif isinstance(value, tuple):
        for entry in value:
            _check_field(name, _entry(field), entry)
    else:
        _check_value(name, field, value)


def _entry(field: Field) -> Field:
    """Returns the field of the entries of a tuple, or of the values of a dict."""
    arguments = [hint for hint in typing.get_args(field.hint) if hint is not Ellipsis]
    return _field(field.name, arguments[-1] if arguments else Any)


def _admits_none(hint: Any) -> bool:
    return _is_union(hint) and type(None) in typing.get_args(hint)


_EXPECTED = {
    bool: "True or False",
    dict: "a dictionary",
    tuple: "a tuple",
    str: "text",
    pathlib.Path: "a path",
}


def _check_value(name: str, field: Field, value: Any) -> None:
    options = typing.get_args(field.hint) if _is_union(field.hint) else (field.hint,)
    literals = [x for o in options if typing.get_origin(o) is Literal for x in typing.get_args(o)]
    if value in literals:
        return
    kinds = _kinds(field)
    if len(kinds) == 1 and kinds[0] in _EXPECTED and not isinstance(value, kinds[0]):
        raise ValueError(f"{name} is {value!r}; expected {_EXPECTED[kinds[0]]}")
    for mark in field.marks:
        if isinstance(mark, Range) and not _holds(mark, value):
            others = "".join(f" or {literal}" for literal in literals)
            raise ValueError(f"{name} is {value!r}; expected {_expected(mark, value)}{others}")
    if literals and len(literals) == sum(len(typing.get_args(o)) for o in options):
        raise ValueError(
            f"{name} is {value!r}; expected one of {', '.join(map(str, literals))}"
            f"{did_you_mean(str(value), list(map(str, literals)))}"
        )


def _holds(limits: Range, value: Any) -> bool:
    try:
        return bool(limits.holds(value))
    except TypeError:
        return False


def _expected(limits: Range, value: Any) -> str:
    """Returns what was expected, of two limits the one that the value passes."""
    low, both, high = limits.expected.partition(" and at most ")
    if not both:
        return limits.expected
    kind = low.partition(" of at least ")[0]
    too_large = isinstance(value, int) and value > 1
    return f"{kind} of at most {high}" if too_large else low
