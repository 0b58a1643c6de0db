"""``fedjax-sim sweep``: from options to finished runs, tables and figures."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack, cast

import pandas as pd

from fedjax_sim.checks import check_known
from fedjax_sim.cli import report
from fedjax_sim.cli.grid import (
    SETTINGS,
    SWEEP,
    SweepOptions,
    configurations,
    mode_of,
    static_kinds,
    swept_hyper,
    with_settings,
)
from fedjax_sim.cli.sweep_results import SweepResult, no_results, outdated, results_of, speed_up_of
from fedjax_sim.datasets import Dataset
from fedjax_sim.models import Model
from fedjax_sim.runs import (
    Callback,
    Configuration,
    FolderError,
    Options,
    Part,
    Storage,
    SweepProgress,
    environment,
    locked,
    metric_shapes,
    names_of_numbers,
    sweep,
    write_json,
)
from fedjax_sim.studies.setups import (
    NO_DIGESTS,
    Accounts,
    Attacked,
    Generated,
    NoPrivacy,
    OwnDigests,
    Problem,
    Run,
    StepsPerVisit,
    Study,
    Wrappers,
    accounts_of,
    arithmetic,
    as_json,
    check_parts,
    check_steps,
    check_uploads,
    differences,
    entries_of,
    examples_digest,
    fixed_values,
    load_dataset,
    members_of,
    of_first_partition,
    of_parts,
    of_seed,
    of_setup,
    one_seed,
    prepare,
    resolve_hyper,
    seed_keys,
    shown_settings,
    strategy_of,
    to_json,
)
from fedjax_sim.types import FedAlgorithm, Setup, Timeline

# Options that may differ between two calls on one folder, besides those of a comparison.
FREE_IN_FOLDER = {"seed", "seeds", "execution", "chunk_size"}


def run_sweep(
    study: Study, config: SweepOptions, callbacks: Sequence[Callback] = ()
) -> SweepResult:
    """Runs a grid and writes the results to the folder ``config.run.output``.

    ``history.csv`` (tidy: configuration, seed, round, metric, value), ``scores.csv`` (a row per
    run), ``best.csv`` (the best configuration per algorithm and cell, with the confidence interval
    over seeds), ``paired.csv`` (differences between the algorithms' best in a cell, seed by seed),
    ``cells.md`` (with two cells: a table), ``privacy.csv`` (epsilon of every private
    configuration), ``speed_up.csv`` (with ``over`` and ``reference``), figures, and ``slices/``,
    the finished runs, which a later call does not repeat, even if its grid is larger or it has more
    seeds. Tables and figures show the grid of the last call; those of an earlier one are removed,
    and ``slices/`` keeps its runs. A part of a sweep writes ``slices/`` only, unless all other
    parts are finished: it then writes everything.
    """
    run = config.run
    study = study.replaced(options=run)
    entries = configurations(study, config)
    report.check_folder(run.output, "a sweep")
    # Equal for all parts; tables of the folder choose by the same metric.
    shared = dataclasses.replace(config, part=None, parts=None, metric=config.score_metric)
    about = {
        "sweep": to_json(shared),
        "settings": shown_settings(study, shared),
        "own": study.own_parts,
        "environment": environment(),
    }

    runs = Runs(study, config, entries)

    def header() -> dict[str, Any]:
        return about | _checked(study, entries, runs.examples(), runs.own())

    header()  # refuses another sweep before anything is loaded
    grid = entries if config.part is None else Part(entries, config.part, config.parts or 1)
    with arithmetic(run.execution):
        result = sweep(
            runs.factory(),
            runs.make_setup(),
            grid,
            seed_keys(run.seed, run.seeds)[2],
            callbacks=[Header(run.output / "config.json", header), *callbacks],
            storage=runs.storage(),
            options=runs.options(),
        )
    if config.part is not None and result.missing:
        return no_results(result)
    results, files = results_of(config, result)
    guarantees = runs.guarantees()
    if len(guarantees):
        files["privacy.csv"] = guarantees
    if not report.is_read_only(run.output):
        with locked(run.output, wait=True):  # several processes may end at the same time
            path, written = run.output / "config.json", header()
            known = written["files"]
            names = {*files, *known}  # a kill in between leaves files that config.json names
            write_json(path, as_json(written | {"files": sorted(names)}))
            report.write_all(run.output, files)
            for name in outdated(known, files) if result.runs else ():
                (run.output / name).unlink(missing_ok=True)
                names.discard(name)
            # After the other files, which do not depend on a reference that a score has passed.
            last = speed_up_of(config, results)
            write_json(path, as_json(written | {"files": sorted({*names, *last})}))
            report.write_all(run.output, last)
    return results


class Header(NamedTuple):
    """Callback that writes config.json, not before the folder is known to be this sweep's.

    Another process may have begun another sweep there since the first look, or have grown this one.
    """

    path: pathlib.Path
    header: Callable[[], Mapping[str, Any]]  # refuses another sweep, keeps what this one has

    def progress(self, progress: SweepProgress) -> None:
        if progress.round == 0:
            with locked(self.path.parent, wait=True):
                write_json(self.path, as_json(self.header()))


def _checked(
    study: Study,
    entries: Sequence[Configuration],
    examples: str | None = None,
    own: OwnDigests = NO_DIGESTS,
) -> dict[str, Any]:
    """Returns options and hyper-parameters that no grid in the output folder varies.

    Also the names of the tables and figures that earlier calls have written, and the digests of the
    examples and of own parts, if they are known: runs of another grid are not compared with those
    in the folder.
    """
    run = study.options
    free = FREE_IN_FOLDER | names_varied(entries)
    options = {name: value for name, value in fixed_values(run).items() if name not in free}
    hyper: dict[str, dict[str, Any]] = {}
    for algorithm, values in as_json(resolve_hyper(entries_of(study), run.algorithms)).items():
        varied = names_varied([swept_hyper(e) for e in entries if e["algorithm"] == algorithm])
        hyper[algorithm] = {name: value for name, value in values.items() if name not in varied}
    path = run.output / "config.json"
    if not path.exists():
        new = {"options": options, "algorithms": hyper, "files": [], "examples": examples}
        return new | own.members({})
    members = members_of(path)
    if "config" in members:  # of a comparison that was interrupted before its first run
        raise FolderError(
            f"output is '{run.output}', which holds a comparison; expected another folder for a "
            "sweep"
        )
    old = SWEEP.read_saved(path)
    differing = differences(old.options, options)
    differing += report.own_differences(old.own, study.own_parts)
    for algorithm, known in old.algorithms.items():
        differing += [
            f"{algorithm}.{text}" for text in differences(known, hyper.get(algorithm, {}))
        ]
        hyper[algorithm] = known | hyper.get(algorithm, {})
    if None not in (old.examples, examples) and old.examples != examples:
        differing.append("the examples of the data set have changed")
    accepts = run.execution.accept_changed_code
    differing += [
        f"the {name} of the study module has changed"
        for name in own.changed(members, functions=not accepts)
    ]
    report.refuse_other(run.output, "sweep", differing)
    return {
        "options": old.options | options,
        "algorithms": hyper,
        "files": list(old.files),
        "examples": examples or old.examples,
        **own.members(members, accepted=accepts),
    }


def names_varied(entries: Sequence[Configuration]) -> set[str]:
    """Returns the names that every one of the configurations has."""
    return set.intersection(*map(set, entries))


class _OfSetup(NamedTuple):
    """Arrays of the setup of all seeds that an algorithm reads inside programs, concrete."""

    steps: StepsPerVisit | None
    num_clients: int
    attack: Attacked | None
    timeline: Timeline
    model: Model | None
    accounts: Accounts


class Runs:
    """The setups, algorithms and identities of a sweep's configurations."""

    def __init__(self, study: Study, config: SweepOptions, entries: Sequence[Configuration]):
        self.study, self.config, self.entries = study, config, entries
        self.algorithms = entries_of(study)
        self.hyper = resolve_hyper(self.algorithms, study.options.algorithms)
        self.kinds = static_kinds(study, {name for entry in entries for name in entry})
        self.of_setup: dict[tuple, _OfSetup] = {}  # by algorithm and settings
        self.loaded: tuple[Any, Dataset | None] | None = None
        self.digest: str | None = None  # of these examples
        self.first: Problem | None = None  # of the first settings
        self.own_digests: OwnDigests | None = None
        # Algorithms under the same settings share the problem.
        self.problem = functools.lru_cache(maxsize=4)(self._problem)

    def _problem(self, settings: tuple, seed: int | None) -> Problem:
        own = self.study.replaced(options=self.run_of(dict(settings)))
        dataset = self._dataset(own)
        attackers = own.options.population.partition_seed
        if seed is None:
            check_steps(own, dataset)
            problem = prepare(of_first_partition(own), dataset, attack_seed=attackers)
            if self.own_digests is None:
                self.first = self.first or problem
            return problem
        return prepare(of_seed(own, seed), dataset, attack_seed=attackers)

    def _dataset(self, study: Study) -> Dataset | None:
        """Returns the data set, the last one again if no option of it differs."""
        key = _data_key(study.options)
        if self.loaded is None or self.loaded[0] != key:
            self.loaded = None  # frees its memory before the next one is loaded
            self.loaded = key, load_dataset(study)
            self.digest = examples_digest(self.loaded[1])
        return self.loaded[1]

    def examples(self) -> str | None:
        """Returns a digest of the examples, once they are loaded, if all configurations share them.

        A folder's later grids may vary the data, too.
        """
        several = len({_data_key(self.run_of(entry)) for entry in self.entries}) > 1
        return None if several else self.digest

    def own(self) -> OwnDigests:
        """Returns the digests of the study's own parts, as far as all configurations share them.

        There are none before the first problem is there.
        """
        if self.own_digests is None and self.first is not None:
            with arithmetic(self.study.options.execution):
                self.own_digests = self._own(self.first)
            self.first = None  # frees its memory
        return self.own_digests or NO_DIGESTS

    def _own(self, first: Problem) -> OwnDigests:
        study, names = self.study, {name for entry in self.entries for name in entry}
        if study.setup is not None:
            return of_setup(first.setup, first.keys)
        if self.loaded is None or self.loaded[1] is None or self.examples() is None:
            return NO_DIGESTS
        found = of_parts(study, self.loaded[1], first.setup.task)
        varied = [SETTINGS[name] for name in names if name in SETTINGS]
        groups = {setting.group for setting in varied}
        return OwnDigests(
            {} if "population" in groups else found.arrays,
            {} if groups & {"model", "adapters"} else found.functions,
            None if any(setting.of_setup for setting in varied) else found.timeline,
        )

    def run_of(self, configuration: Mapping[str, Any]) -> Run:
        """Returns the options of a configuration, or of its settings."""
        return with_settings(self.study.options, configuration)

    def hyper_of(self, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the hyper-parameters of a configuration."""
        return {**self.hyper[configuration["algorithm"]], **swept_hyper(configuration)}

    def make_setup(self) -> Callable[..., Setup]:
        """Returns the setup as a function of the algorithm and of the settings that it needs."""

        def of_all_seeds(algorithm: str, **settings: Any) -> Setup:
            return make(algorithm, None, settings)

        def of_seed(algorithm: str, seed: int, **settings: Any) -> Setup:
            return one_seed(make(algorithm, seed, settings))

        def make(algorithm: str, seed: int | None, settings: Configuration) -> Setup:
            here = {"algorithm": algorithm, **settings}
            problem = self.problem(tuple(settings.items()), seed)
            setup = problem.setup_of(algorithm)
            self._record(here)
            members = [entry for entry in self.entries if here.items() <= entry.items()]
            built = [self._built(entry) for entry in members]
            for entry, own in zip(members, built, strict=True):
                run = self.run_of(entry)
                check_parts(own, run.privacy, setup)
                check_uploads(run.robust, setup.timeline)
            measured = names_of_numbers(setup.eval_fn, metric_shapes(built[0], setup))
            metric = self.config.score_metric
            check_known(sorted(measured), metric=metric)
            mode_of(self.config)  # refuses a name that does not say it, before anything runs
            return setup

        one_by_one = self.study.options.population.partition_per_seed or self.study.setup
        function = of_seed if one_by_one else of_all_seeds
        names = {name: SETTINGS[name].kind for name in SETTINGS if SETTINGS[name].of_setup}
        function.__annotations__["settings"] = _keywords(names)
        return function

    def _record(self, here: Configuration) -> None:
        """Keeps what the algorithm has from the setup of all seeds, like that of a run."""
        key = _key(here)
        if key in self.of_setup:
            return
        problem = self.problem(key[1], None)
        setup = problem.setup_of(here["algorithm"])
        self.of_setup[key] = _OfSetup(
            problem.steps_per_visit(self.algorithms[here["algorithm"]]),
            setup.task.num_clients,
            problem.attack,
            setup.timeline,
            None if problem.parts is None else problem.parts.model,
            accounts_of(NoPrivacy(), setup),
        )

    def _built(self, values: Configuration) -> FedAlgorithm:
        """Returns the algorithm of a configuration, whose numbers may be traced."""
        entry, own = self.algorithms[values["algorithm"]], self.of_setup[_key(values)]
        algorithm = entry.build(self.hyper_of(values), own.steps, own.num_clients, own.model)
        wrappers = Wrappers.of(self.run_of(values))
        return wrappers.on(algorithm, entry, own.model, own.attack, own.timeline)

    def factory(self) -> Callable[..., FedAlgorithm]:
        """Returns the algorithm as a function of its name, hyper-parameters and settings.

        It takes the settings of the setup, too: they decide how many steps a visit has, who
        attacks, and the number of clients.
        """

        def make(algorithm: str, **values: Any) -> FedAlgorithm:
            return self._built({"algorithm": algorithm, **values})

        make.__annotations__["values"] = _keywords(self.kinds)
        return make

    def guarantees(self) -> pd.DataFrame:
        """Returns a row per private configuration: its values, epsilon, delta and adjacency."""
        rows = []
        for entry in self.entries:
            if own := self.of_setup.get(_key(entry)):
                accounts = own.accounts._replace(options=self.run_of(entry).privacy)
                if (guarantee := accounts.guarantee()) is not None:
                    rows.append({**entry, **guarantee._asdict()})
        return pd.DataFrame(rows)

    def storage(self) -> Storage:
        """Returns the output folder, with the options of every run in it."""
        run = self.study.options
        accept = run.execution.accept_changed_code
        return Storage(run.output, config=self.identity, accept_changed_code=accept)

    def options(self) -> Options:
        """Returns how the runs are executed."""
        run, memory = self.study.options, self.config.memory
        return Options(
            execution=strategy_of(run.execution),
            seeds=range(run.seed, run.seed + run.seeds),
            memory=None if memory is None else int(memory * 1e9),
        )

    def identity(self, configuration: Configuration) -> dict[str, Any]:
        """Returns the options and hyper-parameters that vary in no program."""
        run, inside = self.run_of(configuration), configuration.keys() - self.kinds.keys()
        options = {
            name: value
            for name, value in fixed_values(run).items()
            if name not in FREE_IN_FOLDER and name not in inside
        }
        swept = swept_hyper(configuration)
        hyper = {name: v for name, v in self.hyper_of(configuration).items() if name not in swept}
        return {"options": options, "hyper": hyper}


def _data_key(run: Run) -> tuple[Any, ...]:
    """Returns the options on which the examples depend."""
    sizes = (run.population.num_clients, run.population.partition_seed)
    return (run.data, run.model.loss, *(sizes if isinstance(run.data, Generated) else ()))


def _keywords(kinds: Mapping[str, type]) -> Any:
    """Returns the type of keywords with these names, by which :func:`sweep` goes."""
    return Unpack[cast(Any, TypedDict)("Keywords", kinds)]


def _key(configuration: Configuration) -> tuple[str, tuple]:
    """Returns the algorithm and the settings on which the setup depends."""
    settings = (
        (name, value)
        for name, value in configuration.items()
        if name in SETTINGS and SETTINGS[name].of_setup
    )
    return configuration["algorithm"], tuple(settings)
