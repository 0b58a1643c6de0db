"""From arguments to a configuration: a preset or a file, and the options typed over it."""

import dataclasses
import pathlib
import typing
from collections.abc import Sequence
from typing import Annotated, TypeVar

import docstring_parser
import tyro

from fedjax_sim.checks import did_you_mean
from fedjax_sim.studies.setups.config import RunConfig, SweepConfig, from_comparison
from fedjax_sim.studies.setups.config_file import read, read_sweep
from fedjax_sim.studies.setups.names import PRESETS
from fedjax_sim.studies.setups.registry import SHARED, algorithms_of, labels
from fedjax_sim.studies.setups.settings import parse_setting

Kind = TypeVar("Kind", bound=RunConfig)
Options = TypeVar("Options")


def split_arguments(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the preset or file, and the options.

    Example:
        >>> split_arguments(["--rounds", "4"])
        ('quickstart', ['--rounds', '4'])
    """
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], list(arguments[1:])
    return "quickstart", list(arguments)


def run_config(source: str, arguments: Sequence[str] = ()) -> RunConfig:
    """Returns the configuration of a preset, or the one in a comparison's ``config.json``.

    Args:
        source: preset or file.
        arguments: typed options, which replace those of the file.

    Raises:
        ValueError: neither a preset nor such a file, or a file that names code.
    """
    if source in PRESETS:
        return PRESETS[source]
    return read(_config_file(source), _typed(arguments))


def sweep_config(source: str, arguments: Sequence[str] = ()) -> SweepConfig:
    """Returns a preset's configuration for a sweep, or the one in a ``config.json``.

    Args:
        source, arguments: as for :func:`run_config`.

    Raises:
        ValueError: as :func:`run_config`.
    """
    if source in PRESETS:
        return from_comparison(PRESETS[source])
    return read_sweep(_config_file(source), _typed(arguments))


def parse(
    kind: type[Kind],
    command: str,
    source: str,
    description: str,
    arguments: Sequence[str],
    defaults: Kind,
) -> Kind:
    """Returns the options: the typed ones, and the defaults of all others.

    Hyper-parameters of single algorithms are merged one by one.  A default is dropped if its
    algorithm does not run, or if a typed ``--hyper`` or an option for all algorithms (``--lr``)
    sets the same hyper-parameter.  A rate for all algorithms is dropped if none of them has one.

    Args:
        kind: class of the options.
        command: name of the command, for ``--help``.
        source: preset or file of the defaults, for ``--help``.
        description: text at the top of ``--help``.
        arguments: typed options.
        defaults: values of the options that are not typed.

    Raises:
        SystemExit: after ``--help``, or after an error that tyro has printed.

    Example:
        >>> defaults = RunConfig(hyper=("fedprox.mu=1", "scaffold.server_lr=0.5"))
        >>> typed = ["--algorithms", "fedavg", "fedprox", "--hyper", "fedavg.lr=0.3"]
        >>> parse(RunConfig, "run", "quickstart", "", typed, defaults).hyper
        ('fedprox.mu=1', 'fedavg.lr=0.3')
    """
    shown = with_help(kind)
    asks_help = not {"-h", "--help"}.isdisjoint(arguments)
    parsed = tyro.cli(
        shown,
        # Errors end with the command for help, which can be copied.
        prog=f"fedjax-sim {command} {'[PRESET | CONFIG.json]' if asks_help else source}",
        description=description,
        args=list(arguments),
        default=dataclasses.replace(shown(**vars(defaults)), hyper=()),
    )
    typed = kind(**vars(parsed))
    flags = _typed(arguments)
    set_for_all = flags.intersection(SHARED)
    dropped = _without_takers(typed) - set_for_all
    if "privacy_epsilon" in flags:  # the noise of a file is not the one that it requires
        dropped |= {"privacy_noise"} - set_for_all
    typed = dataclasses.replace(typed, **dict.fromkeys(dropped))
    # Later settings replace earlier ones, so typed ones need no comparison with the defaults.
    algorithms = labels(typed.algorithms)
    kept = [
        setting
        for setting, (algorithm, key, _) in zip(
            defaults.hyper, map(parse_setting, defaults.hyper), strict=True
        )
        if algorithm in algorithms and key not in set_for_all
    ]
    return dataclasses.replace(typed, hyper=(*kept, *typed.hyper))


def _typed(arguments: Sequence[str]) -> set[str]:
    """Returns the names of the typed options."""
    names = (text[2:].split("=")[0] for text in arguments if text.startswith("--"))
    return {name.replace("-", "_") for name in names}


def _without_takers(config: RunConfig) -> set[str]:
    """Returns the rates for all algorithms that none of them has."""
    try:
        entries = algorithms_of(config.algorithms)
    except ValueError:  # named when the configuration is checked
        return set()
    known = {key for entry in entries.values() for key in entry.hyper}
    return {"lr", "server_lr"} - known


def with_help(kind: type[Options]) -> type[Options]:
    """Returns the class with its docstrings as tyro prints them best.

    tyro keeps the line breaks of indented docstrings, and shows None as a default although the text
    says what None means.
    """
    texts = {
        entry.arg_name: " ".join((entry.description or "").split())
        for base in reversed(kind.__mro__[:-1])
        for entry in docstring_parser.parse_from_object(base).params
    }
    hints = typing.get_type_hints(kind)

    def hint(default: str) -> str:
        return "" if default in ("None", "") else f"(default: {default})"

    fields = [
        (name, Annotated[hints[name], tyro.conf.arg(help=text, help_behavior_hint=hint)])
        for name, text in texts.items()
    ]
    shown = dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True)
    return typing.cast(type[Options], shown)


def _config_file(source: str) -> pathlib.Path:
    if not source.endswith(".json"):
        raise ValueError(
            f"PRESET is {source!r}; expected {', '.join(PRESETS)} or the path of a config.json"
            f"{did_you_mean(source, PRESETS)}"
        )
    return pathlib.Path(source)
