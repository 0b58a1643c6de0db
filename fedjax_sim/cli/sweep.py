"""``fedjax-sim sweep``: from options to finished runs, tables and figures."""

import dataclasses
import functools
import inspect
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fedjax_sim.checks import did_you_mean
from fedjax_sim.cli import report
from fedjax_sim.cli.grid import (
    RUN_SETTINGS,
    SETTINGS,
    configurations,
    mode_of,
    static_hyper,
    swept_hyper,
    with_settings,
)
from fedjax_sim.cli.sweep_results import SweepResult, no_results, outdated, results_of, speed_up_of
from fedjax_sim.datasets import Dataset
from fedjax_sim.runs import (
    Callback,
    Configuration,
    Options,
    Part,
    Storage,
    SweepProgress,
    environment,
    locked,
    metric_shapes,
    parse_part,
    sweep,
    write_json,
)
from fedjax_sim.studies.setups import build, own_objects
from fedjax_sim.studies.setups.aggregators import check_uploads
from fedjax_sim.studies.setups.attacks import Attack
from fedjax_sim.studies.setups.code_digest import changed_code, code_digests
from fedjax_sim.studies.setups.config import FREE_FIELDS, RunConfig, SweepConfig
from fedjax_sim.studies.setups.config_file import (
    differences,
    is_of_sweep,
    read_saved_sweep,
    to_json,
)
from fedjax_sim.studies.setups.entries import AGGREGATOR, PRIVACY, StepsPerVisit
from fedjax_sim.studies.setups.private_runs import Accounts, accounts_of, check_parts
from fedjax_sim.studies.setups.problem import Problem, model, prepare, seed_keys, wrapped
from fedjax_sim.studies.setups.registry import algorithms_of
from fedjax_sim.types import FedAlgorithm, Setup, Timeline


def run_sweep(config: SweepConfig, callbacks: Sequence[Callback] = ()) -> SweepResult:
    """Runs a grid and writes the results to ``config.output``.

    ``history.csv`` (tidy: configuration, seed, round, metric, value), ``scores.csv`` (a row per
    run), ``best.csv`` (the best configuration per algorithm and cell, with the confidence interval
    over seeds), ``paired.csv`` (differences between the algorithms' best, seed by seed),
    ``cells.md`` (with two cells: a table), ``privacy.csv`` (epsilon of every private
    configuration), ``speed_up.csv`` (with ``over``), figures, and ``slices/``, the finished runs,
    which a later call does not repeat, even if its grid is larger or it has more seeds. Tables and
    figures show the grid of the last call; those of an earlier one are removed, and ``slices/``
    keeps its runs. A part of a sweep writes ``slices/`` only, unless all other parts are finished:
    it then writes everything.

    Raises:
        ValueError: a value out of range, or an output folder that cannot be created or holds
            another sweep; before anything is compiled or written.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = run_sweep(SweepConfig(
        ...         output=pathlib.Path(folder), grid=("lr=0.001,0.2",), rounds=4, seeds=2))
        >>> result.best["lr"].tolist()
        [0.2]
    """
    part = None if config.part is None else parse_part(config.part)
    entries = configurations(config)
    report.check_folder(config.output, "a sweep")
    own = (own_objects.references(with_settings(config, entry)) for entry in entries)
    code = code_digests(itertools.chain.from_iterable(own))
    fixed = _checked(config, entries, code)
    dataset = own_objects.load_dataset(config)
    # Equal for all parts; tables of the folder choose by the same metric.
    shared = to_json(dataclasses.replace(config, part=None, metric=config.score_metric))
    header = {"config": shared, "code": code, **fixed, "environment": environment()}
    runs = _Runs(config, dataset, entries)
    grid = entries if part is None else Part(entries, *part)
    memory = None if config.memory is None else int(config.memory * 1e9)
    with build.arithmetic(config):
        result = sweep(
            runs.factory(),
            runs.make_setup(),
            grid,
            seed_keys(config)[2],
            callbacks=[_Header(config.output / "config.json", header), *callbacks],
            storage=Storage(config.output, config=runs.identity),
            options=Options(
                execution=build.execution(config),
                seeds=range(config.seed, config.seed + config.seeds),
                memory=memory,
            ),
        )
    if part is not None and result.missing:
        return no_results(result)
    results, files = results_of(config, result)
    guarantees = runs.guarantees()
    if len(guarantees):
        files["privacy.csv"] = guarantees
    if not report.is_read_only(config.output):
        with locked(config.output, wait=True):  # several processes may end at the same time
            path = config.output / "config.json"
            known = read_saved_sweep(path).files if path.exists() else ()
            names = {*files, *known}  # a kill in between leaves files that config.json names
            write_json(path, report.as_json(header | {"files": sorted(names)}))
            report.write_all(config.output, files)
            for name in outdated(known, files) if result.runs else ():
                (config.output / name).unlink(missing_ok=True)
                names.discard(name)
            # After the other files, which do not depend on a reference that a score has passed.
            last = speed_up_of(config, results)
            write_json(path, report.as_json(header | {"files": sorted({*names, *last})}))
            report.write_all(config.output, last)
    return results


