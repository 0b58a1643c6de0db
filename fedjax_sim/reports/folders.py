"""Histories of the folders that ``simulate``, ``compare``, ``sweep`` and the command line write."""

from __future__ import annotations

import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from fedjax_sim.checks import check_choice
from fedjax_sim.engine import PERSONAL, PERSONAL_R2, headline
from fedjax_sim.reports.frames import configuration_columns, grid_values, value_texts
from fedjax_sim.reports.labels import (
    PARTIAL,
    PARTIAL_NOTE,
    UNFINISHED_NOTE,
    algorithm_labels,
    better,
    setting_label,
)
from fedjax_sim.reports.selection import Mode, best, complete, scores
from fedjax_sim.reports.setting import data_digests, setting_key, setting_text
from fedjax_sim.runs import (
    FolderError,
    Outcome,
    RunFolder,
    Sweep,
    SweepRun,
    folder_names,
    is_seed,
    is_unfinished,
    of_finite_models,
    read_json,
    read_runs,
    recorded_names,
    runs_in,
    seed_column,
)
from fedjax_sim.types import shown

Bits = Mapping[str, tuple[int, int]]


@shown
class FolderHistory(NamedTuple):
    """Content of a folder of results."""

    # Tidy: the configuration (algorithm, for sweeps the hyper-parameters), seed, diverged_at,
    # round, metric, value. Where the folder records them, "bits" is a metric.
    history: pd.DataFrame
    setting: str  # one line for captions: data set, clients, cohort, local work
    target: float | None  # target accuracy of `fedjax-sim run`
    # Algorithms whose server's model is no complete one (`Requires.partial_model`).
    partial: frozenset[str] = frozenset()
    # By algorithm: what it runs on. Only algorithms of one setting are compared.
    settings: Mapping[str, str] = MappingProxyType({})
    unfinished: bool = False  # a sweep of whose grid runs are missing


