"""Grids of ``fedjax-sim sweep``: its options, and the configurations that they describe."""

import contextlib
import csv
import dataclasses
import itertools
import math
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

from fedjax_sim.checks import did_you_mean
from fedjax_sim.cli.unused import check_axes
from fedjax_sim.cli.varying import Varying
from fedjax_sim.engine import PERSONAL, direction, is_fraction
from fedjax_sim.runs import Configuration
from fedjax_sim.studies.setups import (
    FREE,
    OPEN,
    AlgorithmOptions,
    Count,
    Finite,
    GaussianNoise,
    Generated,
    Gigabytes,
    HyperParameters,
    Natural,
    NoCodec,
    Rounds,
    Run,
    Study,
    check,
    check_fine_tuning,
    check_study,
    check_tuning,
    checked,
    entries_of,
    fields_of,
    flat,
    group,
    own_names,
    replaced,
    resolve_hyper,
)
from fedjax_sim.types import annotated_kinds

# Groups of options that no grid varies, and options of other groups: they decide what is measured.
_FIXED_GROUPS = ("output", "seeds", "seed", "evaluation", "execution")
_FIXED = FREE | {"eval_every", "eval_time", "partition_per_seed", "privacy.epsilon"}
WRAPPERS = (
    "compress", "feedback", "compress_down", "robust", "selection", "attack", "privacy",
)  # fmt: skip
# Groups that no setup depends on: their numbers vary inside a program.
_OF_ALGORITHM = ("feedback", "robust", "selection", "privacy")


@dataclasses.dataclass(frozen=True)
class Axis:
    """Values of --grid.NAME: a list, or a geometric range. NAME is a hyper-parameter, of all
    algorithms that have it or as ALGORITHM.NAME of one (the value then replaces the common one), or
    an option, as cohort-size or attack.z; of a choice, as partition, values are kinds. A name of
    both, as alpha, is the option."""

    values: tuple[bool | int | float | str, ...] = ()
    """The values."""
    first: Annotated[float | None, tyro.conf.arg(name="from")] = None
    """First value of a geometric range, positive."""
    to: float | None = None
    """Last value of the range; those of an integer are rounded."""
    points: int | None = None
    """Number of values of the range, at least 2."""


@group
class SweepOptions:
    """Every option of ``fedjax-sim sweep``: a grid over a comparison's options."""

    run: Annotated[Run, OPEN] = Run(
        output=pathlib.Path("results/sweep"),
        seeds=3,
        algorithms=AlgorithmOptions(algorithms=("fedavg",)),
    )
    grid: dict[str, Axis] = dataclasses.field(
        default_factory=lambda: {"lr": Axis(values=(0.05, 0.1, 0.2, 0.4))}
    )
    """Values that vary, by name."""
    points: pathlib.Path | None = None
    """CSV file with a column per name and a row per configuration, which replaces --grid; default:
    none."""
    metric: str | None = None
    """Metric by which configurations are chosen; default: test/accuracy, with --personal
    personal/test/accuracy/weighted_mean. With --validation, valid/accuracy keeps the test examples
    out of the choice."""
    mode: Literal["auto", "max", "min"] = "auto"
    """Better values: larger (max) or smaller (min); auto: as the metric's name says."""
    last: Count = 1
    """Number of evaluations at the end of a run over which the metric is averaged."""
    best: bool = False
    """Score a run by its best evaluation instead."""
    cells: tuple[str, ...] = ()
    """Names for each of whose values a best configuration is chosen, e.g. cohort_size local_steps;
    default: one best configuration per algorithm."""
    over: Literal["cohort_size", "num_clients"] | None = None
    """Choose a best configuration for each of these numbers of clients, and draw the metric against
    them, a curve per algorithm; default: no such figure."""
    reference: Finite | None = None
    """With --over: value of the metric at the optimum. Errors are distances from it, and a second
    figure shows them with the speed-up; default: no such figure."""
    part: Count | None = None
    """Run this part of --parts of the grid only, for separate jobs that share the output folder.
    The part that ends last writes the tables; default: the whole grid."""
    parts: Count | None = None
    """Number of parts; default: one."""
    memory: Gigabytes | None = None
    """Gigabytes of device memory per program; default: most of an accelerator's memory, half of the
    host's."""

    @property
    def score_metric(self) -> str:
        """Name of the metric by which configurations are chosen."""
        if self.metric is not None:
            return self.metric
        return "test/accuracy" if self.run.evaluation.personal is None else PERSONAL


