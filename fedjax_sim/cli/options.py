"""From arguments to options: a preset, a file or a study module, and the options typed over it."""

import dataclasses
import functools
import inspect
import itertools
import pathlib
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar, Union, cast

import docstring_parser
import tyro

from fedjax_sim.checks import check_known, did_you_mean
from fedjax_sim.cli.unused import check_typed
from fedjax_sim.studies.setups import (
    ALGORITHMS,
    HIDDEN,
    OPEN,
    PRESETS,
    SHARED,
    Field,
    Run,
    Study,
    check,
    entries_of,
    fields_of,
    flat,
    having,
    kind_of,
    load_study,
    names_of,
    own_names,
    read,
    replaced,
)

Options = TypeVar("Options")
# Options that exclude each other: the typed one replaces the other one of a preset or a file.
_REPLACES = (
    ("privacy.noise", "privacy.epsilon"),
    ("privacy.epsilon", "privacy.noise"),
    ("local_epochs", "local_steps"),
    ("local_epochs", "epoch_fraction"),
    ("epoch_fraction", "local_steps"),
    ("cohort_size", "cohort_fraction"),
)
MISSING: Any = tyro.MISSING  # default of an option that has to be typed


def split_arguments(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the preset, file or module, and the options."""
    first = arguments[0] if arguments else "-"
    if not first.startswith("-") and ":" not in first:
        return first, list(arguments[1:])
    return "quickstart", list(arguments)


def read_arguments(arguments: Sequence[str]) -> tuple[str, Study, list[str]]:
    """Returns the preset, file or module, its study, and the other arguments."""
    source, rest = split_arguments(arguments)
    return source, with_hyper(study_of(source), rest), rest


def study_of(source: str) -> Study:
    """Returns the study of a preset, of a comparison's ``config.json`` or of a study module."""
    if source in PRESETS:
        return Study(PRESETS[source])
    if source.endswith(".json"):
        return Study(read(pathlib.Path(source)))
    if source.endswith(".py"):
        return load_study(pathlib.Path(source))
    raise ValueError(
        f"PRESET is {source!r}; expected {', '.join(PRESETS)}, a study module (.py) or the path of "
        f"a config.json{did_you_mean(source, PRESETS)}"
    )


def parse(
    kind: type[Options],
    command: str,
    description: str,
    arguments: Sequence[str],
    default: Options | None,
) -> Options:
    """Returns the options: the typed ones, and the defaults of all others."""
    asks_help = not {"-h", "--help"}.isdisjoint(arguments)
    arguments = [_hyphenated(text) for text in arguments]
    names = typed_names(arguments)
    for name, other in _REPLACES:
        if name in names and other not in names and flat(default).get(other) is not None:
            default = replaced(cast(Options, default), other, None)
    if not asks_help:
        arguments = _choices_first(kind, default, arguments)
    parsed = tyro.cli(
        typing.cast(type[Any], _shown(kind)),
        # Errors end with the command for help, which can be copied.
        prog=f"fedjax-sim {_usage(command) if asks_help else command}",
        description=description,
        args=arguments,
        default=tyro.MISSING_NONPROP if default is None else _converted(default, _shown),
        config=(tyro.conf.CascadeSubcommandArgs,),
    )
    options = _converted(parsed, lambda shown: shown.__mro__[1])
    check(options)
    check_typed(names, flat(options))
    return _of_algorithms(options, names)


def _choices_first(kind: type, default: Any, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments as tyro takes them: words of choices first, each option once.

    Of an option that is typed twice the last one counts.
    """
    every, words, flags = names_of(kind), list[str](), list[str]()
    for text in arguments:
        name = text.partition(":")[0].replace("-", "_")
        is_choice = ":" in text and name in every and len(every[name].alternatives) > 1
        (words if is_choice else flags).append(text)
    typed = dict(word.split(":") for word in words)
    known: dict[str, Field] = dict(_available(kind, default, typed))
    if len(typed) < len(words):
        raise ValueError(f"{' '.join(words)} has a choice twice; expected one word for each")
    for word in words:
        _check_name(kind, word.partition(":")[0], known, word)
    for flag in flags:
        if flag.startswith("--"):
            _check_name(kind, flag[2:].partition("=")[0], known, flag.partition("=")[0])
    order = [name.replace("_", "-") for name in known]
    groups: dict[str, list[str]] = {}  # an option and its values
    name = ""
    for text in flags:
        if text.startswith("--"):
            name = text.partition("=")[0].replace("-", "_")
            groups.pop(name, None)
        groups.setdefault(name, []).append(text)
    first = [f"{name}:{typed[name]}" for name in order if name in typed]
    return [*first, *itertools.chain.from_iterable(groups.values())]


def _available(
    kind: type, value: Any, typed: dict[str, str], before: str = ""
) -> Iterator[tuple[str, Field]]:
    """Yields the names of the options that the choices leave, a choice before its fields."""
    for field in fields_of(kind):
        name, own = before + field.name, getattr(value, field.name, None)
        if not field.alternatives:
            if HIDDEN not in field.marks:
                yield name, field
            continue
        kinds = {str(kind_of(group)).replace("_", "-"): group for group in field.alternatives}
        chosen = type(own) if isinstance(own, field.alternatives) else field.alternatives[0]
        if len(kinds) > 1:
            yield name, field
            word = typed.get(name.replace("_", "-"))
            if word is not None:
                check_known(kinds, **{name: word})
                chosen = kinds[word]
        own = own if isinstance(own, chosen) else chosen
        yield from _available(chosen, own, typed, "" if field.is_open else f"{name}.")


def _check_name(kind: type, typed: str, known: dict[str, Field], text: str) -> None:
    """Refuses a name that no option or choice has, or another choice than the chosen one."""
    name = typed.replace("-", "_")
    before, dot, last = name.rpartition(".")
    positive = f"{before}{dot}{last.removeprefix('no_')}"
    if positive != name and positive in known and known[positive].hint is bool:
        return
    entries = [n for n, field in known.items() if _has_names(field.hint)]
    if any(name.startswith(f"{entry}.") and name.count(".") > 1 for entry in entries):
        return
    if name.partition(".")[0] in entries:
        raise ValueError(f"{text} is no option; expected further names behind it (see --help)")
    is_choice = name in known and len(known[name].alternatives) > 1
    if name in known and is_choice == (not text.startswith("--")):
        return
    if is_choice:
        kinds = (str(kind_of(group)).replace("_", "-") for group in known[name].alternatives)
        raise ValueError(f"{text} is no option; expected {typed}:KIND, one of {', '.join(kinds)}")
    if choices := sorted({choice.replace("_", "-") for choice in having(kind, name)}):
        one_of = "one of " if len(choices) > 1 else ""
        raise ValueError(f"{text} is given; expected {one_of}{', '.join(choices)} with it")
    flags = [f"--{name}".replace("_", "-") for name in known]
    raise ValueError(f"{text} is no option{did_you_mean(text, flags)}")


def _has_names(hint: Any) -> bool:
    """Returns True for a dictionary whose values have names of their own, such as ``hyper``."""
    value = typing.get_args(hint)[-1] if typing.get_origin(hint) is dict else None
    return typing.get_origin(value) is dict or dataclasses.is_dataclass(value)


def _of_algorithms(options: Options, typed: Sequence[str]) -> Options:
    """Returns the options without hyper-parameters of algorithms that do not run."""
    values = flat(options)
    if "hyper" not in values:
        return options
    hyper, names = values["hyper"], values["algorithms"]
    for name in hyper:
        flags = (
            []
            if name in names
            else [flag for flag in typed if flag.startswith(f"hyper.{name}.".replace("-", "_"))]
        )
        if flags:
            raise ValueError(
                f"--{flags[0]} is given; expected a hyper-parameter of {', '.join(names)}"
                f"{did_you_mean(name, names)}"
            )
    return replaced(options, "hyper", {name: hyper[name] for name in names if name in hyper})


def _usage(command: str) -> str:
    """Returns a command with every kind of source of its options."""
    name, source = command.split(maxsplit=1)
    if source.startswith(("FOLDER", "FILE")):
        return command
    return f"{name} [PRESET | STUDY.py | CONFIG.json]"


def _hyphenated(text: str) -> str:
    """Returns a choice such as ``compress:top_k`` as tyro spells it; other words as they are."""
    return text.replace("_", "-") if re.fullmatch(r"[a-z_.-]+:[\w-]+", text) else text


def typed_names(arguments: Sequence[str]) -> list[str]:
    """Returns the names of the typed options, each once."""
    words = (text[2:].split("=")[0] for text in arguments if text.startswith("--"))
    choices = (text.split(":")[0] for text in arguments if ":" in text and text[0] != "-")
    return list(dict.fromkeys(name.replace("-", "_") for name in (*words, *choices)))


def with_hyper(study: Study, arguments: Sequence[str]) -> Study:
    """Returns the study with every hyper-parameter that ``--hyper.ALGORITHM.NAME`` names.

    The values are defaults of their type, so that the parser knows the options; those of
    algorithms that an option for all algorithms replaces are left out.
    """
    known = {name.replace("-", "_"): name for name in (*ALGORITHMS, *study.algorithms)}
    hyper = {name: dict(values) for name, values in study.options.algorithms.hyper.items()}
    flags = typed_names(arguments)
    for values in hyper.values():
        for key in SHARED:
            if key in flags:
                values.pop(key, None)
    for flag in flags:
        prefix, _, rest = flag.partition(".")
        name, dot, key = rest.partition(".")
        if prefix == "hyper" and dot:
            kind, name = float, known.get(name, name)
            if name in known.values():
                one = study.replaced(options=replaced(study.options, "algorithms", (name,)))
                kinds = entries_of(one)[name].static_hyper
                positive = key.removeprefix("no_")
                key = positive if kinds.get(positive) is bool else key
                kind = kinds.get(key, float)
            hyper.setdefault(name, {}).setdefault(key, kind())
    return study.replaced(options=replaced(study.options, "hyper", hyper))


def check_replaced(study: Study, source: str, arguments: Sequence[str], run: Run) -> None:
    """Refuses typed options that have no effect beside a study's own parts."""
    gone = own_names(study.replaced(options=run))
    for name in typed_names(arguments):
        if gone.get(name, "loss") != "loss":  # which still says that a table has numbers
            raise ValueError(
                f"{name} is {flat(run)[name]!r}; expected none, since "
                f"{pathlib.Path(source).name} has its own {gone[name]}"
            )


@functools.cache
def _shown(kind: type) -> type:
    """Returns a class of options as tyro prints and parses it best.

    tyro keeps the line breaks of indented docstrings, and shows None as a default although the text
    says what None means.  Choices are named by their kind, and open groups have no prefix.
    """
    texts = {
        entry.arg_name: " ".join((entry.description or "").split())
        for base in reversed(kind.__mro__[:-1])
        for entry in docstring_parser.parse_from_object(base).params
    }
    hints = typing.get_type_hints(kind)
    types = {field.name: _hint(kind, field, hints[field.name], texts) for field in fields_of(kind)}
    if "kind" in hints:
        types["kind"] = tyro.conf.Suppress[hints["kind"]]
    entries = [
        (
            entry.name,
            types[entry.name],
            dataclasses.field(default=_converted(entry.default, _shown))
            if entry.default_factory is dataclasses.MISSING
            else dataclasses.field(default_factory=entry.default_factory),
        )
        for entry in dataclasses.fields(kind)
    ]
    shown = dataclasses.make_dataclass(kind.__name__, entries, bases=(kind,), frozen=True)
    shown.__doc__ = " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())
    return shown


def _hint(kind: type, field: Field, hint: Any, texts: dict[str, str]) -> Any:
    """Returns the type of a field for tyro."""
    text = texts.get(field.name, "")
    if HIDDEN in field.marks:
        return tyro.conf.Suppress[hint]
    if not field.alternatives:
        return Annotated[hint, tyro.conf.arg(help=text, help_behavior_hint=_default)]
    groups = [group for group in field.alternatives if group is not kind]
    if len(groups) == 1:
        shown: Any = _shown(groups[0])
    else:
        is_open = OPEN in field.marks  # tyro knows no prefix of an open group
        before = f"{field.name}:" if is_open else ""
        members = [
            Annotated[
                _shown(group),
                tyro.conf.subcommand(f"{before}{kind_of(group)}", prefix_name=not is_open),
            ]
            for group in groups
        ]
        shown = Union[tuple(members)]  # noqa: UP007
    return Annotated[shown, tyro.conf.arg(name="")] if OPEN in field.marks else shown


def _default(default: str) -> str:
    return "" if default in ("None", "") else f"(default: {default})"


def _converted(value: Any, class_of: Callable[[type], type]) -> Any:
    """Returns options as objects of other classes with the same fields."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    values = {
        field.name: _converted(getattr(value, field.name), class_of)
        for field in dataclasses.fields(value)
    }
    return class_of(type(value))(**values)