class _Header(NamedTuple):
    """Callback that writes config.json, not before the folder is known to be this sweep's."""

    path: pathlib.Path
    header: Mapping[str, Any]

    def progress(self, progress: SweepProgress) -> None:
        if progress.round == 0:
            write_json(self.path, report.as_json(self.header))


def _types(config: SweepConfig, entries: Sequence[Configuration]) -> dict[str, type]:
    """Returns the types of hyper-parameters that cannot vary inside a program, by their names."""
    static = static_hyper(config)
    names = {name for entry in entries for name in entry}
    own = {name: static.get(name.rpartition(".")[2]) for name in names}
    return {name: kind for name, kind in own.items() if kind is not None}


def _fixed(config: SweepConfig) -> dict[str, Any]:
    """Returns options that no grid varies and that the digests of data do not cover."""
    names = ("loss", "metrics", "partition_per_seed", "validation", "validation_of")
    default = SweepConfig()
    values = {name: getattr(config, name) for name in names}
    chosen = {name: v for name, v in values.items() if v != getattr(default, name)}
    return {"dataset": config.dataset, "precision": config.precision, **chosen}


def _checked(
    config: SweepConfig, entries: Sequence[Configuration], code: dict[str, str]
) -> dict[str, Any]:
    """Returns options and hyper-parameters that no grid in the output folder varies.

    Also the names of the tables and figures that earlier calls have written.

    Raises:
        ValueError: the folder's runs have other ones, or are of other code of the user's functions.
    """
    free = FREE_FIELDS | {"seed", "seeds", "execution", "chunk_size"} | _varied(entries)
    names = {field.name for field in dataclasses.fields(RunConfig)} - free
    options = {name: value for name, value in to_json(config).items() if name in names}
    hyper: dict[str, dict[str, Any]] = {}
    for algorithm, values in report.as_json(build.hyper_parameters(config)).items():
        varied = _varied([swept_hyper(e) for e in entries if e["algorithm"] == algorithm])
        hyper[algorithm] = {name: value for name, value in values.items() if name not in varied}
    path = config.output / "config.json"
    if not path.exists():
        return {"options": options, "algorithms": hyper, "files": []}
    old = read_saved_sweep(path)
    if not is_of_sweep(path):  # of a comparison that was interrupted before its first run
        raise ValueError(
            f"output is '{config.output}', which holds a comparison; expected another folder for "
            "a sweep"
        )
    differing = differences(old.options, options)
    for algorithm, known in old.algorithms.items():
        differing += [
            f"{algorithm}.{text}" for text in differences(known, hyper.get(algorithm, {}))
        ]
        hyper[algorithm] = known | hyper.get(algorithm, {})
    differing += changed_code(old.code, code)
    if differing:
        raise ValueError(
            f"output is '{config.output}', which holds another sweep: {'; '.join(differing)}; "
            "choose another folder or delete that one"
        )
    return {"options": old.options | options, "algorithms": hyper, "files": list(old.files)}


def _varied(entries: Sequence[Configuration]) -> set[str]:
    """Returns the names that every one of the configurations has."""
    return set.intersection(*map(set, entries))