@dataclasses.dataclass(frozen=True)
class SavedSweep:
    """The parts of a sweep's ``config.json`` that are read again."""

    sweep: SweepOptions
    own: tuple[str, ...] = ()  # names of the parts that are a study module's
    # Options and hyper-parameters, as resolved, that a grid did not vary.
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    algorithms: dict[str, HyperParameters] = dataclasses.field(default_factory=dict)
    files: tuple[str, ...] = ()  # names of its tables and figures
    examples: str | None = None  # digest of the data set, unless a grid varied it


SWEEP = Varying(
    "sweep", "sweep", SweepOptions, SavedSweep, "grid", Axis,
    re.compile(r"--grid\.(.+)\.(values|from|to|points)(=.*)?"),
)  # fmt: skip


class Setting(NamedTuple):
    """An option of a comparison that a grid may vary."""

    group: str  # field of Run that has it
    kind: type  # of its values; text for a choice
    depth: float  # of a choice in others; infinity for a value

    @property
    def of_setup(self) -> bool:
        """True for an option on which the setup may depend, of which every value has its own."""
        return self.group not in _OF_ALGORITHM


def _settings(
    kind: type, top: str | None = None, before: str = "", depth: int = 0
) -> Iterator[tuple[str, Setting]]:
    kinds = annotated_kinds(kind)
    for field in fields_of(kind):
        name, own = before + field.name, top or field.name
        plain = (of for of in (float, int, bool, str) if of in kinds[field.name])
        values = str if field.alternatives else next(plain, None)
        if field.has_name and values is not None and name not in _FIXED:
            yield name, Setting(own, values, depth if field.alternatives else math.inf)
        for alternative in field.alternatives:
            if alternative is not kind:  # rules that mix uploads have rules
                inner = "" if field.is_open else f"{name}."
                yield from _settings(alternative, own, inner, depth + 1)


SETTINGS: dict[str, Setting] = {
    name: setting for name, setting in _settings(Run) if setting.group not in _FIXED_GROUPS
}


def settings_of(study: Study) -> dict[str, Setting]:
    """Returns the options of a study that a grid may vary: without those that own parts replace."""
    if study.setup is not None:
        return {name: own for name, own in SETTINGS.items() if own.group in WRAPPERS}
    gone = own_names(study)
    return {name: own for name, own in SETTINGS.items() if name not in gone}


def with_settings(run: Run, configuration: Mapping[str, Any]) -> Run:
    """Returns the options of one configuration's runs, with its settings in their order."""
    for name, value in configuration.items():
        if name in SETTINGS:
            run = _with_value(run, name, value)
    return run


def _with_value(run: Run, name: str, value: Any) -> Run:
    """Returns the options with another value; another kind keeps typed values that it has, too."""
    if not isinstance(value, str) or SETTINGS[name].depth == math.inf:
        return replaced(run, name, value)
    if (name, value) == ("compress", "none"):  # what is not compressed has no memory
        run = replaced(run, "feedback", "none")
    before = flat(run)
    if name in before and before[name] == value:
        return run
    changed, default = replaced(run, name, value), {}
    with contextlib.suppress(ValueError):  # a kind that has no defaults
        default = flat(replaced(run, name, before[name]))
    for key, own in before.items():  # choices before their fields
        typed = key not in default or own != default[key]
        if typed and key != name and key in flat(changed):
            changed = replaced(changed, key, own)
    return changed