def read_folder(path: str | pathlib.Path, bits: Bits | None = None) -> FolderHistory:
    """Returns the history of a run, a comparison or a sweep, finished or not.

    The round of a divergence is exact where the folder records it (``outcome.json``, slices of a
    sweep), else it is the first evaluation with a loss that is not finite.

    Args:
        path: folder that ``simulate``, ``compare``, ``sweep`` or ``fedjax-sim`` wrote.
        bits: per algorithm of a comparison the bits of an upload and of a message to a client,
            which replace the recorded ones; for uploads through a codec.

    Raises:
        ValueError: no such folder, or no run in it.
        ~fedjax_sim.runs.storage.files.FolderError: damaged files.

    Example:
        >>> import tempfile
        >>> import jax
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"y": np.ones(2, np.float32)}, np.array([0, 1, 2]))
        >>> task = fs.empirical_task(lambda w, b, key: (w - b["y"]) ** 2, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(3, 2, task.num_steps), np.float32(0),
        ...                  lambda w: {"error": abs(w - 1)}, eval_every=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = fs.simulate(fs.fedavg(0.1), setup, jax.random.key(0), storage=folder)
        ...     history = read_folder(folder).history
        >>> error = history.loc[history["metric"] == "error"]
        >>> error.set_index("round")["value"].round(2)[3]
        np.float64(0.51)
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        problem = "is a file" if path.exists() else "does not exist"
        raise ValueError(f"folder is '{path}', which {problem}; expected a folder of results")
    config = read_config(path)
    if (path / "slices").is_dir():
        runs = [_with_bits(run) for run in read_runs(path)]
        history = Sweep(runs, False, 0, 0, 0.0, 0.0).to_frame()
        setting = setting_text(_with_grid(config, [run.configuration for run in runs]))
        partial = {run.configuration.get("algorithm", "") for run in runs if run.partial_model}
        target, unfinished = config.get("target_accuracy"), is_unfinished(path)
        return FolderHistory(
            history, setting, target, frozenset(partial), unfinished=unfinished and bool(runs)
        )
    algorithms = _found_runs(path, config)
    rows: list[tuple] = []
    outcomes, partial = [], set()
    for name, folders in algorithms.items():
        for folder in folders:
            recorded = RunFolder(folder).outcome()
            outcomes.append(recorded)
            if recorded is not None and recorded.partial_model:
                partial.add(name)
            rows += [(name, *row) for row in _rows(folder, recorded, (bits or {}).get(name))]
    columns = ["algorithm", "seed", "diverged_at", "round", "metric", "value"]
    history = pd.DataFrame(rows, columns=columns)
    history["seed"] = seed_column(history["seed"].tolist())
    setting = setting_text(config, outcomes[0])
    return FolderHistory(history, setting, config.get("target_accuracy"), frozenset(partial))


def read_client_values(path: str | pathlib.Path) -> pd.DataFrame:
    """Returns the clients' values in a folder: of a run, or of the algorithms of a comparison.

    Values of rounds from a divergence on are NaN.

    Args:
        path: folder of a run or of a comparison.

    Returns:
        columns algorithm, seed, round, client, split, num_examples and the metrics.

    Raises:
        ValueError: as :func:`read_folder`.
        ~fedjax_sim.runs.storage.files.FolderError: a run was not evaluated per client.

    Example:
        >>> frame = read_client_values("results/quickstart")  # doctest: +SKIP
        >>> frame.groupby("client")["accuracy"].mean().min()  # doctest: +SKIP
    """
    path = pathlib.Path(path)
    parts = []
    for name, folders in _found_runs(path, read_config(path)).items():
        for folder in folders:
            run = RunFolder(folder)
            diverged_at = divergences(run.entries(), run.outcome())
            part = of_finite_models(run.clients(), diverged_at)
            parts.append(part.assign(algorithm=name))
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(seed=seed_column(frame["seed"].tolist()))


def default_metrics(history: pd.DataFrame) -> list[str]:
    """Returns the default metrics of a figure: test accuracy, or R^2, and a loss.

    The loss is that of training, or of the test without it.  Histories that have none of these: the
    first three by importance.
    """
    known = headline(history["metric"].unique())
    loss = "train/loss" if "train/loss" in known else "test/loss"
    order = (PERSONAL, PERSONAL_R2, "test/accuracy", "test/r2", loss)
    return [name for name in known if name in order] or known[:3]


def read_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the options in config.json; empty if there is none.

    Options that parts of a study module replaced are not among them; ``own`` has the parts' names.
    """
    return saved_config(path).get("settings", {})


def saved_config(path: pathlib.Path) -> dict[str, Any]:
    """Returns the content of config.json; empty if there is none."""
    file = path / "config.json"
    return read_json(file, "restore it from a copy", by_hand=True) if file.exists() else {}


def _found_runs(path: pathlib.Path, config: Mapping[str, Any]) -> dict[str, list[pathlib.Path]]:
    """Returns the run folders of every algorithm."""
    runs = run_folders(path, config) if path.is_dir() else {}
    if not runs:
        raise ValueError(
            f"folder is '{path}', which has no run; expected a folder that simulate, compare, "
            "sweep or fedjax-sim wrote"
        )
    return runs


def run_folders(
    path: pathlib.Path, config: Mapping[str, Any] | None = None
) -> dict[str, list[pathlib.Path]]:
    """Returns the run folders of every algorithm by name: one of all seeds, or one per seed."""
    config = read_config(path) if config is None else config
    runs = _named_folders(path, config)
    if "algorithms" in config and not RunFolder(path).exists:
        hyper = saved_config(path).get("algorithms", {})
        for name, folders in runs.items():
            for folder in folders:
                there = RunFolder(folder).identity().get("config", {})
                own = there.get("algorithm", name)  # without algorithms.json, folders are names
                key = own if name in (own, folder_names([own])[own]) else name
                known = {"hyper": hyper[key]} if key in hyper else {}
                _check_same(folder, there, {"algorithm": key, **config, **known}, path)
    return runs


