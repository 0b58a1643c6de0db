"""What a sweep is made of: every option of ``fedjax-sim sweep``."""

import csv
import dataclasses
import json
import math
import pathlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedjax_sim.cli import registry
from fedjax_sim.cli.config import RunConfig, check, read
from fedjax_sim.sweeps.grid import Configuration, expand

# Options of a run that a grid may vary, besides the algorithms' hyper-parameters.
SETTINGS = (
    "model", "partition", "num_clients", "alpha", "classes_per_client", "partition_seed",
    "sampling", "cohort_size", "dropout", "weighting",
    "rounds", "local_epochs", "local_steps", "batch_size",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SweepConfig(RunConfig):
    """A grid of hyper-parameters and settings, for several algorithms and seeds."""

    output: pathlib.Path = pathlib.Path("results/sweep")
    """Folder for the results; finished runs found there are not repeated."""

    algorithms: tuple[str, ...] = ("fedavg",)
    """Algorithms to sweep (see fedjax-sim list)."""
    seeds: int = 3
    """Number of seeds of every configuration."""

    grid: tuple[str, ...] = ("lr=0.05,0.1,0.2,0.4",)
    """What varies: NAME=V1,V2,... or NAME=LOW:HIGH:COUNT (geometric, integers rounded). NAME is a
    hyper-parameter, for all algorithms that have it or as ALGORITHM.NAME for one (which then takes
    no others), or an option, as cohort_size."""
    points: pathlib.Path | None = None
    """CSV file with a column per name and a row per configuration, instead of a grid."""

    metric: str = "test/accuracy"
    """Metric that configurations are chosen by."""
    mode: Literal["max", "min"] = "max"
    """Whether larger or smaller values of it are better."""
    last: int = 1
    """Evaluations, from the end of a run, that it is averaged over."""
    best: bool = False
    """Score a run by the best evaluation instead."""
    cells: tuple[str, ...] = ()
    """Names whose values get a best configuration each, e.g. cohort_size local_steps."""
    over: Literal["cohort_size", "num_clients"] | None = None
    """Draw error and speed-up against this number of clients, a curve per algorithm."""
    reference: float = 0.0
    """Value of the metric at the optimum, which the error is measured from."""
    memory: float | None = None
    """Gigabytes that a program may take on a device; default: most of an accelerator's memory, half
    of the host's."""


def from_comparison(config: RunConfig) -> SweepConfig:
    """A sweep with the settings of a comparison.

    Example:
        >>> from_comparison(RunConfig(rounds=7)).rounds
        7
    """
    own = {"output", "algorithms", "seeds"}
    names = {field.name for field in dataclasses.fields(RunConfig)} - own
    return SweepConfig(**{name: getattr(config, name) for name in names})


def read_sweep(path: str | pathlib.Path) -> SweepConfig:
    """The configuration of a ``config.json`` that a sweep or a comparison wrote.

    A comparison's hyper-parameters stay, where the grid does not vary them, and so do its
    algorithms, which they belong to.

    Raises:
        ValueError: it is neither.
    """
    try:
        values = json.loads(pathlib.Path(path).read_text())["config"]
        if "grid" not in values:
            run = read(path)
            return dataclasses.replace(from_comparison(run), algorithms=run.algorithms)
        for name in ("output", "data_dir", "points"):
            values[name] = None if values[name] is None else pathlib.Path(values[name])
        for name in ("algorithms", "hyper", "grid", "cells"):
            values[name] = tuple(values[name])
        return SweepConfig(**values)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not the config.json of a sweep: {error}") from error


def configurations(config: SweepConfig) -> list[Configuration]:
    """Every configuration of the sweep: algorithm, settings, hyper-parameters.

    Raises:
        ValueError: a grid that names what no algorithm has, a value out of range, or results asked
            for that the grid cannot give.

    Example:
        >>> configurations(SweepConfig(grid=("lr=0.1,0.2", "cohort_size=5")))[1]
        {'algorithm': 'fedavg', 'cohort_size': 5, 'lr': 0.2}
    """
    check(config)
    if config.examples_memory is not None:
        raise ValueError(
            f"examples_memory is {config.examples_memory}; expected none, since the runs of a "
            "sweep share examples on the device"
        )
    resolved = registry.hyper_parameters(config)
    option = "points" if config.points else "grid"
    entries = _read_points(config.points) if config.points else [_parse_grid(config.grid)]
    takers = {
        name: {*registry.hyper_defaults(name), *registry.common_hyper(name)}
        for name in config.algorithms
    }
    found: list[Configuration] = []
    for entry in entries:
        for name in entry:
            _check_taker(option, name, takers)
        for algorithm, own in takers.items():
            settings = {name: values for name, values in entry.items() if name in SETTINGS}
            hyper = {
                short: entry.get(f"{algorithm}.{short}", values)
                for name, values in entry.items()
                if (short := name.removeprefix(f"{algorithm}.")) in own
            }
            found += expand({"algorithm": [algorithm], **settings, **hyper})
    found = [entry for i, entry in enumerate(found) if entry not in found[:i]]
    for entry in found:
        _check_entry(option, config, entry, resolved[entry["algorithm"]])
    _check_results(config, found)
    return found


def with_settings(config: SweepConfig, configuration: Mapping[str, Any]) -> SweepConfig:
    """The options of one configuration's runs.

    Example:
        >>> with_settings(SweepConfig(), {"algorithm": "fedavg", "cohort_size": 5}).cohort_size
        5
    """
    settings = {name: value for name, value in configuration.items() if name in SETTINGS}
    return dataclasses.replace(config, **settings, algorithms=(configuration["algorithm"],))


def swept_hyper(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of the algorithm among a configuration's names.

    Example:
        >>> swept_hyper({"algorithm": "fedavg", "cohort_size": 5, "lr": 0.2})
        {'lr': 0.2}
    """
    return {k: v for k, v in configuration.items() if k not in (*SETTINGS, "algorithm")}


def text_hyper() -> set[str]:
    """The hyper-parameters whose values are names: they cannot vary inside a program.

    Example:
        >>> sorted(text_hyper())
        ['at', 'divisor', 'option', 'reference', 'schedule', 'units', 'variant']
    """
    defaults = (registry.hyper_defaults(name).items() for name in registry.ALGORITHMS)
    return {key for items in defaults for key, value in items if isinstance(value, str)}


def _check_entry(
    option: str, config: SweepConfig, entry: Configuration, hyper: Mapping[str, Any]
) -> None:
    """What can be told before data are loaded, for a whole sweep before its first run."""
    try:
        own = with_settings(config, entry)
        check(own)
        cohort, clients = own.cohort_size, own.num_clients
        if own.partition != "natural" and own.sampling != "full" and cohort > clients:
            raise ValueError(f"cohort_size is {cohort}; expected 1 .. {clients}, the clients")
        swept = swept_hyper(entry)
        for name, value in swept.items():
            if not isinstance(value, str):
                registry.number(f"{entry['algorithm']}.{name}={value}", name, str(value))
        registry.algorithm(entry["algorithm"], {**hyper, **swept})
    except ValueError as error:
        raise ValueError(f"{option} has {entry}: {error}") from error


def _check_results(config: SweepConfig, found: Sequence[Configuration]) -> None:
    """That the results asked for can be had, before the runs that they are made of."""
    if config.mode not in ("max", "min"):
        raise ValueError(f"mode is {config.mode!r}; expected max or min")
    rounds = min(with_settings(config, entry).rounds for entry in found)
    most = 1 if config.best else -(-rounds // config.eval_every)
    if not 1 <= config.last <= most:
        why = "with --best" if config.best else f"the evaluations of {rounds} rounds"
        raise ValueError(f"last is {config.last}; expected 1 .. {most}, {why}")
    names = list(dict.fromkeys(name for entry in found for name in entry if name != "algorithm"))
    for name in config.cells:
        if name not in names or config.cells.count(name) > 1:
            raise ValueError(
                f"cells has {name!r}; expected some of {', '.join(names)}, each at most once"
            )
    if config.over is not None and not all(config.over in entry for entry in found):
        raise ValueError(f"over is {config.over!r}; expected a name with values in the grid")
    if not math.isfinite(config.reference):
        raise ValueError(f"reference is {config.reference}; expected a finite number")
    if config.memory is not None and not 0 < config.memory < math.inf:
        raise ValueError(f"memory is {config.memory}; expected a positive number of gigabytes")


def _check_taker(option: str, name: str, takers: Mapping[str, set[str]]) -> None:
    algorithm, dot, own = name.partition(".")
    names = {own} if dot else {name}
    having = [a for a in takers if names & takers[a] and (not dot or a == algorithm)]
    if name not in SETTINGS and not having:
        known = "; ".join(f"{a}: {', '.join(sorted(own))}" for a, own in takers.items())
        raise ValueError(
            f"{option} has {name!r}; expected a hyper-parameter ({known}) or an option "
            f"({', '.join(SETTINGS)})"
        )


def _parse_grid(grid: Sequence[str]) -> dict[str, list[Any]]:
    """``{name: values}`` of ``NAME=...`` strings."""
    parsed: dict[str, list[Any]] = {}
    for text in grid:
        name, equals, values = text.partition("=")
        if not (name and equals and values) or name in parsed:
            raise ValueError(
                f"grid has {text!r}; expected NAME=V1,V2,... or NAME=LOW:HIGH:COUNT, each name once"
            )
        if values.count(":") == 2:
            parsed[name] = _geometric(text, name, *values.split(":"))
        else:
            parsed[name] = [_value("grid", name, value) for value in values.split(",")]
    if not parsed:
        raise ValueError("grid is empty; expected at least one NAME=V1,V2,...")
    return parsed


def _geometric(text: str, name: str, low: str, high: str, count: str) -> list[Any]:
    kind = _kind(name)
    if kind is str:
        raise ValueError(f"grid has {text!r}; expected {name}=V1,V2,..., since it is no number")
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


def _read_points(path: pathlib.Path) -> list[dict[str, list[Any]]]:
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
    return [{name: [_value("points", name, v)] for name, v in row.items() if v} for row in rows]


def _value(option: str, name: str, text: str) -> Any:
    """A setting's value by its type; of a hyper-parameter a number, or text if it takes text."""
    kind, text = _kind(name), text.strip()
    try:
        return kind(text)
    except ValueError:
        expected = "an integer" if kind is int else "a number"
        raise ValueError(f"{option} has {name}={text}; expected {expected}") from None


def _kind(name: str) -> type[int] | type[float] | type[str]:
    hint = typing.get_type_hints(SweepConfig)[name] if name in SETTINGS else float
    if name.rpartition(".")[2] in text_hyper():
        hint = str
    kinds = typing.get_args(hint) or (hint,)
    return int if int in kinds else float if float in kinds else str
