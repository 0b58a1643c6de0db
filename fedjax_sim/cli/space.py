"""Spaces of ``fedjax-sim tune``: its options, and the configurations that a sampler may choose."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from fedjax_sim.cli.grid import (
    SETTINGS,
    Axis,
    SweepOptions,
    check_configurations,
    check_taker,
    configurations,
    settings_of,
    static_kinds,
    values_of,
)
from fedjax_sim.cli.varying import Varying
from fedjax_sim.engine import PERSONAL
from fedjax_sim.runs import Configuration
from fedjax_sim.studies.setups import (
    OPEN,
    AlgorithmOptions,
    Count,
    Gigabytes,
    Run,
    Seed,
    Study,
    check,
    entries_of,
    group,
)

if TYPE_CHECKING:
    import optuna

_MOST_RANGES = 10  # whose ends are tried in every combination


@dataclasses.dataclass(frozen=True)
class Span:
    """Values of --space.NAME among which the sampler chooses: a list, or a range. NAME is a
    hyper-parameter, of all algorithms that have it or as ALGORITHM.NAME of one (which then replaces
    the common one), or an option, as cohort-size, local-steps or attack.z; of a choice, as
    partition, values are kinds. A name of both, as alpha, is the option."""

    values: tuple[bool | int | float | str, ...] = ()
    """The values, in any order."""
    first: Annotated[float | None, tyro.conf.arg(name="from")] = None
    """Smallest value of a range, whose logarithm is uniform."""
    to: float | None = None
    """Largest value of the range."""
    linear: bool = False
    """The values of the range are uniform themselves; it may begin at 0."""
    step: float | None = None
    """Distance between values of the range, which are then uniform; default: any number, 1 for
    integers."""

    def __str__(self) -> str:
        if (self.first, self.to) == (None, None):
            return " or ".join(map(str, self.values))
        steps = "" if self.step is None else f", steps of {self.step:.12g}"
        log = "" if self.linear or self.step is not None else " (log)"
        return f"{self.first:.12g} to {self.to:.12g}{steps}{log}"


@group
class TuneOptions:
    """Every option of ``fedjax-sim tune``: a space over a comparison's options, and a sampler."""

    run: Annotated[Run, OPEN] = Run(
        output=pathlib.Path("results/tuning"),
        seeds=3,
        algorithms=AlgorithmOptions(algorithms=("fedavg",)),
    )
    space: dict[str, Span] = dataclasses.field(
        default_factory=lambda: {"lr": Span(first=0.01, to=1.0)}
    )
    """What the sampler chooses, by name; of several --algorithms it chooses one, too."""
    trials: Count = 32
    """Configurations in all. A later call with more of them continues."""
    batch: Count = 8
    """Configurations that the sampler chooses at once and that train together. With more of them,
    fewer choices know the scores of others."""
    metric: str | None = None
    """Metric whose mean over the seeds after the last round is the score; default: valid/accuracy
    with --validation, else test/accuracy; with --personal personal/valid/accuracy/weighted_mean if
    clients have validation examples, else personal/test/accuracy/weighted_mean."""
    mode: Literal["auto", "max", "min"] = "auto"
    """Better values: larger (max) or smaller (min); auto: as the metric's name says."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Sampler of Optuna: tpe learns from the scores after ten random trials; random never does."""
    sampler_seed: Seed = 0
    """Seed of the sampler."""
    halving: tuple[Count, ...] = ()
    """Rounds, multiples of --eval-every, after which only the best 1 / --eta of a batch go on, from
    the states of their runs; default: all trials do all rounds."""
    eta: Count = 3
    """With --halving: one of so many trials of a batch goes on, at least 2."""
    memory: Gigabytes | None = None
    """Gigabytes of device memory per program; default: most of an accelerator's memory, half of the
    host's."""

    @property
    def score_metric(self) -> str:
        """Name of the metric that is tuned for."""
        if self.metric is not None:
            return self.metric
        population = self.run.population
        if self.run.evaluation.personal is not None:
            own = bool(population.validation) and population.validation_of == "clients"
            return PERSONAL.replace("test", "valid") if own else PERSONAL
        return "valid/accuracy" if population.validation else "test/accuracy"

    @property
    def sweep(self) -> SweepOptions:
        """The sweep over no grid whose runs and scores are those of this tuning."""
        return SweepOptions(
            run=self.run, grid={}, metric=self.score_metric, mode=self.mode, memory=self.memory
        )


@dataclasses.dataclass(frozen=True)
class SavedTuning:
    """The parts of a tuning's ``config.json`` that are read again."""

    tuning: TuneOptions
    own: tuple[str, ...] = ()  # names of the parts that are a study module's
    search: dict[str, Any] = dataclasses.field(default_factory=dict)  # what decides the proposals


TUNING = Varying(
    "tune", "tuning", TuneOptions, SavedTuning, "space", Span,
    re.compile(r"--space\.(.+)\.(?:values|from|to|step|(?:no-)?linear)(?:=.*)?"),
)  # fmt: skip


class _Range(NamedTuple):
    """Numbers between two ends."""

    low: float
    high: float
    log: bool
    step: float | None
    integers: bool