def swept_hyper(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the hyper-parameters in a configuration."""
    names = (name for name in configuration if name not in SETTINGS and name != "algorithm")
    return {name.rpartition(".")[2]: configuration[name] for name in names}


def static_kinds(study: Study, names: Iterable[str]) -> dict[str, type]:
    """Returns the types of what cannot vary inside a program: settings of the setup, no numbers."""
    entries = entries_of(study).values()
    hyper = {key: kind for entry in entries for key, kind in entry.static_hyper.items()}
    kinds: dict[str, type] = {}
    for name in names:
        setting = SETTINGS.get(name)
        kind = hyper.get(name.rpartition(".")[2], float) if setting is None else setting.kind
        if kind is not float or (setting is not None and setting.of_setup):
            kinds[name] = kind
    return kinds


def mode_of(config: SweepOptions) -> Literal["max", "min"]:
    """Returns the better direction of the sweep's metric."""
    mode = direction(config.score_metric) if config.mode == "auto" else config.mode
    if mode is None:
        raise ValueError(
            "mode is auto; expected max or min, since the name of metric "
            f"{config.score_metric!r} does not say whether larger or smaller values are better"
        )
    return mode


def configurations(
    study: Study, config: SweepOptions, option: str | None = None
) -> list[Configuration]:
    """Returns every configuration of the sweep: algorithm, settings, hyper-parameters."""
    study = study.replaced(options=config.run)
    try:
        return _configurations(config, study, option or ("points" if config.points else "grid"))
    except ValueError as error:
        if config.points is None or str(config.points) in str(error):
            raise
        raise ValueError(f"{error} (in {config.points})") from error


def _configurations(config: SweepOptions, study: Study, option: str) -> list[Configuration]:
    run = config.run
    check(dataclasses.replace(config, run=Run()))
    if not (config.points or config.grid):
        raise ValueError(f"{option} is empty; expected at least one --{option}.NAME.values V1 V2")
    if isinstance(run.privacy, GaussianNoise) and run.privacy.epsilon is not None:
        raise ValueError(
            f"privacy.epsilon is {run.privacy.epsilon}; expected privacy.noise in a sweep, whose "
            f"{option} may vary it"
        )
    if run.execution.examples_memory is not None:
        raise ValueError(
            f"examples_memory is {run.execution.examples_memory}; expected none, since the runs of "
            "a sweep share examples on the device"
        )
    algorithms = entries_of(study)
    takers = {name: set(entry.hyper) for name, entry in algorithms.items()}
    found: list[Configuration] = []
    for axes in _read_points(config.points) if config.points else [config.grid]:
        for name in axes:
            check_taker(option, name, takers, settings_of(study))
        check_axes(option, axes, flat(run))
        kinds = static_kinds(study, axes)
        grid = {
            name: values_of(option, name, axis, kinds.get(name, float))
            for name, axis in axes.items()
        }
        settings = _product_of_settings(run, grid)
        for algorithm, own in takers.items():
            values = {
                _column(algorithm, short): grid.get(f"{algorithm}.{short}", grid[name])
                for name in grid
                if name not in SETTINGS and (short := name.removeprefix(f"{algorithm}.")) in own
            }
            found += [
                {"algorithm": algorithm, **setting, **dict(zip(values, chosen, strict=True))}
                for setting in settings
                for chosen in itertools.product(*values.values())
            ]
    found = [entry for i, entry in enumerate(found) if entry not in found[:i]]
    check_configurations(study, config, found, option)
    _check_results(config, found)
    return found


def check_configurations(
    study: Study, config: SweepOptions, entries: Sequence[Configuration], option: str
) -> None:
    """Refuses configurations that cannot run."""
    run, algorithms = config.run, entries_of(study)
    hyper = resolve_hyper(algorithms, run.algorithms)
    for entry in entries:
        name, own = entry["algorithm"], with_settings(run, entry)
        try:
            check_study(study.replaced(options=own))
            for key, value in (swept := swept_hyper(entry)).items():
                checked(algorithms[name], key, value)
            if not algorithms[name].is_own:
                check_fine_tuning(own.evaluation, swept)
            check_tuning(algorithms[name], resolved := {**hyper[name], **swept})
            algorithms[name].build(resolved)
            _check_counts(config, entry, own)
        except ValueError as error:
            if str(error) == _problem(study):  # of the options, whatever the grid says
                raise
            raise ValueError(f"{option} has {entry}: {error}") from error


def _column(algorithm: str, hyper: str) -> str:
    """Returns a hyper-parameter's name in configurations: ALGORITHM.NAME if an option is NAME."""
    return f"{algorithm}.{hyper}" if hyper in SETTINGS else hyper


def _product_of_settings(run: Run, grid: Mapping[str, Sequence[Any]]) -> list[Configuration]:
    """Returns the settings of all configurations; a kind of a choice has its own names only."""
    found: list[tuple[Configuration, Run]] = [({}, run)]
    # Uploads that a configuration does not compress have one feedback, none.
    without = len(grid.get("feedback", ())) > 1 and {*grid.get("compress", ())} > {"none"}

    def place(name: str) -> tuple[float, bool, int]:
        return SETTINGS[name].depth, without and name == "feedback", [*grid].index(name)

    for name in sorted(SETTINGS.keys() & grid, key=place):
        if not any(name in flat(own) for _, own in found):
            replaced(run, name, grid[name][0])  # which says what has it
        found = [
            (entry | {name: value}, _with_value(own, name, value)) if has else (entry, own)
            for entry, own in found
            for has in [
                name in flat(own)
                and not (without and name == "feedback" and isinstance(own.compress, NoCodec))
            ]
            for value in (grid[name] if has else [None])
        ]
    return [entry for entry, _ in found]


def _problem(study: Study) -> str | None:
    """Returns what is wrong without a grid, if anything is."""
    try:
        check_study(study)
    except ValueError as error:
        return str(error)
    return None


def _check_counts(config: SweepOptions, entry: Configuration, run: Run) -> None:
    """Checks numbers of clients and evaluations of one configuration."""
    natural = isinstance(run.partition, Natural) and not isinstance(run.data, Generated)
    if natural and "num_clients" in entry:
        raise ValueError("partition is 'natural'; expected another one with a grid of num_clients")
    time = run.time
    most = -(-time.rounds // time.eval_every) if isinstance(time, Rounds) else math.inf
    if config.last > (1 if config.best else most):
        why = "1, with --best" if config.best else f"{most}, the evaluations"
        raise ValueError(f"last is {config.last}; expected 1 .. {why}")


def _check_results(config: SweepOptions, entries: Sequence[Configuration]) -> None:
    """Checks the options about results against the configurations."""
    names = list(dict.fromkeys(name for entry in entries for name in entry if name != "algorithm"))
    for name in config.cells:
        if name not in names or config.cells.count(name) > 1:
            raise ValueError(
                f"cells has {name!r}; expected some of {', '.join(names)}, each at most once"
            )
    if config.over is not None and not all(config.over in entry for entry in entries):
        raise ValueError(f"over is {config.over!r}; expected a name with values in the grid")
    if config.reference is not None:
        if config.over is None:
            raise ValueError(f"reference is {config.reference}; expected --over with it")
        mode = direction(config.score_metric) if config.mode == "auto" else config.mode
        if mode == "max" and config.reference <= 0 and is_fraction(config.score_metric):
            raise ValueError(
                f"reference is {config.reference}; expected a positive number, such as 1, with "
                f"--metric {config.score_metric}, whose error is its distance from the reference"
            )
    if (config.part is None) != (config.parts is None) or (config.part or 1) > (config.parts or 1):
        raise ValueError(
            f"part is {config.part}; expected 1 .. --parts, which is {config.parts}, or neither"
        )


def check_taker(
    option: str, name: str, takers: Mapping[str, set[str]], settings: Mapping[str, Setting]
) -> None:
    """Refuses a name that is neither a hyper-parameter nor an option that a grid may vary."""
    algorithm, dot, own = name.rpartition(".")
    if name in settings or any(
        {own, name} & takers[a] for a in takers if not dot or a == algorithm
    ):
        return
    if name in SETTINGS:
        raise ValueError(f"{option} has {name!r}, which the study's own parts replace")
    known = "; ".join(f"{a}: {', '.join(sorted(names))}" for a, names in takers.items())
    every = [*settings, *(key for names in takers.values() for key in names)]
    raise ValueError(
        f"{option} has {name!r}; expected a hyper-parameter ({known}) or an option that may "
        f"vary, as cohort_size{did_you_mean(own if dot and name not in every else name, every)}"
    )


def values_of(option: str, name: str, axis: Axis, kind: type) -> list[Any]:
    """Returns the values of an axis in the type of their name."""
    limits = (axis.first, axis.to, axis.points)
    if limits == (None, None, None):
        values = [_value(f"{option} has {name}={value}", kind, value) for value in axis.values]
    else:
        values = _geometric(f"{option} has {name}", kind, axis)
    if not values:
        raise ValueError(f"{option} has {name} without values; expected --{option}.{name}.values")
    for i, value in enumerate(values):
        if value in values[:i]:
            raise ValueError(f"{option} has {name}={value} twice; expected distinct values")
    return values


def _geometric(where: str, kind: type, axis: Axis) -> list[Any]:
    if kind not in (int, float):
        raise ValueError(f"{where}.from={axis.first}; expected values, which are no numbers")
    low, high, count = axis.first or 0.0, axis.to or 0.0, axis.points or 0
    if axis.values or not (0 < low < high < math.inf and count > 1):
        given = f"values={axis.values}, " if axis.values else ""
        raise ValueError(
            f"{where} with {given}from={axis.first}, to={axis.to}, points={axis.points}; expected "
            "0 < from < to and points > 1, or values alone"
        )
    values = np.geomspace(low, high, count).tolist()
    if kind is int:
        return list(dict.fromkeys(map(round, values)))
    # Twelve digits: 0.1, not 0.10000000000000002.
    return [float(f"{value:.12g}") for value in values]


def _value(where: str, kind: type, value: Any) -> Any:
    if kind is str:
        return str(value)
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if (type(value) is int and kind in (int, float)) or type(value) is kind is float:
        return kind(value)
    expected = {int: "an integer", bool: "true or false"}.get(kind, "a number")
    raise ValueError(f"{where}; expected {expected}")


def _read_points(path: pathlib.Path) -> list[dict[str, Axis]]:
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
    for number, row in enumerate(rows, 1):
        if None in row.values() or not any(row.values()):  # would stand for the defaults
            raise ValueError(
                f"points is {str(path)!r}, whose row {number} has "
                f"{sum(map(bool, row.values()))} values; expected one or more, and a comma between "
                "each two names"
            )
    return [
        {name: Axis(values=(_parsed(text),)) for name, text in row.items() if text} for row in rows
    ]


def _parsed(text: str) -> int | float | str:
    """Returns the number that a text stands for, else the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip()
