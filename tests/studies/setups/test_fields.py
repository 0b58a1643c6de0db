"""Groups of options: names, replacements, ranges, and the round trip through JSON."""

import dataclasses
import json
import math
import pathlib
from typing import Annotated, Any, Literal

import pydantic
import pytest

from fedjax_sim.studies.setups import fields
from fedjax_sim.studies.setups.config_file import to_json, validated
from fedjax_sim.studies.setups.fields import OPEN, Concentration, Count, Probability, group
from fedjax_sim.studies.setups.presets import PRESETS, options
from fedjax_sim.studies.setups.privacy import Parts
from fedjax_sim.studies.setups.run import Run

# What fields without a default are given, by their names.
VALUES = {
    "table": pathlib.Path("table.csv"), "hub": "uoft-cs/cifar100", "text": pathlib.Path("text.txt"),
    "file": pathlib.Path("trace.csv"), "bounds": {"0": 0.5, "1": 2.0}, "chunk": 3,
}  # fmt: skip


def made(kind: type) -> Any:
    """A group with its defaults, and with a value where there is none."""
    needed = {
        entry.name: VALUES[entry.name]
        for entry in dataclasses.fields(kind)
        if entry.default is entry.default_factory is dataclasses.MISSING
    }
    return kind(**needed)


def choices(kind: type, before: str = "") -> list[tuple[str, type]]:
    """Names of the choices of a group and of its alternatives, with every alternative."""
    found = []
    for field in fields.fields_of(kind):
        path = before + field.name
        for member in field.alternatives:
            inner = "" if field.is_open else f"{path}."
            if len(field.alternatives) > 1:
                found.append((path, member))
            found += choices(member, inner)
    return found


CHOICES = choices(Run)


def with_choice(name: str, member: type) -> Run:
    """The options with an alternative; the choices around it are those that have it."""
    run = Run()
    outer = name.rpartition(".")[0]
    if outer:
        (around, *_) = [
            kind
            for path, kind in CHOICES
            if path == outer and name.rpartition(".")[2] in {f.name for f in fields.fields_of(kind)}
        ]
        run = fields.replaced(run, outer, made(around))
    if name == "law":
        run = fields.replaced(run, "time", "clock")
    return fields.replaced(run, name, made(member))


@pytest.mark.parametrize(
    ("name", "member"), CHOICES, ids=lambda value: getattr(value, "kind", value)
)
def test_every_alternative_is_written_and_read(name, member):
    """Through the file that runs write, with strict types; then it has the values of before."""
    run = with_choice(name, member)
    fields.check(run)
    assert fields.flat(run)[name] == fields.kind_of(made(member))
    content = json.dumps(to_json(run)).encode()
    assert validated(Run, pathlib.Path("config.json"), content) == run


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_written_and_read(name):
    content = json.dumps(to_json(PRESETS[name])).encode()
    assert validated(Run, pathlib.Path("config.json"), content) == PRESETS[name]


def test_infinite_concentrations_are_null_in_a_file():
    run = options(partition="pachinko", alpha=math.inf, fine_alpha=math.inf)
    fields.check(run)
    values = to_json(run)
    assert values["partition"] == {"alpha": None, "fine_alpha": None, "kind": "pachinko"}
    content = json.dumps(values, allow_nan=False).encode()
    assert validated(Run, pathlib.Path("config.json"), content) == run


def test_every_choice_has_one_kind_per_alternative_and_a_description():
    for path in dict(CHOICES):
        members = [kind for name, kind in CHOICES if name == path]
        kinds = [fields.kind_of(member) for member in members]
        assert None not in kinds
        assert all(member.__doc__ for member in members)


def names_with_places(kind: type, before: str = "", place: str = "") -> list[tuple[str, str]]:
    """Every name of a field, with the choice that has it."""
    found = []
    for field in fields.fields_of(kind):
        name = before + field.name
        if field.has_name:
            found.append((name, place))
        for member in field.alternatives:
            inner = "" if field.is_open else f"{name}."
            several = len(field.alternatives) > 1
            found += names_with_places(member, inner, name if several else place)
    return found


def test_names_are_unique():
    """A name belongs to one group, or to alternatives of one choice, of which a run has one."""
    places: dict[str, set[str]] = {}
    for name, place in names_with_places(Run):
        places.setdefault(name, set()).add(place)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
    alone = [name for name, place in names_with_places(Run) if not place]
    assert len(alone) == len(set(alone))
    assert set(fields.names_of(Run)) == set(places)


def test_names_in_lists_of_options_exist():
    assert set(fields.names_of(Run)) >= fields.FREE | fields.EXTENSIBLE


# A small tree of groups, so that the expectations below are read off it.
@group
class Leaf:
    """A choice with a required field."""

    file: str
    size: Count = 1
    kind: Literal["leaf"] = "leaf"


@group
class Inner:
    """Another choice."""

    share: Probability | None = None
    kind: Literal["inner"] = "inner"


@group
class Both:
    """A choice that has a choice."""

    rule: Leaf | Inner = Inner()
    kind: Literal["both"] = "both"


