"""``fedjax-sim run``: several algorithms on one problem, with files and resuming.

:func:`compare` does it all.  Its parts are :func:`fedjax_sim.studies.setups.build.resolve` (options
to objects), :func:`ready` (everything that can be refused before anything runs) and
:func:`execute`.
"""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedjax_sim.cli import diagnose as diagnosing
from fedjax_sim.cli import measured, report
from fedjax_sim.cli.diagnose import Diagnosis
from fedjax_sim.data import has_classes, label_counts
from fedjax_sim.engine import distributed
from fedjax_sim.reports import (
    LABELS,
    PARTIAL,
    PARTIAL_NOTE,
    default_metrics,
    label_columns,
    read_client_values,
    setting_text,
)
from fedjax_sim.reports import figures as plotting
from fedjax_sim.reports.figures.results import last_points
from fedjax_sim.runs import (
    Callback,
    Comparison,
    Divergence,
    FolderError,
    Options,
    RunFolder,
    Simulation,
    Storage,
    check_extension,
    data_values,
    environment,
    locked,
    write_json,
)
from fedjax_sim.runs import compare as compare_algorithms
from fedjax_sim.studies.setups import (
    EXTENSIBLE,
    Record,
    ResolvedRun,
    Rounds,
    all_differences,
    as_json,
    differences,
    fixed_values,
    members_of,
    read_saved,
)
from fedjax_sim.types import Setup


class ComparisonResult(NamedTuple):
    """Results of a comparison; the files of its output folder hold the same."""

    history: pd.DataFrame  # as report.merge_histories returns it
    summary: pd.DataFrame  # a row per algorithm, see report.summarize
    output: pathlib.Path
    interrupted: bool
    diagnosis: Diagnosis | None = None


class Job(NamedTuple):
    """A comparison that may start: its folder is locked and holds no other comparison."""

    comparison: ResolvedRun
    header: dict[str, Any]  # of config.json
    diagnosis: diagnosing.Plan | None
    choices: measured.Choices  # executions by algorithm, that fedjax-sim measure measured


def compare(
    comparison: ResolvedRun,
    measured_files: Sequence[pathlib.Path] = (),
    *,
    diagnose: bool = False,
    callbacks: Sequence[Callback] = (),
) -> ComparisonResult:
    """Runs every algorithm of a comparison and writes the results to its output folder.

    ``history.csv`` (algorithm, seed, diverged_at, round, metric, value; with a clock also time),
    ``summary.json``, ``config.json`` (everything needed to repeat the run), ``curves.png``,
    ``clients.png``, ``labels.json``, with ``--personal`` also ``personal_SPLIT.png``, with
    ``--per-client`` ``clients_SPLIT.png``, and a folder per algorithm with its own history and
    checkpoints.  A second call resumes unfinished algorithms and does not repeat finished ones;
    with other algorithms, it adds them.  Ctrl-C ends it after the rounds in progress,
    with everything so far on disk.  The choices in ``measured_files``, which
    :func:`fedjax_sim.studies.executions.store` kept, precede the rules of the automatic execution.

    Example:
        >>> import tempfile
        >>> from fedjax_sim.studies.setups import Study, presets, resolve
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = presets.options(
        ...         output=pathlib.Path(folder), algorithms=("fedavg",), rounds=2, seeds=2)
        ...     result = compare(resolve(Study(run)))
        >>> result.summary.loc["fedavg", "rounds"]
        np.int64(2)
    """
    with ready(comparison, measured_files, diagnose=diagnose) as job:
        return execute(job, callbacks)


