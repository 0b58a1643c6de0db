"""What a sweep is made of: every option of ``fedjax-sim sweep``."""

import csv
import dataclasses
import json
import pathlib
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from fedjax_sim import choices
from fedjax_sim.config import CompareConfig, check, read
from fedjax_sim.grid import Configuration, expand

# Options of a run that a grid may vary, besides the algorithms' hyper-parameters.
SETTINGS = (
    "model", "partition", "num_clients", "alpha", "classes_per_client", "partition_seed",
    "sampling", "cohort_size", "dropout", "weighting",
    "rounds", "local_epochs", "local_steps", "batch_size",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class SweepConfig(CompareConfig):
    """A grid of hyper-parameters and settings, for several algorithms and seeds."""

    output: pathlib.Path = pathlib.Path("results/sweep")
    """Folder for the results; finished runs found there are not repeated."""

    algorithms: tuple[str, ...] = ("fedavg",)
    """Algorithms to sweep (see fedjax-sim list)."""
    seeds: int = 3
    """Number of seeds of every configuration."""

    grid: tuple[str, ...] = ("lr=0.05,0.1,0.2,0.4",)
    """What varies: NAME=V1,V2,... or NAME=LOW:HIGH:COUNT (geometric). NAME is a hyper-parameter,
    for all algorithms that have it or as ALGORITHM.NAME for one, or an option, as cohort_size."""
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


def from_comparison(config: CompareConfig) -> SweepConfig:
    """A sweep with the settings of a comparison.

    Example:
        >>> from_comparison(CompareConfig(rounds=7)).rounds
        7
    """
    own = {"output", "algorithms", "seeds"}
    names = {field.name for field in dataclasses.fields(CompareConfig)} - own
    return SweepConfig(**{name: getattr(config, name) for name in names})


def read_sweep(path: str | pathlib.Path) -> SweepConfig:
    """The configuration of a ``config.json`` that a sweep or a comparison wrote.

    Raises:
        ValueError: it is neither.
    """
    try:
        values = json.loads(pathlib.Path(path).read_text())["config"]
        if "grid" not in values:
            return from_comparison(read(path))
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
        ValueError: a grid that names what no algorithm has, or a value out of range.

    Example:
        >>> configurations(SweepConfig(grid=("lr=0.1,0.2", "cohort_size=5")))[1]
        {'algorithm': 'fedavg', 'cohort_size': 5, 'lr': 0.2}
    """
    entries = _read_points(config.points) if config.points else [_parse_grid(config.grid)]
    takers = {name: set(choices.hyper_defaults(name)) for name in _known(config.algorithms)}
    found: list[Configuration] = []
    for entry in entries:
        for name in entry:
            _check_taker(name, takers)
        for algorithm, own in takers.items():
            settings = {name: values for name, values in entry.items() if name in SETTINGS}
            hyper = {
                name.removeprefix(f"{algorithm}."): values
                for name, values in entry.items()
                if name.removeprefix(f"{algorithm}.") in own
            }
            found += expand({"algorithm": [algorithm], **settings, **hyper})
    found = [entry for i, entry in enumerate(found) if entry not in found[:i]]
    resolved = choices.hyper_parameters(config)
    for entry in found:
        _check_entry(config, entry, resolved[entry["algorithm"]])
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


def _check_entry(config: SweepConfig, entry: Configuration, hyper: Mapping[str, Any]) -> None:
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
                choices.number(f"{entry['algorithm']}.{name}={value}", name, str(value))
        choices.algorithm(entry["algorithm"], {**hyper, **swept})
    except ValueError as error:
        raise ValueError(f"grid has {entry}: {error}") from error


def _known(algorithms: Sequence[str]) -> Sequence[str]:
    for name in algorithms:
        if name not in choices.ALGORITHMS:
            known = ", ".join(choices.ALGORITHMS)
            raise ValueError(f"algorithms has {name!r}; expected some of {known}")
    return algorithms


def _check_taker(name: str, takers: Mapping[str, set[str]]) -> None:
    algorithm, dot, own = name.partition(".")
    names = {own} if dot else {name}
    having = [a for a in takers if names & takers[a] and (not dot or a == algorithm)]
    if name not in SETTINGS and not having:
        known = "; ".join(f"{a}: {', '.join(sorted(own))}" for a, own in takers.items())
        raise ValueError(
            f"grid has {name!r}; expected a hyper-parameter ({known}) or an option "
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
            parsed[name] = _geometric(text, *values.split(":"))
        else:
            parsed[name] = [_value(name, value) for value in values.split(",")]
    if not parsed:
        raise ValueError("grid is empty; expected at least one NAME=V1,V2,...")
    return parsed


def _geometric(text: str, low: str, high: str, count: str) -> list[float]:
    try:
        first, last, number = float(low), float(high), int(count)
    except ValueError:
        first = last = number = 0
    if not (0 < first < last and number > 1):
        raise ValueError(f"grid has {text!r}; expected LOW:HIGH:COUNT, 0 < LOW < HIGH, COUNT > 1")
    # Twelve digits: 0.1, not 0.10000000000000002.
    return [float(f"{value:.12g}") for value in np.geomspace(first, last, number)]


def _read_points(path: pathlib.Path) -> list[dict[str, list[Any]]]:
    """The rows of a CSV file; empty fields are left out."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"points is {str(path)!r}, which cannot be read: {error}") from error
    if not rows or any(None in row for row in rows):
        raise ValueError(f"points is {str(path)!r}; expected a line of names and a row or more")
    return [{name: [_value(name, v)] for name, v in row.items() if v} for row in rows]


def _value(name: str, text: str) -> Any:
    """A setting's value by its type; of a hyper-parameter a number."""
    text = text.strip()
    hint = typing.get_type_hints(SweepConfig)[name] if name in SETTINGS else float
    kinds = typing.get_args(hint) or (hint,)
    try:
        if int in kinds:
            return int(text)
        return float(text) if float in kinds else text
    except ValueError:
        raise ValueError(f"grid has {name}={text}; expected a number") from None