class Space:
    """Configurations among which a sampler chooses; itself a function of a trial of Optuna.

    ``corners`` are the configurations with all choices and with the ends of all ranges.  They are
    checked before anything runs, and decide which names a configuration has: those of a choice's
    kind and of the algorithm.  Every proposal is added to ``entries``.
    """

    def __init__(self, study: Study, config: TuneOptions):
        self._study, self._config = study.replaced(options=config.run), config
        check(dataclasses.replace(config, run=Run()))
        if config.eta < 2:
            raise ValueError(f"eta is {config.eta}; expected at least 2")
        if not config.space:
            raise ValueError(
                "space is empty; expected at least one --space.NAME.from LOW --space.NAME.to HIGH "
                "or --space.NAME.values V1 V2"
            )
        algorithms = entries_of(self._study)
        takers = {name: set(entry.hyper) for name, entry in algorithms.items()}
        for name in config.space:
            if name in ("rounds", "time", "horizon"):
                raise ValueError(
                    f"space has {name!r}; expected other names, since scores after different "
                    "numbers of rounds cannot be compared"
                )
            check_taker("space", name, takers, settings_of(self._study))
        kinds = static_kinds(self._study, config.space)
        self._options = {
            name: _options(name, span, kinds.get(name, float))
            for name, span in config.space.items()
        }
        ranges = [name for name, own in self._options.items() if isinstance(own, _Range)]
        if len(ranges) > _MOST_RANGES:
            raise ValueError(f"space has {len(ranges)} ranges; expected at most {_MOST_RANGES}")
        # Sorted: in another order of its names a sampler would propose other values.
        axes = {name: _ends(self._options[name]) for name in sorted(self._options)}
        sweep = dataclasses.replace(config.sweep, grid=axes)
        self.corners = configurations(self._study, sweep, "space")
        self._several = len(algorithms) > 1
        self.entries = list(self.corners)

    def __call__(self, trial: optuna.Trial) -> Configuration:
        """Returns the sampler's next configuration."""
        known, entry = self.corners, dict[str, Any]()
        while len(entry) < len(known[0]):  # all of them have the same next name
            name = [*known[0]][len(entry)]
            if name == "algorithm":
                choices = tuple(dict.fromkeys(corner[name] for corner in known))
                entry[name] = trial.suggest_categorical(name, choices)
            else:
                label, options = self._of(entry["algorithm"], name)
                entry[name] = _suggested(trial, label, options)
            if any(corner[name] == entry[name] for corner in known):
                known = [corner for corner in known if corner[name] == entry[name]]
        check_configurations(self._study, self._config.sweep, [entry], "space")
        if entry not in self.entries:
            self.entries.append(entry)
        return entry

    def _of(self, algorithm: str, name: str) -> tuple[str, _Range | tuple[Any, ...]]:
        """Returns a name's label in Optuna, which each algorithm has for itself, and its values."""
        if name in SETTINGS:
            return name, self._options[name]
        short = name.rpartition(".")[2]
        own = f"{algorithm}.{short}"
        options = self._options.get(own, self._options.get(short))
        assert options is not None
        return own if self._several else short, options


def _options(name: str, span: Span, kind: type) -> _Range | tuple[Any, ...]:
    """Returns the values of a name, in its type."""
    where, ends = f"space has {name}", (span.first, span.to)
    if ends == (None, None):
        if span.linear or span.step is not None:
            raise ValueError(f"{where} without a range; expected --space.{name}.from and .to")
        return tuple(values_of("space", name, Axis(span.values), kind))
    if kind not in (int, float):
        raise ValueError(f"{where} with a range; expected values, which are no numbers")
    low, high = (math.nan if end is None else end for end in ends)
    log = not (span.linear or span.step is not None)
    if span.values or not (low < high < math.inf and (low > 0 or not log) and low > -math.inf):
        given = f"values={span.values}, " if span.values else ""
        expected = "0 < from < to" if log else "from < to"
        other = f", or --space.{name}.linear" if log and low <= 0 else ", or values alone"
        raise ValueError(
            f"{where} with {given}from={span.first}, to={span.to}; expected {expected}{other}"
        )
    if kind is int:
        for end, value in (("from", low), ("to", high), ("step", span.step or 1)):
            if value != int(value):
                raise ValueError(f"{where} with {end}={value}; expected an integer")
    if span.step is not None:
        steps = (high - low) / span.step if span.step > 0 else 0.0
        if steps < 1 or abs(steps - round(steps)) > 1e-9 * steps:
            raise ValueError(
                f"{where} with from={span.first}, to={span.to}, step={span.step}; expected a step "
                "that divides the range"
            )
    return _Range(low, high, log, span.step, kind is int)


def _ends(options: _Range | tuple[Any, ...]) -> Axis:
    if not isinstance(options, _Range):
        return Axis(options)
    kind = int if options.integers else float
    return Axis((kind(options.low), kind(options.high)))


def _suggested(trial: optuna.Trial, name: str, options: _Range | tuple[Any, ...]) -> Any:
    if not isinstance(options, _Range):
        return trial.suggest_categorical(name, options)
    low, high, log, step, integers = options
    if integers:
        return trial.suggest_int(name, int(low), int(high), log=log, step=int(step or 1))
    return trial.suggest_float(name, low, high, log=log, step=step)