@contextlib.contextmanager
def ready(
    comparison: ResolvedRun,
    measured_files: Sequence[pathlib.Path] = (),
    *,
    diagnose: bool = False,
) -> Iterator[Job]:
    """Context with the comparison ready to run and its output folder locked."""
    output = comparison.output
    report.check_folder(output, "a comparison")
    plan = None
    if diagnose:
        with comparison.arithmetic():
            plan = diagnosing.plan(comparison)
    with locked(output):
        report.check_folder(output, "a comparison")  # a sweep may have begun meanwhile
        header, choices = _header(comparison, measured_files)
        for name in header["algorithms"]:  # also of earlier calls; damage ends this one at once
            timeline = None  # of one seed, which its own run compares
            if comparison.setup_of_seed is None:
                timeline = comparison.setups.get(name, comparison.problem.setup).timeline
            hyper = header["algorithms"][name]
            expected = as_json({"algorithm": name, "hyper": hyper, **comparison.record.identity})
            for folder in report.run_folders(output / name):
                _check_run(folder, expected)
                report.read_timing(folder)
                RunFolder(folder).history()  # verified
                if isinstance(comparison.time, Rounds):  # before config.json records more rounds
                    time = comparison.time
                    check_extension(folder, time.rounds, time.eval_every, timeline)
        _check_data(comparison, list(header["algorithms"]))
        yield Job(comparison, header, plan, choices)


def _check_run(folder: pathlib.Path, expected: Mapping[str, Any]) -> None:
    """Refuses the folder of another run, which was copied or renamed; this call may not run it."""
    known = RunFolder(folder).identity().get("config", {})
    if differing := differences(known, expected):
        raise FolderError(
            f"{folder} holds another run: {'; '.join(differing)}; move the folder elsewhere"
        )


def _check_data(comparison: ResolvedRun, names: Sequence[str]) -> None:
    """Refuses algorithms of earlier calls that had other examples, clients, losses or metrics.

    The options are the same, but a file of the data set or a study module may have changed.
    """
    found = [
        folder
        for name in names
        if name not in comparison.hyper  # the runs of this call are compared whole
        for folder in report.run_folders(comparison.output / name)[:1]
    ]
    if not found:
        return
    problem = comparison.problem
    expected = data_values(problem.setup, problem.keys)
    if comparison.setup_of_seed is not None:  # the first seed has models and a key of its own
        expected = {"data": expected["data"]}
    saved = members_of(comparison.output / "config.json")
    there, accepts = saved.get("examples"), comparison.computed.accept_changed_code
    changed = comparison.own.changed(saved, functions=not accepts)
    for folder in found:
        known = RunFolder(folder).identity()
        here = expected
        if ("source" in known) != ("source" in expected):
            # Tasks with and without examples on the host differ whatever the examples are.
            here = {x: value for x, value in expected.items() if x not in ("data", "source")}
            if None not in (there, comparison.examples):
                known, here = known | {"examples": there}, here | {"examples": comparison.examples}
        differing = [x for x, value in here.items() if known.get(x, value) != value]
        if differing := list(dict.fromkeys([*differing, *changed])):
            raise FolderError(
                f"output is '{comparison.output}', which holds another comparison: "
                f"{', '.join(differing)} of {folder.relative_to(comparison.output)} differ from "
                "those here, although the options are the same: a file or a study module has "
                "changed; choose another folder or delete that one"
            )


def execute(job: Job, callbacks: Sequence[Callback] = ()) -> ComparisonResult:
    """Runs a comparison and writes its files; see :func:`compare`."""
    with job.comparison.arithmetic():
        return _execute(job, callbacks)


def _execute(job: Job, callbacks: Sequence[Callback]) -> ComparisonResult:
    comparison, output = job.comparison, job.comparison.output
    distributed.wait("configuration compared")
    writes = distributed.is_first() and not report.is_read_only(output)
    if writes:
        header = job.header | _described(comparison, list(job.header["algorithms"]))
        write_json(output / "config.json", as_json(header | {"environment": environment()}))
        parts = comparison.problem.parts
        if parts is not None and has_classes(parts.data):
            counts = label_counts(parts.data, parts.num_classes)
            report.write_all(output, {"clients.png": plotting.client_label_map(counts)})
            write_json(output / LABELS, label_columns(counts), indent=None)

    try:
        result = _run_all(job, callbacks)
    finally:
        history, summary = _write_results(comparison, job.header["algorithms"], writes)
    diagnosis = None
    if job.diagnosis is not None and not result.interrupted and not report.is_read_only(output):
        (simulation,) = result.simulations["fedavg"]
        diagnosis = diagnosing.diagnose(comparison, job.diagnosis, simulation.models())
    return ComparisonResult(history, summary, output, result.interrupted, diagnosis)


