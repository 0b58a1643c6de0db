"""``fedjax-sim run``: several algorithms on one problem, with files and resuming.

:func:`compare` does it all.  Its parts are :func:`fedjax_sim.studies.setups.build.resolve` (options
to objects), :func:`ready` (everything that can be refused before anything runs) and
:func:`execute`.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedjax_sim.cli import diagnose as diagnosing
from fedjax_sim.cli import measured, report
from fedjax_sim.cli.diagnose import Diagnosis
from fedjax_sim.data import has_classes, label_counts
from fedjax_sim.engine import distributed
from fedjax_sim.models import Convolution
from fedjax_sim.reports import (
    PARTIAL,
    PARTIAL_NOTE,
    default_metrics,
    read_client_values,
    setting_text,
)
from fedjax_sim.reports import figures as plotting
from fedjax_sim.reports.page import LABELS, label_columns
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
    environment,
    locked,
    write_json,
)
from fedjax_sim.runs import compare as compare_algorithms
from fedjax_sim.studies.setups import build
from fedjax_sim.studies.setups.build import ResolvedRun
from fedjax_sim.studies.setups.code_digest import changed_code
from fedjax_sim.studies.setups.config import EXTENSIBLE_FIELDS, FREE_FIELDS, RunConfig
from fedjax_sim.studies.setups.config_file import differences, read_saved, to_json
from fedjax_sim.studies.setups.registry import labels
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
    config: RunConfig,
    measured_files: Sequence[pathlib.Path] = (),
    *,
    diagnose: bool = False,
    callbacks: Sequence[Callback] = (),
) -> ComparisonResult:
    """Runs every algorithm of the configuration and writes the results to ``config.output``.

    ``history.csv`` (algorithm, seed, diverged_at, round, metric, value; with a clock also time),
    ``summary.json``, ``config.json`` (everything needed to repeat the run), ``curves.png``,
    ``clients.png``, ``labels.json``, with ``--personal`` also ``personal_SPLIT.png``, with
    ``--per-client`` ``clients_SPLIT.png``, and a folder per algorithm with its own history and
    checkpoints.  A second call resumes unfinished algorithms and does not repeat finished ones;
    with other algorithms, it adds them.  Ctrl-C ends it after the rounds in progress,
    with everything so far on disk.

    Args:
        config: the comparison.
        measured_files: files of choices that :func:`fedjax_sim.studies.executions.store` kept;
            with ``execution="auto"`` they precede the rules of
            :func:`fedjax_sim.engine.execution.strategies.auto`.  ``config.json`` records the
            choices used.
        diagnose: draw the bounds of theory over FedAvg's curve (:mod:`fedjax_sim.cli.diagnose`).
        callbacks: as in :func:`fedjax_sim.compare` (:mod:`fedjax_sim.runs.callbacks`).

    Raises:
        ValueError: a value out of range, an output folder that cannot be created or holds another
            comparison, or a comparison that cannot be diagnosed; before anything is compiled or
            written.
        ~fedjax_sim.runs.events.DivergenceError: with ``on_divergence="raise"``.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = compare(RunConfig(
        ...         output=pathlib.Path(folder), algorithms=("fedavg",), rounds=2, seeds=2))
        >>> result.summary.loc["fedavg", "rounds"]
        np.int64(2)
    """
    with ready(build.resolve(config), measured_files, diagnose=diagnose) as job:
        return execute(job, callbacks)


@contextlib.contextmanager
def ready(
    comparison: ResolvedRun,
    measured_files: Sequence[pathlib.Path] = (),
    *,
    diagnose: bool = False,
) -> Iterator[Job]:
    """Context with the comparison ready to run and its output folder locked.

    Raises:
        ValueError: as :func:`compare`.
        ~fedjax_sim.runs.storage.locks.FolderInUseError: another process works in the folder.
        FloatingPointError: as :func:`fedjax_sim.diagnostics.optimum.optimum`, with ``diagnose``.
    """
    output = comparison.output
    report.check_folder(output, "a comparison")
    plan = None
    if diagnose:
        with comparison.arithmetic():
            plan = diagnosing.plan(comparison)
    with locked(output):
        header = _header(comparison, measured_files)
        for name in header["algorithms"]:  # also of earlier calls; damage ends this one at once
            for folder in report.run_folders(output / name):
                report.read_timing(folder)
                RunFolder(folder).history()  # verified
                _check_rounds(comparison, name, folder)
        choices = measured.parse(header["config"]["measured"])
        yield Job(comparison, header, plan, choices)


def execute(job: Job, callbacks: Sequence[Callback] = ()) -> ComparisonResult:
    """Runs a comparison and writes its files; see :func:`compare`."""
    with job.comparison.arithmetic():
        return _execute(job, callbacks)


def _execute(job: Job, callbacks: Sequence[Callback]) -> ComparisonResult:
    comparison, output = job.comparison, job.comparison.output
    distributed.wait("configuration compared")
    writes = distributed.is_first() and not report.is_read_only(output)
    if writes:
        header = job.header | comparison.problem.description
        write_json(output / "config.json", report.as_json(header | {"environment": environment()}))
        if has_classes(comparison.problem.data):
            counts = label_counts(comparison.problem.data, comparison.problem.num_classes)
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


def _run_all(job: Job, callbacks: Sequence[Callback]) -> Comparison:
    """Runs all algorithms, or the rest of them, each in its own folder."""
    comparison = job.comparison
    chosen = {
        name: measured.executed(comparison, name, job.choices.get(name))
        for name in comparison.hyper
    }
    free = FREE_FIELDS | EXTENSIBLE_FIELDS
    fixed = {key: v for key, v in comparison.options.items() if key not in free}

    of_seed = comparison.setup_of_seed
    own = None if of_seed is None else _own_setups(of_seed, job.choices)
    return compare_algorithms(
        {name: comparison.algorithm(name) for name in comparison.hyper},
        own or (lambda algorithm: chosen[algorithm][0]),
        comparison.problem.keys,
        callbacks=[
            *callbacks,
            Divergence(comparison.options["on_divergence"]),
            _Timings(comparison, {name: setup for name, (setup, _) in chosen.items()}),
        ],
        storage=Storage(
            comparison.output,
            config=lambda name: {"algorithm": name, "hyper": dict(comparison.hyper[name]), **fixed},
        ),
        options=Options(
            execution={name: execution for name, (_, execution) in chosen.items()},
            seeds=[int(seed) for seed in comparison.seeds],
            eval_initial=True,
        ),
    )


class _Timings(NamedTuple):
    """Callback that keeps the times of every simulation in its folder."""

    comparison: ResolvedRun
    setups: Mapping[str, Setup]

    def finished(self, name: str, result: Simulation) -> None:
        output = self.comparison.output
        if distributed.is_first() and not report.is_read_only(output):
            timing = report.Timing(
                result.compile_seconds,
                result.run_seconds,
                result.local_steps,
                diverged=int(np.count_nonzero(result.state.diverged_at)),
                num_rounds=self.setups[name].timeline.num_rounds,
            )
            folder = output / name
            if self.comparison.setup_of_seed is not None:
                folder /= str(result.record.seeds[0])
            report.add_timing(folder, timing)


def _own_setups(
    of_seed: Callable[[str, int, Convolution], Setup], choices: measured.Choices
) -> Callable[[str, int], Setup]:
    def own_setup(algorithm: str, seed: int) -> Setup:
        return of_seed(algorithm, seed, measured.lowering(choices.get(algorithm)))

    return own_setup


def _header(comparison: ResolvedRun, measured_files: Sequence[pathlib.Path] = ()) -> dict[str, Any]:
    """Returns the part of config.json that identifies a comparison.

    Raises:
        ValueError: the output folder's config.json is of another comparison, or damaged.
    """
    new = report.as_json(
        {"config": comparison.options, "algorithms": comparison.hyper, "code": comparison.code}
    )
    path = comparison.output / "config.json"
    if not path.exists():
        return _with_choices(new, measured.choices(comparison, measured_files))
    try:
        old = read_saved(path)
    except FolderError as error:
        raise FolderError(f"{error}; restore it, or choose another folder") from error
    old_options, old_hyper = to_json(old.config), report.as_json(old.algorithms)
    options = new["config"]
    free = FREE_FIELDS | {name for name in EXTENSIBLE_FIELDS if options[name] > old_options[name]}
    compared = {name: value for name, value in options.items() if name not in free}
    differing = differences(old_options, compared)
    recorded = measured.parse(old.config.measured)
    differing += [
        f"{name} was executed as {measured.as_text(recorded[name])} there and "
        f"{measured.as_text(choice)} is given here"
        for name, choice in measured.parse(comparison.options["measured"]).items()
        if recorded.get(name, choice) != choice
    ]
    differing += [
        f"{name} has {old_hyper[name]} there and {values} here"
        for name, values in new["algorithms"].items()
        if old_hyper.get(name, values) != values
    ]
    differing += changed_code(old.code, new["code"])
    # Algorithms of earlier calls stay in the comparison, by the names that their folders have.
    names = [*dict.fromkeys([*old.config.algorithms, *comparison.options["algorithms"]])]
    known = old_hyper | new["algorithms"]
    differing += [
        f"{label} is {name} here and another function there"
        for label, name in labels(names).items()
        if label not in known
    ]
    if differing:
        raise ValueError(
            f"output is '{comparison.output}', which holds another comparison: "
            f"{'; '.join(differing)}; choose another folder or delete that one"
        )
    header = {
        "config": new["config"] | {"algorithms": names},
        "algorithms": known,
        "code": dict(old.code) | new["code"],
    }
    choices = measured.choices(comparison, measured_files, old.config.measured)
    return _with_choices(header, recorded | choices)


def _check_rounds(comparison: ResolvedRun, algorithm: str, folder: pathlib.Path) -> None:
    """Refuses more rounds than a run can be extended to, before config.json records them.

    Raises:
        FolderError: as :func:`~fedjax_sim.runs.storage.store.check_extension`.
    """
    options = comparison.options
    if options["clock"] != "none":
        return
    timeline = None  # of one seed, which its own run compares
    if comparison.setup_of_seed is None:
        timeline = comparison.setups.get(algorithm, comparison.problem.setup).timeline
    check_extension(folder, options["rounds"], options["eval_every"], timeline)


def _with_choices(header: dict[str, Any], choices: measured.Choices) -> dict[str, Any]:
    """Returns the header with the executions that were chosen, as the option ``measured``."""
    texts = [f"{name}={measured.as_text(choice)}" for name, choice in choices.items()]
    return header | {"config": header["config"] | {"measured": texts}}


def _figures_of_clients(comparison: ResolvedRun, caption: str) -> dict[str, Figure]:
    """Returns the distributions of accuracies over clients, if evaluated, a figure per split."""
    figures = {}
    if comparison.options["personal"] is None and comparison.options["per_client"] is None:
        return figures
    # Runs that ended before their first evaluation, or without a finite value, have no figure.
    with contextlib.suppress(FolderError, ValueError):
        values = read_client_values(comparison.output)
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
    output, target = comparison.output, comparison.options["target_accuracy"]
    clock = comparison.problem.clock is not None
    distributed.wait("histories written")
    history = report.merge_histories(
        output,
        list(hyper),
        write=writes,
        clock=clock,
        epsilon=lambda name, rounds: comparison.accounts.per_round(hyper[name], rounds),
    )
    timings = report.read_timings(output, list(hyper))
    partial = report.partial_models(output, list(hyper))
    summary = report.summarize(history, target, timings, comparison.options["seeds"])
    summary["partial_model"] = [name in partial for name in summary.index]
    private = {name: hyper[name] for name in map(str, summary.index)}
    privacy = {
        name: {"privacy": guarantee._asdict()}
        for name, guarantee in comparison.accounts.guarantees(private).items()
    }
    rows = {
        str(name): {**row, "hyper_parameters": hyper[str(name)], **privacy.get(str(name), {})}
        for name, row in summary.to_dict(orient="index").items()
    }
    if not writes:
        return history, summary
    report.write_json(output / "summary.json", {"target_accuracy": target, "algorithms": rows})
    if len(history):
        axis = "time" if clock else "round"
        # Seeds with fewer updates than others repeat their last time, in updates without uploads.
        points = history.drop_duplicates(["algorithm", "seed", axis, "metric"])
        caption = setting_text(report.as_json(comparison.options))
        if partial:
            marked = {name: f"{name} {PARTIAL}" for name in partial}
            points = points.assign(algorithm=points["algorithm"].replace(marked))
            caption = f"{caption}\n{PARTIAL_NOTE}"
        figure = plotting.curves(points, default_metrics(points), x=axis, caption=caption)
        report.write_all(output, {"curves.png": figure} | _figures_of_clients(comparison, caption))
    return history, summary
