"""``fedjax-sim fork``: a run of a folder continues under alternatives."""

import dataclasses
import functools
import itertools
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from fedjax_sim.checks import check_known
from fedjax_sim.cli import measured
from fedjax_sim.cli.options import typed_names
from fedjax_sim.cli.report import write_all
from fedjax_sim.reports.figures import figure_format
from fedjax_sim.runs import Options, RunFolder, Storage, metric_shapes, names_of_numbers
from fedjax_sim.studies.forks import fork as forking
from fedjax_sim.studies.forks.stored import state_at
from fedjax_sim.studies.setups import (
    ALGORITHMS,
    SHARED,
    AlgorithmOptions,
    Count,
    HyperParameters,
    Index,
    ResolvedRun,
    Run,
    Study,
    algorithms_of,
    check_tuning,
    group,
    read,
    read_saved,
    replaced,
    resolve,
    resolve_hyper,
)
from fedjax_sim.timelines import delay_clients, lose_uploads_of, remove_clients
from fedjax_sim.types import FedAlgorithm, Timeline

DESCRIPTION = """\
Continues a run of FOLDER, which fedjax-sim run wrote, from the state after --round under several
alternatives with the same cohorts and minibatches, and compares them with the unchanged run. An
alternative has a name of yours, for example --alternatives.slow.hyper.lr 0.05,
--alternatives.prox.algorithm fedprox --alternatives.prox.hyper.mu 0.1,
--alternatives.without.remove 3 5. The state is read from FOLDER if it is stored there, and computed
again otherwise."""

UNCHANGED = "unchanged"


@group
class AlternativeOptions:
    """One alternative."""

    algorithm: str | None = None
    """Algorithm; default: that of the run."""
    hyper: HyperParameters = dataclasses.field(default_factory=dict)
    """Hyper-parameters that differ from those of the run."""
    remove: tuple[Index, ...] = ()
    """Clients that leave."""
    lose: tuple[Index, ...] = ()
    """Clients whose uploads are lost."""
    late: tuple[Index, ...] = ()
    """Clients that are late."""
    delay: Count = 1
    """With late: rounds by which they are late."""
    restart: bool = False
    """Begin with a new state of the algorithm, with the model."""


@group
class ForkOptions:
    """Options of ``fedjax-sim fork``."""

    round: Count
    """Round of the fork: the alternatives differ from the next round on."""
    alternatives: dict[str, AlternativeOptions] = dataclasses.field(default_factory=dict)
    """Alternatives by name, such as --alternatives.slow.hyper.lr 0.05."""
    algorithm: str | None = None
    """Algorithm of the run; may be left out if FOLDER has only one."""
    metric: str = "test/accuracy"
    """Metric to compare."""
    output: pathlib.Path | None = None
    """File of the figure; default: fork_ROUND.png in FOLDER, or fork_ROUND_2.png and so on if there
    is one."""
    accept_changed_code: bool = False
    """Fork although functions compute something else than those that the run began with; a state
    that is not stored in FOLDER is computed by the present ones."""


def with_alternatives(arguments: Sequence[str]) -> dict[str, AlternativeOptions]:
    """Returns the alternatives that the arguments name, with defaults, for the parser."""
    found: dict[str, AlternativeOptions] = {}
    for flag in typed_names(arguments):
        first, *rest = flag.split(".")
        if first != "alternatives" or len(rest) < 2:
            continue
        own = found.get(rest[0], AlternativeOptions())
        if rest[1] == "hyper" and len(rest) == 3:
            kinds = {key: kind for e in ALGORITHMS.values() for key, kind in e.static_hyper.items()}
            value = kinds.get(rest[2], float)()
            own = dataclasses.replace(own, hyper=dict(own.hyper) | {rest[2]: value})
        found[rest[0]] = own
    return found


def fork(folder: pathlib.Path, options: ForkOptions) -> tuple[str, pathlib.Path]:
    """Returns the table of the paired differences after the last round, and the figure's path."""
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"FOLDER is '{folder}', which has no config.json; expected a folder that "
                         "fedjax-sim run wrote")  # fmt: skip
    if not options.alternatives:
        raise ValueError("alternatives is empty; expected at least one")
    if options.output is not None:
        figure_format(options.output)
    saved = read_saved(path)
    if saved.own:
        raise ValueError(
            f"FOLDER is '{folder}', which has {', '.join(saved.own)} of a study module, and a file "
            "names no code; expected fs.fork(fs.simulate(...), {...}, setup, keys) in Python, with "
            "the algorithm and the setup of the run"
        )
    run = read(path)
    name = _name(run.algorithms.algorithms, options.algorithm)
    comparison = resolve(Study(_as_executed(run, folder, name)))
    if comparison.setup_of_seed is not None:
        raise ValueError("FOLDER has a partition per seed; expected one partition of all seeds")
    count = comparison.problem.setup.task.num_clients
    for key, one in options.alternatives.items():
        _check_clients(key, one, count)
    with comparison.arithmetic():
        choice = measured.recorded(comparison.computed).get(name)
        setup, execution = measured.executed(comparison, name, choice)
        algorithm, keys = comparison.algorithm(name), comparison.problem.keys
        known = names_of_numbers(setup.eval_fn, metric_shapes(algorithm, setup))
        check_known(sorted(known), metric=options.metric)  # before the runs, which it would lose
        alternatives = {UNCHANGED: forking.Alternative(algorithm)} | {
            key: forking.Alternative(_built(comparison, name, key, one), _change(one), one.restart)
            for key, one in options.alternatives.items()
        }
        seeds = [int(seed) for seed in comparison.seeds]
        start = state_at(
            algorithm,
            setup,
            keys,
            options.round,
            storage=Storage(
                folder / name,
                config=comparison.config_of(name),
                accept_changed_code=options.accept_changed_code,
            ),
            options=Options(execution=execution, seeds=seeds, eval_initial=True),
        )
        result = forking.fork(
            start, alternatives, setup, keys, execution=execution, seeds=comparison.seeds
        )
    figure = options.output or _unused(folder / f"fork_{options.round}.png")
    figure.parent.mkdir(parents=True, exist_ok=True)
    write_all(figure.parent, {figure.name: result.plot(options.metric)})
    return _table(result.differences(options.metric), options.metric), figure