def _described(comparison: ResolvedRun, names: Sequence[str]) -> dict[str, Any]:
    """Returns what config.json says of data, partition and model, and the digests of own parts.

    Those of the runs that are there remain: if a file or a module has changed since, these runs
    have not, and this call is refused.
    """
    here = comparison.problem.description | {"examples": comparison.examples}
    if not any(report.run_folders(comparison.output / name) for name in names):
        return here | comparison.own.members({})
    saved, accepted = members_of(comparison.output / "config.json"), comparison.computed
    own = comparison.own.members(saved, accepted=accepted.accept_changed_code)
    return here | {name: saved[name] for name in here.keys() & saved.keys()} | own


def _run_all(job: Job, callbacks: Sequence[Callback]) -> Comparison:
    """Runs all algorithms, or the rest of them, each in its own folder."""
    comparison, options = job.comparison, job.comparison.computed
    chosen = {
        name: measured.executed(comparison, name, job.choices.get(name))
        for name in comparison.hyper
    }
    own = comparison.setup_of_seed

    def setup_of_seed(algorithm: str, seed: int) -> Setup:
        assert own is not None
        return own(algorithm, seed, measured.lowering(job.choices.get(algorithm)))

    rounds = {name: setup.timeline.num_rounds for name, (setup, _) in chosen.items()}
    return compare_algorithms(
        {name: comparison.algorithm(name) for name in comparison.hyper},
        setup_of_seed if own is not None else (lambda algorithm: chosen[algorithm][0]),
        comparison.problem.keys,
        callbacks=[
            *callbacks,
            Divergence(options.on_divergence),
            _Timings(comparison.output, own is not None, rounds),
        ],
        storage=Storage(
            comparison.output,
            config=comparison.config_of,
            accept_changed_code=options.accept_changed_code,
        ),
        options=Options(
            execution={name: execution for name, (_, execution) in chosen.items()},
            seeds=[int(seed) for seed in comparison.seeds],
            eval_initial=True,
        ),
    )  # fmt: skip


class _Timings(NamedTuple):
    """Callback that keeps the times of every simulation in its folder."""

    output: pathlib.Path
    one_by_one: bool  # a folder per seed
    rounds: Mapping[str, int]

    def finished(self, name: str, result: Simulation) -> None:
        if distributed.is_first() and not report.is_read_only(self.output):
            timing = report.Timing(
                result.compile_seconds,
                result.run_seconds,
                result.local_steps,
                diverged=int(np.count_nonzero(result.state.diverged_at)),
                num_rounds=self.rounds[name],
            )
            folder = self.output / name
            report.add_timing(
                folder / str(result.record.seeds[0]) if self.one_by_one else folder, timing
            )


def _header(
    comparison: ResolvedRun, measured_files: Sequence[pathlib.Path] = ()
) -> tuple[dict[str, Any], measured.Choices]:
    """Returns the part of config.json that identifies a comparison, and its executions."""
    output, record = comparison.output, comparison.record
    path, hyper, names = output / "config.json", as_json(comparison.hyper), [*comparison.hyper]
    if not path.exists():
        choices = measured.choices(comparison, measured_files)
        return _written(record, names, hyper, choices), choices
    try:
        old = read_saved(path)
    except FolderError as error:
        raise FolderError(f"{error}; restore it, or choose another folder") from error
    there, here = fixed_values(old.config), record.fixed
    grown = {name for name in EXTENSIBLE & there.keys() if here.get(name, 0) > there[name]}
    differing = all_differences(there, here | {name: there[name] for name in grown})
    earlier = measured.recorded(old.config.execution)
    differing += [
        f"{name} was executed as {measured.as_text(earlier[name])} there and "
        f"{measured.as_text(choice)} is given here"
        for name, choice in measured.recorded(comparison.computed).items()
        if earlier.get(name, choice) != choice
    ]
    known = as_json(old.algorithms)
    differing += [
        f"{name} has {known[name]} there and {values} here"
        for name, values in hyper.items()
        if known.get(name, values) != values
    ]
    differing += report.own_differences(old.own, record.own)
    report.refuse_other(output, "comparison", differing)
    # Algorithms of earlier calls stay in the comparison, by the names that their folders have.
    names = [*dict.fromkeys([*old.config.algorithms.algorithms, *names])]
    choices = earlier | measured.choices(comparison, measured_files, earlier)
    return _written(record, names, known | hyper, choices), choices