@group
class Flat:
    """Fields with names of their own."""

    alpha: Concentration = 1.0
    mode: Literal["one", "two"] = "one"
    many: Count | Literal["all"] = 3


@group
class Top:
    """The root."""

    flat: Annotated[Flat, OPEN] = Flat()
    nested: Inner | Both = Inner()
    open: Annotated[Inner | Leaf, OPEN] = Leaf("x")
    count: Count = 2
    flag: bool = False
    rates: dict[str, Probability] = dataclasses.field(default_factory=dict)


FLAT = {
    "alpha": 1.0, "mode": "one", "many": 3, "nested": "inner", "nested.share": None,
    "open": "leaf", "file": "x", "size": 1, "count": 2, "flag": False, "rates": {},
}  # fmt: skip


def test_flat_names():
    assert fields.flat(Top()) == FLAT
    nested = fields.replaced(Top(), "nested", "both")
    without = {name: value for name, value in FLAT.items() if name != "nested.share"}
    assert fields.flat(nested) == without | {
        "nested": "both", "nested.rule": "inner", "nested.rule.share": None
    }  # fmt: skip
    assert set(fields.names_of(Top)) == {
        *FLAT, "share", "nested.rule", "nested.rule.share", "nested.rule.file", "nested.rule.size"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"alpha": 2.0}, {"alpha": 2.0}),
        ({"nested.share": 0.5}, {"nested.share": 0.5}),
        ({"nested": Both(Leaf("y"))}, {
            "nested": "both", "nested.rule": "leaf", "nested.rule.file": "y", "nested.rule.size": 1
        }),
        ({"nested": "both", "nested.rule.share": 1.0}, {
            "nested": "both", "nested.rule": "inner", "nested.rule.share": 1.0
        }),
        ({"open": "inner", "share": 0.25}, {"open": "inner", "share": 0.25}),
        ({"nested.share": None}, {}),
    ],
)  # fmt: skip
def test_replaced_values(changes, expected):
    top = Top()
    for name, value in changes.items():
        top = fields.replaced(top, name, value)
    found = fields.flat(top)
    assert {name: found[name] for name in expected} == expected
    same = FLAT.keys() & found.keys() - changes.keys() - expected.keys()
    assert {name: found[name] for name in same} == {name: FLAT[name] for name in same}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("alhpa", 1.0, "alhpa is no option; did you mean alpha?"),
        ("nested.rule", "leaf", "nested.rule is 'leaf'; expected nested:both with it"),
        ("share", 0.5, "share is 0.5; expected open:inner with it"),
        ("nested", "bth", "nested is 'bth'; expected one of inner, both; did you mean both?"),
        ("open", "leaf", "open is 'leaf'; expected file with it"),
        ("flat", 1, "flat is no option; did you mean flag?"),
    ],
)
def test_replacements_that_are_refused(name, value, message):
    with pytest.raises(ValueError) as error:
        fields.replaced(Top(), name, value)
    assert str(error.value) == message


T: Any = Top  # for values of other types
F: Any = Flat


@pytest.mark.parametrize(
    ("top", "message"),
    [
        (T(count=0), "count is 0; expected an integer of at least 1"),
        (T(count=2**31), "count is 2147483648; expected an integer of at most 2147483647"),
        (T(count=True), "count is True; expected an integer of at least 1"),
        (T(count="2"), "count is '2'; expected an integer of at least 1"),
        (T(count=None), "count is None; expected an integer of at least 1"),
        (T(Flat(alpha=0.0)), "alpha is 0.0; expected a positive number"),
        (T(Flat(alpha=math.nan)), "alpha is nan; expected a positive number"),
        (T(F(mode="tow")), "mode is 'tow'; expected one of one, two; did you mean two?"),
        (T(F(many=0)), "many is 0; expected an integer of at least 1"),
        (T(F(many="some")), "many is 'some'; expected an integer of at least 1"),
        (T(nested=Inner(1.5)), r"nested.share is 1.5; expected a number in [0, 1]"),
        (T(nested=Both(Leaf("x", -1))), "nested.rule.size is -1; expected an integer of at le"),
        (T(open=Inner(-1.0)), "share is -1.0; expected a number in [0, 1]"),
        (T(nested=3), "nested is 3; expected one of inner, both"),
        (T(nested=Leaf("x")), "nested is Leaf(file='x', size=1, kind='leaf'); expected one of"),
        (T(nested=None), "nested is None; expected one of inner, both"),
        (T(flat=None), "flat is None; expected one of Flat"),
        (T(rates={"a": 1.0, "b": 2.0}), "rates.b is 2.0; expected a number in [0, 1]"),
        (T(rates=1.0), "rates is 1.0; expected"),
        (T(flag="no"), "flag is 'no'; expected True or False"),
    ],
)  # fmt: skip
def test_values_out_of_range(top, message):
    with pytest.raises(ValueError) as error:
        fields.check(top)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "top",
    [
        Top(), Top(Flat(alpha=math.inf)), Top(Flat(many="all")), Top(nested=Inner(0.0)),
        Top(nested=Inner(None)), Top(count=2**31 - 1),
    ],
)  # fmt: skip
def test_values_in_range(top):
    fields.check(top)