def _as_executed(run: Run, folder: pathlib.Path, name: str) -> Run:
    """Returns the options of one of the runs; a later call may have moved examples to the host.

    Raises:
        ValueError: the run has its examples on the host, where no fork continues it.
    """
    stored = RunFolder(folder / name)
    if stored.exists and "source" in stored.identity():
        raise ValueError(
            f"FOLDER is '{folder}', whose {name} ran with --examples-memory; expected a run with "
            "all examples on the device"
        )
    return replaced(replaced(run, "examples_memory", None), "states", "device")


def _name(names: Sequence[str], chosen: str | None) -> str:
    if chosen is None and len(names) == 1:
        return names[0]
    if chosen is None or chosen not in names:
        raise ValueError(f"algorithm is {chosen!r}; expected one of {', '.join(names)}")
    return chosen


def _check_clients(name: str, options: AlternativeOptions, num_clients: int) -> None:
    if options.delay != AlternativeOptions.delay and not options.late:
        raise ValueError(f"alternatives.{name}.delay is {options.delay}; expected .late with it")
    for field in ("remove", "lose", "late"):
        for client in getattr(options, field):
            if client >= num_clients:
                raise ValueError(
                    f"alternatives.{name}.{field} has client {client}; expected clients 0 .. "
                    f"{num_clients - 1}"
                )


def _built(
    comparison: ResolvedRun, base: str, key: str, options: AlternativeOptions
) -> FedAlgorithm:
    """Returns the algorithm of an alternative; hyper-parameters of the run that it has remain."""
    name = options.algorithm or base
    (entry,) = algorithms_of([name]).values()
    known = comparison.hyper[base]
    kept = {k: v for k, v in known.items() if k in entry.hyper and (name == base or k in SHARED)}
    own = {name: {**kept, **options.hyper}}
    try:
        hyper = resolve_hyper({name: entry}, AlgorithmOptions(algorithms=(name,), hyper=own))[name]
        check_tuning(entry, hyper)
    except ValueError as error:
        raise ValueError(f"alternatives.{key}: {error}") from error
    return comparison.problem.algorithm(entry, hyper, comparison.accounts.options)


def _change(options: AlternativeOptions) -> Callable[[Timeline], Timeline] | None:
    """Returns the change of the timeline; None without one."""
    changes: list[Callable[[Timeline], Timeline]] = []
    if options.remove:
        changes.append(functools.partial(remove_clients, clients=list(options.remove)))
    if options.lose:
        changes.append(functools.partial(lose_uploads_of, clients=list(options.lose)))
    if options.late:
        late = list(options.late)
        changes.append(functools.partial(delay_clients, clients=late, delay=options.delay))
    return functools.partial(_changed, changes) if changes else None


def _changed(changes: list[Callable[[Timeline], Timeline]], timeline: Timeline) -> Timeline:
    return functools.reduce(lambda timeline, change: change(timeline), changes, timeline)


def _unused(path: pathlib.Path) -> pathlib.Path:
    """Returns the path, with a number behind its name if there is such a file."""
    later = (path.with_stem(f"{path.stem}_{number}") for number in itertools.count(2))
    return next(file for file in itertools.chain([path], later) if not os.path.lexists(file))


def _table(differences: pd.DataFrame, metric: str) -> str:
    last = differences.loc[differences["round"] == differences["round"].max()]
    rows = [
        f"{row.alternative:24s} {row.mean:+.4f}{_interval(row)}  {row.num_seeds} seeds"
        for row in last.itertuples(index=False)
    ]
    done = last["round"].max()
    return "\n".join([f"{metric} minus that of the unchanged run, after round {done}:", *rows])


def _interval(row: Any) -> str:
    """Returns the interval of a difference and its p-value, as far as the seeds give them."""
    interval = "" if math.isnan(row.low) else f" [{row.low:+.4f}, {row.high:+.4f}]"
    return interval if math.isnan(row.p_value) else f"{interval}  p {row.p_value:.3g}"
