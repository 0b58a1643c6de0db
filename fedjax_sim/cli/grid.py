"""Grids of ``fedjax-sim sweep``: from ``--grid`` or ``--points`` to configurations."""

import csv
import dataclasses
import math
import pathlib
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedjax_sim.checks import did_you_mean
from fedjax_sim.engine import direction, is_fraction
from fedjax_sim.runs import Configuration, expand
from fedjax_sim.studies.setups.build import check, hyper_parameters
from fedjax_sim.studies.setups.config import SweepConfig
from fedjax_sim.studies.setups.config_checks import MOST_GIGABYTES, check_client_column
from fedjax_sim.studies.setups.entries import PRIVACY_CLIP, AlgorithmEntry
from fedjax_sim.studies.setups.references import FUNCTIONS, is_reference
from fedjax_sim.studies.setups.registry import algorithms_of, labels
from fedjax_sim.studies.setups.settings import value_of

# Options of a run that a grid may vary, besides the algorithms' hyper-parameters.
RUN_SETTINGS = (
    "model", "partition", "num_clients", "alpha", "fine_alpha", "classes_per_client", "size_sigma",
    "partition_seed", "noise",
    "sampling", "full_probability", "cohort_size", "dropout", "weighting", "lost", "late", "delay",
    "attack", "attackers",
    "rounds", "local_epochs", "local_steps", "batch_size",
)  # fmt: skip
CLOCK_SETTINGS = (
    "step_time", "slow_fraction", "slow_factor", "interval", "interaction", "buffer_size",
)  # fmt: skip
SETTINGS = (*RUN_SETTINGS, *CLOCK_SETTINGS)


def configurations(config: SweepConfig) -> list[Configuration]:
    """Returns every configuration of the sweep: algorithm, settings, hyper-parameters.

    Raises:
        ValueError: a name that no algorithm has, a value out of range, or an option about results
            that the grid cannot give.

    Example:
        >>> configurations(SweepConfig(grid=("lr=0.1,0.2", "cohort_size=5")))[1]
        {'algorithm': 'fedavg', 'cohort_size': 5, 'lr': 0.2}
    """
    try:
        return _configurations(config)
    except ValueError as error:
        if config.points is None or str(config.points) in str(error):
            raise
        raise ValueError(f"{error} (in {config.points})") from error


def _configurations(config: SweepConfig) -> list[Configuration]:
    check(config)
    if config.privacy_epsilon is not None:
        raise ValueError(
            f"privacy_epsilon is {config.privacy_epsilon}; expected privacy_noise in a sweep, "
            "whose grid may vary it"
        )
    if config.examples_memory is not None:
        raise ValueError(
            f"examples_memory is {config.examples_memory}; expected none, since the runs of a "
            "sweep share examples on the device"
        )
    resolved = hyper_parameters(config)
    option = "points" if config.points else "grid"
    kinds = static_hyper(config)
    algorithms = algorithms_of(config.algorithms)
    takers = {name: set(entry.hyper) for name, entry in algorithms.items()}
    known = RUN_SETTINGS if config.clock == "none" else SETTINGS

    def check_name(name: str) -> None:
        _check_taker(option, name, takers, known)

    entries = (
        _read_points(config.points, kinds, check_name)
        if config.points
        else [_parse_grid(config.grid, kinds, check_name)]
    )
    expanded: list[Configuration] = []
    for entry in entries:
        for algorithm, own in takers.items():
            settings = {name: values for name, values in entry.items() if name in SETTINGS}
            hyper = {
                _column(algorithm, short): entry.get(f"{algorithm}.{short}", values)
                for name, values in entry.items()
                if name not in SETTINGS and (short := name.removeprefix(f"{algorithm}.")) in own
            }
            expanded += expand({"algorithm": [algorithm], **settings, **hyper})
    expanded = [entry for i, entry in enumerate(expanded) if entry not in expanded[:i]]
    check_client_column(config, {str(e.get("partition", config.partition)) for e in expanded})
    for entry in expanded:
        algorithm = entry["algorithm"]
        _check_entry(option, config, entry, algorithms[algorithm], resolved[algorithm])
    _check_results(config, expanded)
    return expanded


def _column(algorithm: str, hyper: str) -> str:
    """Returns a hyper-parameter's name in configurations: ALGORITHM.NAME if an option is NAME."""
    return f"{algorithm}.{hyper}" if hyper in SETTINGS else hyper