def data_key(saved: Mapping[str, Any], runs: Mapping[str, list[pathlib.Path]]) -> str:
    """Returns the digests of the data of a folder: of config.json, else of its runs."""
    if saved:
        return data_digests(saved)
    known = (RunFolder(folders[0]).identity().get("data") for folders in runs.values())
    return ", ".join(filter(None, dict.fromkeys(known)))


# Options of which a run has the resolved values: the noise that a target of privacy requires.
_RESOLVED = ("privacy.epsilon", "privacy.noise")


def _check_same(
    folder: pathlib.Path, there: Mapping[str, Any], here: Mapping[str, Any], path: pathlib.Path
) -> None:
    """Refuses a run, of a folder that was copied or renamed, whose options are not these."""
    if "algorithm" not in there:  # of a program of the user's
        return
    differing = [
        f"{name} is {there[name]!r} there and {here[name]!r} in config.json"
        for name in there
        if name in here and name not in _RESOLVED and there[name] != here[name]
        if (there[name], here[name]) != ("inf", None)  # an infinity in both
    ]
    if differing:
        raise FolderError(
            f"{folder} is a run of another comparison than {path / 'config.json'}: "
            f"{'; '.join(differing)}; move the folder elsewhere, or restore the file from a copy"
        )


def _named_folders(path: pathlib.Path, config: Mapping[str, Any]) -> dict[str, list[pathlib.Path]]:
    if RunFolder(path).exists:
        return {config.get("algorithm") or path.resolve().name: [path]}
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    names = recorded_names(path)
    known = config.get("algorithms") or names
    order: dict[str, int] = {name: i for i, name in enumerate(known)}
    folders.sort(key=lambda folder: order.get(folder.name, len(order)))
    names = {folder.name: names.get(folder.name, folder.name) for folder in folders}
    runs = {names[folder.name]: [folder] for folder in folders if RunFolder(folder).exists}
    if runs and all(is_seed(folder) for (folder,) in runs.values()):
        return {path.resolve().name: [folder for (folder,) in runs.values()]}
    for folder in folders:
        parts = runs_in(folder)
        if parts and all(map(is_seed, parts)):
            runs[names[folder.name]] = parts
    return runs


def divergences(
    entries: Iterable[tuple[str, int, str, float]], recorded: Outcome | None
) -> dict[str, int]:
    """Returns the rounds of the seeds that diverged, by a history and a recorded outcome."""
    # In rounds that the outcome does not cover, a seed diverges with the first loss that is not
    # finite.
    known = {} if recorded is None else recorded.diverged_at
    diverged_at = {seed: at for seed, at in known.items() if at}
    covered = dict.fromkeys(known, 0 if recorded is None else recorded.rounds)
    for seed, done, metric, value in entries:
        if "loss" in metric and not np.isfinite(value) and done > covered.get(seed, -1):
            diverged_at.setdefault(seed, done)
    return diverged_at


def _rows(
    folder: pathlib.Path, recorded: Outcome | None, bits: tuple[int, int] | None
) -> Iterable[tuple]:
    """Yields (seed, diverged_at, round, metric, value), with bits after the other metrics."""
    entries = list(RunFolder(folder).entries())
    diverged_at = divergences(entries, recorded)
    for seed, done, metric, value in entries:
        yield seed, diverged_at.get(seed, 0), done, metric, value
    if recorded is None:
        return
    if bits is not None:
        recorded = recorded.with_bits(*bits)
    for name in dict.fromkeys(seed for seed, *_ in entries):
        rounds = list(dict.fromkeys(done for seed, done, *_ in entries if seed == name))
        for done, total in zip(rounds, recorded.bits(name, rounds), strict=True):
            if total is not None:
                yield name, diverged_at.get(name, 0), done, "bits", float(total)