RANGES = [
    ("seeds", 0, "an integer of at least 1"),
    ("seed", -1, "an integer of at least 0"),
    ("seed", 2**32, "an integer of at most 4294967295"),
    ("num_clients", 0, "an integer of at least 1"),
    ("test_fraction", 0.0, "a number in (0, 1)"),
    ("test_fraction", 1.0, "a number in (0, 1)"),
    ("validation", 1.0, "a number in [0, 1)"),
    ("held_out_clients", 1.0, "a number in [0, 1)"),
    ("lr", 0.0, "a positive number"),
    ("clip", 0.0, "a positive number"),
    ("lr_decay", -1.0, "a positive number"),
    ("weight_decay", -0.1, "a number of at least 0"),
    ("tuning_lr", 0.0, "a positive number"),
    ("lr", math.inf, "a positive number"),
    ("dropout", 1.0, "a number in [0, 1)"),
    ("lost", 1.5, "a number in [0, 1]"),
    ("late", -0.5, "a number in [0, 1]"),
    ("delay", 0, "an integer of at least 1"),
    ("eval_examples", 0, "an integer of at least 1 or all"),
    ("output", 3, "a path"),
    ("initial_model", 3, "a path"),
    ("dataset", 3, "text"),
    ("model", 3, "text"),
    ("target_accuracy", 0.0, "a number in (0, 1]"),
    ("examples_memory", 1e10, "a positive number of at most 9e+09"),
    ("alpha", 0.0, "a positive number"),
]
OF_CHOICES = [
    ("attack", "alie", "attack.fraction", 0.0, "a number in (0, 1]"),
    ("attack", "gaussian", "attack.std", -1.0, "a number of at least 0"),
    ("attack", "scaling", "attack.factor", math.nan, "a finite number"),
    ("attack", "mimic", "attack.warmup", 0, "an integer of at least 1"),
    ("attack", "label_flip", "attack.share", 2.0, "a number in [0, 1]"),
    ("compress", "top_k", "compress.keep", 0.0, "a fraction of the entries, below 1, or their"),
    ("compress", "random_k", "compress.keep", 2.5, "a fraction of the entries, below 1, or their"),
    ("compress", "qsgd", "compress.levels", 0, "an integer of at least 1"),
    ("feedback", "diana", "feedback.rate", 1.5, "a number in (0, 1]"),
    ("robust", "krum", "robust.f", -1, "an integer of at least 0"),
    ("robust", "krum", "robust.f", 0.5, "an integer of at least 0"),
    ("robust", "centred_clipping", "robust.tau", 0.0, "a positive number"),
    ("privacy", "gaussian", "privacy.noise", -1.0, "a number of at least 0"),
    ("privacy", "gaussian", "privacy.epsilon", -1.0, "a positive number"),
    ("privacy", "gaussian", "privacy.delta", 1.0, "a number in (0, 1)"),
    ("privacy", "gaussian", "privacy.clip.bound", 0.0, "a positive number"),
    ("adapters", "lora", "adapters.rank", 0, "an integer of at least 1"),
    ("shift", "noise", "shift.variance", -1.0, "a number of at least 0"),
    ("time", "clock", "law.slow_fraction", 1.5, "a number in [0, 1]"),
    ("time", "clock", "interaction", -1.0, "a number of at least 0"),
    ("time", "clock", "eval_time", 0.0, "a positive number"),
    ("sampling", "full-or-uniform", "sampling.probability", 2.0, "a number in (0, 1]"),
    ("partition", "log-normal", "size_sigma", -1.0, "a number of at least 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({name: value}, expected) for name, value, expected in RANGES]
    + [({choice: kind, name: value}, text) for choice, kind, name, value, text in OF_CHOICES],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)  # fmt: skip
def test_ranges_of_the_options(changes, expected):
    name, value = list(changes.items())[-1]
    with pytest.raises(ValueError) as error:
        fields.check(options(**changes))
    assert str(error.value).startswith(f"{name} is {value!r}; expected {expected}")


def test_names_in_a_list_are_text():
    with pytest.raises(ValueError, match="algorithms is 3; expected text"):
        fields.check(options(algorithms=("fedavg", 3)))


def test_text_of_a_path_becomes_one():
    """Readers open paths, and files of options have those."""
    run = options(output="a/b", initial_model="model.npz")
    assert run.output == pathlib.Path("a/b")
    assert run.model.initial_model == pathlib.Path("model.npz")


@pytest.mark.parametrize("bound", [0.0, math.inf, "1"])
def test_ranges_of_bounds_of_parts(bound):
    run = options(**{"privacy": "gaussian", "privacy.clip": Parts({"0": bound})})
    with pytest.raises(ValueError, match=r"privacy\.clip\.bounds\.0 is .*; expected a positive"):
        fields.check(run)


def test_files_may_have_no_other_keys():
    adapter = pydantic.TypeAdapter(Top)
    with pytest.raises(pydantic.ValidationError, match="Unexpected keyword argument"):
        adapter.validate_json(b'{"cuont": 3}', strict=True)