def with_settings(config: SweepConfig, configuration: Mapping[str, Any]) -> SweepConfig:
    """Returns the options of one configuration's runs.

    Example:
        >>> with_settings(SweepConfig(), {"algorithm": "fedavg", "cohort_size": 5}).cohort_size
        5
    """
    settings = {name: value for name, value in configuration.items() if name in SETTINGS}
    name = labels(config.algorithms).get(configuration["algorithm"], configuration["algorithm"])
    return dataclasses.replace(config, **settings, algorithms=(name,))


def mode_of(config: SweepConfig) -> Literal["max", "min"]:
    """Returns the better direction of the sweep's metric.

    Raises:
        ValueError: ``auto`` for a metric whose name does not say it: the wrong direction would
            choose the worst configuration.

    Example:
        >>> mode_of(SweepConfig(metric="train/loss")), mode_of(SweepConfig(mode="min"))
        ('min', 'min')
    """
    if config.mode != "auto":
        return config.mode
    mode = direction(config.score_metric)
    if mode is None:
        raise ValueError(
            "mode is auto; expected max or min, since the name of metric "
            f"{config.score_metric!r} does not say whether larger or smaller values are better"
        )
    return mode


def static_hyper(config: SweepConfig) -> dict[str, type]:
    """Returns the hyper-parameters that cannot vary inside a program: names, flags, integers.

    Example:
        >>> list(static_hyper(SweepConfig(algorithms=("scaffold",))))
        ['option', 'tuning_steps', 'compress', 'feedback', ..., 'privacy_noise_law']
    """
    entries = algorithms_of(config.algorithms).values()
    return {key: kind for entry in entries for key, kind in entry.static_hyper.items()}