def _with_bits(run: SweepRun) -> SweepRun:
    """Returns the run with the bits among its metrics."""
    if run.bits is None:
        return run
    metrics = {**run.history.metrics, "bits": np.array(run.bits, np.int64)}
    return run._replace(history=run.history._replace(metrics=metrics))


def _with_grid(
    config: Mapping[str, Any], configurations: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the options of a sweep with the grid's values of those that the grid varies."""
    result = dict(config)
    for name in {name for each in configurations for name in each} & set(config):
        values = {each.get(name, config[name]) for each in configurations}
        if len(values) == 1:
            (result[name],) = values
        elif all(isinstance(value, int | float) for value in values):
            result[name] = f"{min(values)} to {max(values)}"
        else:
            result[name] = " or ".join(sorted(map(str, values)))
    return result


_FIXED = ("seed", "diverged_at", "round", "metric", "value")


def read_folders(
    paths: Sequence[str | pathlib.Path],
    *,
    configurations: Literal["best", "all"] = "best",
    metric: str | None = None,
    mode: Mode | None = None,
    last: int = 1,
    bits: Bits | None = None,
) -> FolderHistory:
    """Returns the histories of several folders as one, with a method per value of ``algorithm``.

    A sweep's folder gives the best configuration of every algorithm and of every cell that the
    sweep had, among those of them with the most seeds, or all of them, of all grids that ran
    there; the values of its hyper-parameters follow the name.  With several folders, the folder's
    name follows.  The names of methods whose server's model is no complete one (FedPer) end with a
    dagger, which the setting explains.

    Args:
        paths: folders, as for :func:`read_folder`.
        configurations: of a sweep, "best" or "all".
        metric: metric by which the best is chosen; default: as ``fedjax-sim sweep`` chose it, else
            the first.
        mode: whether larger ("max") or smaller ("min") values of ``metric`` are better; default: as
            ``fedjax-sim sweep`` was told for this metric, else as its name says, "min" if it does
            not.
        last: number of evaluations at the end of a run over which ``metric`` is averaged.
        bits: as for :func:`read_folder`.

    Raises:
        ValueError: as :func:`read_folder`; no folders; another value of ``configurations``; no
            metric to choose the best by.

    Example:
        >>> history = read_folders(["results/quickstart", "results/mine"])  # doctest: +SKIP
        >>> sorted(history.history["algorithm"].unique())  # doctest: +SKIP
    """
    if not paths:
        raise ValueError("paths is empty; expected at least one folder")
    check_choice(("best", "all"), configurations=configurations)
    folders = [pathlib.Path(path) for path in paths]
    names = distinct_names(folders) if len(folders) > 1 else [""]
    parts, settings, targets, missing = [], [], [], []
    compared: dict[str, str] = {}
    for folder, name in zip(folders, names, strict=True):
        part = read_folder(folder, bits)
        config = read_config(folder)
        rule = rule_of(config, metric, mode, last)
        cells = [cell for cell in cells_of(config) if cell in part.history]
        frame = labelled(part.history, configurations, rule, name, part.partial, cells)
        has_runs = folder.is_dir() and not (folder / "slices").is_dir()  # a sweep has slices
        runs = run_folders(folder, config) if has_runs else {}
        where = setting_key(part.setting, data_key(saved_config(folder), runs))
        for method, *values in frame[["algorithm", *cells]].drop_duplicates().values.tolist():
            compared[method] = ", ".join([where, *map(str, values)])
        parts.append(frame.drop(columns=cells))
        settings.append(part.setting)
        targets.append(part.target)
        if part.unfinished:
            missing.append(f"{name}: {UNFINISHED_NOTE}" if name else UNFINISHED_NOTE)
    if len(set(settings)) == 1:
        setting = settings[0]
    else:
        setting = "\n".join(f"{name}: {text}" for name, text in zip(names, settings, strict=True))
    history = pd.concat(parts, ignore_index=True)
    partial = frozenset(x for x in history["algorithm"].unique() if x.endswith(PARTIAL))
    notes = [*missing, PARTIAL_NOTE] if partial else missing
    setting = "\n".join(filter(None, (setting, *notes)))
    return FolderHistory(history, setting, targets[0], partial, compared, bool(missing))


def cells_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names for each of whose values a sweep with these options chose a best.

    These are the numbers of clients of ``over``, and the cells.
    """
    over, cells = config.get("over"), tuple(config.get("cells", ()))
    return cells if over in (None, *cells) else (over, *cells)


class Rule(NamedTuple):
    """Rule by which the best configuration of a sweep is chosen."""

    metric: str | None = None  # None: the first
    mode: Mode | None = None  # None: as the metric's name says
    last: int = 1
    reduce: Literal["mean", "best"] = "mean"


def rule_of(
    config: Mapping[str, Any], metric: str | None = None, mode: Mode | None = None, last: int = 1
) -> Rule:
    """Returns the rule for a folder whose config.json has these options."""
    known = config.get("mode")
    recorded = known if known in ("max", "min") else None
    if metric is None and "metric" in config:
        reduce = "best" if config.get("best") else "mean"
        return Rule(config["metric"], recorded, config.get("last", 1), reduce)
    if mode is None and metric == config.get("metric"):
        mode = recorded
    return Rule(metric, mode, last)


def labelled(
    history: pd.DataFrame,
    configurations: str,
    rule: Rule,
    folder: str,
    partial: Collection[str] = (),
    cells: Sequence[str] = (),
) -> pd.DataFrame:
    """Returns the history with columns "algorithm", of the configuration, and the cells."""
    hyper = [name for name in history.columns if name not in (*_FIXED, "algorithm")]
    if "algorithm" not in history:
        history = history.assign(algorithm="")
    if hyper and configurations == "best":
        if not (metric := rule.metric or next(iter(default_metrics(history)), None)):
            raise ValueError(
                f"history has the metrics {history['metric'].unique().tolist()}; expected one of "
                "the model, by which the best configuration is chosen, or configurations='all'"
            )
        history = _best_only(history, rule._replace(metric=metric), cells)
    known = algorithm_labels(str(name) for name in history["algorithm"].unique())
    varied = [name for name in hyper if len(grid_values(history, name)) > 1]
    shown = hyper if configurations == "best" else varied
    labels = []
    columns = [history["algorithm"], *(history[name] for name in shown)]
    texts = {name: value_texts(history[name].unique().tolist()) for name in shown}
    cache: dict[tuple, str] = {}
    for name, *values in zip(*columns, strict=True):
        key = (name, *map(str, values))
        if key not in cache:
            settings = [
                f"{setting_label(h)} {texts[h][str(v)]}"
                for h, v in zip(shown, values, strict=True)
                if not pd.isna(v)
            ]
            parts = [known[str(name)], *settings, folder]
            mark = f" {PARTIAL}" if name in partial else ""
            cache[key] = ", ".join(filter(None, parts)) + mark
        labels.append(cache[key])
    return history.assign(algorithm=labels).loc[:, ["algorithm", *cells, *_FIXED]]


def _best_only(history: pd.DataFrame, rule: Rule, cells: Sequence[str]) -> pd.DataFrame:
    """Returns the best configuration of every algorithm and cell, among those with most seeds."""
    assert rule.metric is not None
    mode = rule.mode or better(rule.metric)
    score = scores(history, rule.metric, last=rule.last, reduce=rule.reduce, mode=mode)
    config = configuration_columns(score)
    per = ["algorithm", *cells]
    chosen = best(complete(score, per), per=per, mode=mode)[config]
    return pd.DataFrame(history.merge(pd.DataFrame(chosen), on=config))


def distinct_names(folders: Sequence[pathlib.Path]) -> list[str]:
    """Returns the shortest ends of the paths that differ."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"folders has {[str(folder) for folder in folders]}; expected distinct ones")