def _written(
    record: Record, names: list[str], hyper: Mapping[str, Any], choices: measured.Choices
) -> dict[str, Any]:
    """Returns the options, all algorithms with their hyper-parameters, and the executions."""
    kept = {name: choice and choice._asdict() for name, choice in choices.items()}
    algorithms = record.config["algorithms"] | {"algorithms": names}
    execution = record.config["execution"] | {"measured": kept}
    return {
        "config": record.config | {"algorithms": algorithms, "execution": execution},
        "settings": record.settings | {"algorithms": names, "measured": kept},
        "algorithms": dict(hyper),
        "privacy": record.privacy,
        "own": list(record.own),
    }


def _figures_of_clients(output: pathlib.Path, caption: str) -> dict[str, Figure]:
    """Returns the distributions of accuracies over clients, a figure per split."""
    figures = {}
    # Runs that ended before their first evaluation, or without a finite value, have no figure.
    with contextlib.suppress(FolderError, ValueError):
        values = read_client_values(output)
        for split in sorted(set(values["split"])):
            name = split.replace("/", "_") if split.startswith("personal/") else f"clients_{split}"
            figures[f"{name}.png"] = plotting.client_distribution(
                values, "r2" if "r2" in values else "accuracy", split=split, caption=caption
            )
    return figures


def _write_results(
    comparison: ResolvedRun, hyper: Mapping[str, Mapping[str, Any]], writes: bool
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Writes history.csv, summary.json and curves.png from the algorithms' folders."""
    output, options = comparison.output, comparison.evaluation
    clock = comparison.problem.clock is not None
    distributed.wait("histories written")
    history = report.merge_histories(
        output,
        list(hyper),
        write=writes,
        clock=clock,
        epsilon=lambda name, rounds: comparison.accounts.per_round(rounds),
    )
    timings = report.read_timings(output, list(hyper))
    partial = report.partial_models(output, list(hyper))
    summary = report.summarize(history, options.target_accuracy, timings, len(comparison.seeds))
    summary["partial_model"] = [name in partial for name in summary.index]
    guarantee = comparison.guarantee
    privacy = {} if guarantee is None else {"privacy": guarantee._asdict()}
    rows = {
        str(name): {**row, "hyper_parameters": hyper[str(name)], **privacy}
        for name, row in summary.to_dict(orient="index").items()
    }
    if not writes:
        return history, summary
    target = options.target_accuracy
    report.write_json(output / "summary.json", {"target_accuracy": target, "algorithms": rows})
    if len(history):
        axis = "time" if clock else "round"
        points = last_points(history, axis, ["algorithm", "seed"])
        caption = setting_text(comparison.record.settings)
        if partial:
            marked = {name: f"{name} {PARTIAL}" for name in partial}
            points = points.assign(algorithm=points["algorithm"].replace(marked))
            caption = f"{caption}\n{PARTIAL_NOTE}"
        figure = plotting.curves(points, default_metrics(points), x=axis, caption=caption)
        figures = {"curves.png": figure}
        if (options.personal, options.per_client) != (None, None):
            figures |= _figures_of_clients(output, caption)
        report.write_all(output, figures)
    return history, summary