def swept_hyper(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the hyper-parameters in a configuration.

    Example:
        >>> swept_hyper({"algorithm": "fedswa", "alpha": 0.1, "fedswa.alpha": 1.5, "lr": 0.2})
        {'alpha': 1.5, 'lr': 0.2}
    """
    names = (name for name in configuration if name not in (*SETTINGS, "algorithm"))
    return {name.rpartition(".")[2]: configuration[name] for name in names}


def _check_entry(
    option: str,
    config: SweepConfig,
    entry: Configuration,
    algorithm: AlgorithmEntry,
    hyper: Mapping[str, Any],
) -> None:
    """Checks one configuration before data are loaded."""
    try:
        own = with_settings(config, entry)
        check(own)
        cohort, clients = own.cohort_size, own.num_clients
        if (
            own.partition != "natural"
            and own.sampling not in ("full", "geometric")
            and cohort > clients
        ):
            raise ValueError(f"cohort_size is {cohort}; expected 1 .. {clients}, the clients")
        swept = swept_hyper(entry)
        for name, value in swept.items():
            if not isinstance(value, str | bool):
                value_of(f"{algorithm.name}.{name}={value}", algorithm, name, str(value))
        algorithm.build({**hyper, **swept})
    except ValueError as error:
        raise ValueError(f"{option} has {entry}: {error}") from error


def _check_results(config: SweepConfig, entries: Sequence[Configuration]) -> None:
    """Checks the options about results against the configurations."""
    if config.mode not in ("auto", "max", "min"):
        raise ValueError(f"mode is {config.mode!r}; expected auto, max or min")
    if config.clock == "none":
        rounds = min(with_settings(config, entry).rounds for entry in entries)
        most = 1 if config.best else -(-rounds // config.eval_every)
        if not 1 <= config.last <= most:
            why = "with --best" if config.best else f"the evaluations of {rounds} rounds"
            raise ValueError(f"last is {config.last}; expected 1 .. {most}, {why}")
    names = list(dict.fromkeys(name for entry in entries for name in entry if name != "algorithm"))
    for name in config.cells:
        if name not in names or config.cells.count(name) > 1:
            raise ValueError(
                f"cells has {name!r}; expected some of {', '.join(names)}, each at most once"
            )
    if config.over is not None and not all(config.over in entry for entry in entries):
        raise ValueError(f"over is {config.over!r}; expected a name with values in the grid")
    mode = direction(config.score_metric) if config.mode == "auto" else config.mode
    is_worst = mode == "max" and config.reference <= 0 and is_fraction(config.score_metric)
    if config.over is not None and is_worst:
        raise ValueError(
            f"reference is {config.reference}; expected a positive number, such as 1, with --over "
            f"and --metric {config.score_metric}, whose error is its distance from the reference"
        )
    if not math.isfinite(config.reference):
        raise ValueError(f"reference is {config.reference}; expected a finite number")
    if config.memory is not None and not 0 < config.memory <= MOST_GIGABYTES:
        raise ValueError(
            f"memory is {config.memory}; expected a positive number of gigabytes, at most "
            f"{MOST_GIGABYTES:g}"
        )


def _check_taker(
    option: str, name: str, takers: Mapping[str, set[str]], settings: Sequence[str]
) -> None:
    """Refuses a name that is neither a hyper-parameter nor a setting of the run."""
    algorithm, dot, own = name.rpartition(".")
    names = {own} if dot else {name}
    having = [a for a in takers if names & takers[a] and (not dot or a == algorithm)]
    if name not in settings and not having:
        known = "; ".join(f"{a}: {', '.join(sorted(names))}" for a, names in takers.items())
        every = [*settings, *(key for names in takers.values() for key in names)]
        raise ValueError(
            f"{option} has {name!r}; expected a hyper-parameter ({known}) or an option "
            f"({', '.join(settings)}){did_you_mean(own if dot else name, every)}"
        )


def _parse_grid(
    grid: Sequence[str], kinds: Mapping[str, type], check_name: Callable[[str], None]
) -> dict[str, list[Any]]:
    """Returns ``{name: values}`` for ``NAME=...`` strings; the name decides how values are read."""
    parsed: dict[str, list[Any]] = {}
    for text in grid:
        name, equals, values = text.partition("=")
        if not (name and equals and values) or name in parsed:
            raise ValueError(
                f"grid has {text!r}; expected NAME=V1,V2,... or NAME=LOW:HIGH:COUNT, each name once"
            )
        check_name(name)
        kind = _kind(name, kinds)
        if values.count(":") == 2 and "," not in values:
            parsed[name] = _geometric(text, name, kind, *values.split(":"))
        else:
            parsed[name] = [_value("grid", name, kind, value) for value in values.split(",")]
    if not parsed:
        raise ValueError("grid is empty; expected at least one NAME=V1,V2,...")
    return parsed


def _geometric(text: str, name: str, kind: type, low: str, high: str, count: str) -> list[Any]:
    if kind is str:
        raise ValueError(
            f"grid has {text!r}; expected {name}=V1,V2,..., whose values are no numbers"
        )
    try:
        first, last, number = float(low), float(high), int(count)
    except ValueError:
        first = last = number = 0
    if not (0 < first < last < math.inf and number > 1):
        raise ValueError(f"grid has {text!r}; expected LOW:HIGH:COUNT, 0 < LOW < HIGH, COUNT > 1")
    values = np.geomspace(first, last, number)
    if kind is int:
        return list(dict.fromkeys(round(value) for value in values.tolist()))
    # Twelve digits: 0.1, not 0.10000000000000002.
    return [float(f"{value:.12g}") for value in values]


def _read_points(
    path: pathlib.Path, kinds: Mapping[str, type], check_name: Callable[[str], None]
) -> list[dict[str, list[Any]]]:
    """The rows of a CSV file; empty fields are left out."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows, names = list(reader), reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"points is {str(path)!r}, which cannot be read: {error}") from error
    if not rows or any(None in row for row in rows) or len(set(names)) < len(names):
        raise ValueError(
            f"points is {str(path)!r}; expected a line of distinct names and a row or more"
        )
    for name in names:
        if any(row[name] for row in rows):
            check_name(name)
    for name in set(names) & set(FUNCTIONS):
        for row in rows:
            if is_reference(row[name] or ""):
                raise ValueError(
                    f"points is {str(path)!r}, which has {name}={row[name]}, and a file may not "
                    f"say which code runs; expected --grid {name}={row[name]} if you trust it"
                )
    return [
        {name: [_value("points", name, _kind(name, kinds), v)] for name, v in row.items() if v}
        for row in rows
    ]


def _value(option: str, name: str, kind: type, text: str) -> Any:
    """A value as its type: that of the setting; a number, name or flag for a hyper-parameter."""
    text = text.strip()
    if name.rpartition(".")[2] == PRIVACY_CLIP and not _is_number(text):
        return text
    convert = {"true": True, "false": False}.__getitem__ if kind is bool else kind
    try:
        return convert(text)
    except (ValueError, KeyError):
        expected = {int: "an integer", bool: "true or false"}.get(kind, "a number")
        raise ValueError(f"{option} has {name}={text}; expected {expected}") from None


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _kind(name: str, static: Mapping[str, type]) -> type:
    """The type of the values of a setting or hyper-parameter."""
    if name not in SETTINGS:
        return static.get(name.rpartition(".")[2], float)
    hint = typing.get_type_hints(SweepConfig)[name]
    kinds = typing.get_args(hint) or (hint,)
    return int if int in kinds else float if float in kinds else str