class _Runs:
    """The setups, algorithms and identities of a sweep's configurations."""

    def __init__(self, config: SweepConfig, dataset: Dataset, entries: Sequence[Configuration]):
        self.config, self.entries = config, entries
        self.algorithms = algorithms_of(config.algorithms)
        self.hyper = build.hyper_parameters(config)
        self.model = model(config, dataset)[1]
        # Filled outside of compiled programs, read inside.
        self.laws: dict[tuple, tuple[StepsPerVisit | None, int, Attack | None, Timeline]] = {}
        self.accounts: dict[tuple, Accounts] = {}
        self.laws_differ = (
            config.clock != "none"
            or any(entry.takes_population for entry in self.algorithms.values())
            or any(entry.get("attack", config.attack) != "none" for entry in entries)
            or any(
                name in values for values in (*entries, *self.hyper.values()) for name in PRIVACY
            )
        )

        @functools.lru_cache(maxsize=4)  # algorithms under the same settings share the problem
        def problem(own: SweepConfig, seed: int | None) -> Problem:
            if seed is None:
                return prepare(own, dataset)
            return prepare(build.of_seed(own, seed), dataset, attack_seed=own.partition_seed)

        self.problem = problem

    def make_setup(self) -> Callable[..., Setup]:
        """Returns the setup as a function of the algorithm and the settings."""

        def make(algorithm: str, seed: int | None = None, **settings: Any) -> Setup:
            own = with_settings(self.config, {"algorithm": algorithm, **settings})
            own = dataclasses.replace(own, algorithms=self.config.algorithms)
            problem = self.problem(own, seed)
            setup = problem.setup_of(algorithm)
            if self.laws_differ:
                self.record_laws(algorithm, settings, own)
            first = next(entry for entry in self.entries if entry["algorithm"] == algorithm)
            hyper = {**self.hyper[algorithm], **swept_hyper(first)}
            built = problem.algorithm(self.algorithms[algorithm], hyper)
            check_parts(built, hyper, setup)
            here = {"algorithm": algorithm, **settings}
            for entry in self.entries:
                if here.items() <= entry.items():
                    values = {**self.hyper[algorithm], **swept_hyper(entry)}
                    check_uploads(values.get(AGGREGATOR), setup.timeline)
            shapes = metric_shapes(built, setup)
            measured = [name for name, value in shapes.items() if value.shape == ()]
            if self.config.score_metric not in measured:
                metric, known = self.config.score_metric, ", ".join(sorted(measured))
                raise ValueError(
                    f"metric is {metric!r}; expected one of {known}{did_you_mean(metric, measured)}"
                )
            mode_of(self.config)  # refuses a name that does not say it, before anything runs
            return setup if seed is None else build.one_seed(setup)

        per_seed = ("seed",) if self.config.partition_per_seed else ()
        return _named(make, ("algorithm", *per_seed, *SETTINGS))

    def record_laws(self, algorithm: str, settings: Configuration, own: SweepConfig) -> None:
        """Keeps what the algorithm has from the setup of all seeds, like that of a run."""
        key = algorithm, *sorted(settings.items())
        if key in self.laws:
            return
        problem = self.problem(own, None)
        setup = problem.setup_of(algorithm)
        law = problem.steps_per_visit(self.algorithms[algorithm])
        self.laws[key] = law, setup.task.num_clients, problem.attack, setup.timeline
        self.accounts[key] = accounts_of(self.config, setup)

    def factory(self) -> Callable[..., FedAlgorithm]:
        """Returns the algorithm as a function of its name and hyper-parameters.

        With a clock it takes the settings, too: they decide how many steps a visit has.  So it does
        for algorithms that need the number of clients, under attack, and for private ones.
        """

        def make(algorithm: str, **values: Any) -> FedAlgorithm:
            settings = {name: value for name, value in values.items() if name in SETTINGS}
            swept = swept_hyper(values)
            law, num_clients, attack, timeline = None, 1, None, None
            if self.laws_differ:
                law, num_clients, attack, timeline = self.laws[algorithm, *sorted(settings.items())]
            hyper = {**self.hyper[algorithm], **swept}
            entry = self.algorithms[algorithm]
            built = entry.build(hyper, law, num_clients)
            return wrapped(entry, built, hyper, self.model, self.config, attack, timeline)

        settings = SETTINGS if self.laws_differ else ()
        named = _named(make, ("algorithm", *settings), others=True)
        named.__annotations__ = {"algorithm": str, **_types(self.config, self.entries)}
        return named

    def guarantees(self) -> pd.DataFrame:
        """Returns a row per private configuration: its values, epsilon, delta and adjacency."""
        rows = []
        for entry in self.entries:
            algorithm = str(entry["algorithm"])
            settings = {name: value for name, value in entry.items() if name in SETTINGS}
            hyper = {**self.hyper[algorithm], **swept_hyper(entry)}
            accounts = self.accounts.get((algorithm, *sorted(settings.items())))
            if accounts is not None:
                private = accounts.guarantees({algorithm: hyper}).values()
                rows += [{**entry, **guarantee._asdict()} for guarantee in private]
        return pd.DataFrame(rows)

    def identity(self, configuration: Configuration) -> dict[str, Any]:
        """Returns the settings, and the hyper-parameters that not every configuration sets."""
        own = with_settings(self.config, configuration)
        algorithm = configuration["algorithm"]
        hyper = {**self.hyper[algorithm], **swept_hyper(configuration)}
        entries = [entry for entry in self.entries if entry["algorithm"] == algorithm]
        varied = _varied(list(map(swept_hyper, entries)))
        kept = {name: value for name, value in hyper.items() if name not in varied}
        settings = RUN_SETTINGS if own.clock == "none" else SETTINGS
        values = {name: getattr(own, name) for name in settings}
        return {"settings": values, "hyper": kept, **_fixed(self.config)}


def _named(function: Callable, names: Sequence[str], *, others: bool = False) -> Callable:
    """The function with a signature that lists its keywords, which :func:`sweep` goes by."""
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, default=None) for name in names]
    if others:
        parameters.append(inspect.Parameter("hyper", inspect.Parameter.VAR_KEYWORD))
    setattr(function, "__signature__", inspect.Signature(parameters))  # noqa: B010
    return function
