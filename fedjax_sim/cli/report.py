"""Files of a comparison: one tidy history, a summary, timings, tables and figures."""

import csv
import dataclasses
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedjax_sim.engine import PERSONAL, PERSONAL_R2, headline
from fedjax_sim.reports import (
    bounds_of,
    divergence_text,
    divergences,
    first_divergences,
    shown_interval,
)
from fedjax_sim.reports.figures import figure_format, save
from fedjax_sim.runs import FolderError, Kind, RunFolder, check_kind, replacing, write_text
from fedjax_sim.studies.setups import as_json

HISTORY_COLUMNS = ("algorithm", "seed", "diverged_at", "round", "metric", "value")
ACCURACY, R2, LOSS = "test/accuracy", "test/r2", "test/loss"
EPSILON = "privacy/epsilon"


def merge_histories(
    directory: pathlib.Path,
    algorithms: Sequence[str],
    *,
    write: bool = True,
    clock: bool = False,
    epsilon: Callable[[str, list[int]], Mapping[int, float]] | None = None,
) -> pd.DataFrame:
    """Returns one frame of all algorithms' ``history.csv``, and writes ``directory/history.csv``.

    Columns: algorithm, seed, diverged_at (first round whose server state was not finite, or 0),
    round, metric, value; with ``clock`` also time, the simulated time of the round.  Values are
    copied digit by digit, so the file holds the bits of the run.
    Algorithms without a history are left out.  ``epsilon(algorithm, rounds)`` returns epsilon after
    these rounds, the metric privacy/epsilon; nothing for an algorithm that is not private.
    """
    rows: list[tuple] = []
    for algorithm in algorithms:
        for folder in run_folders(directory / algorithm):
            read = list(RunFolder(folder).rows())
            times = {(seed, at): value for seed, at, metric, value in read if metric == "time"}
            numbers = [(seed, int(at), metric, float(value)) for seed, at, metric, value in read]
            diverged_at = divergences(numbers, RunFolder(folder).outcome())
            if epsilon is not None:
                points = list(dict.fromkeys((seed, at) for seed, at, _, _ in read))
                values = epsilon(algorithm, [int(at) for _, at in points])
                read += [
                    (*point, EPSILON, repr(values[int(point[1])])) for point in points if values
                ]
            for seed, at, metric, value in read:
                time = (times[seed, at],) if clock else ()
                run = algorithm, int(seed), diverged_at.get(seed, 0)
                rows.append((*run, int(at), *time, metric, value))
    columns: list[str] = list(HISTORY_COLUMNS)
    if clock:
        columns.insert(columns.index("round") + 1, "time")
    if write:
        target = directory / "history.csv"
        with replacing(target) as partial, partial.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(rows)
    frame = pd.DataFrame(rows, columns=columns)
    return frame.astype({"seed": int, "value": float} | ({"time": float} if clock else {}))


def partial_models(directory: pathlib.Path, algorithms: Sequence[str]) -> set[str]:
    """Returns the algorithms whose server's model is no complete one, as their folders record."""
    recorded = {
        name: [RunFolder(folder).outcome() for folder in run_folders(directory / name)]
        for name in algorithms
    }
    return {name for name, found in recorded.items() if any(o and o.partial_model for o in found)}


def run_folders(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders with an algorithm's histories: its own, or one per seed."""
    if RunFolder(directory).has_history:
        return [directory]
    seeds = [path for path in directory.glob("*") if path.name.isdecimal()]
    found = [path for path in seeds if RunFolder(path).has_history]
    return sorted(found, key=lambda path: int(path.name))


def score_of(metrics: Iterable[str]) -> str | None:
    """Returns the metric by which models are compared: accuracy, or R^2 of a regression.

    A study's own setup may have neither: it is the most important metric there is; None without one
    that measures a model.
    """
    known = headline(metrics)
    return next((name for name in (ACCURACY, R2, *known) if name in known), None)


def summarize(
    history: pd.DataFrame,
    target: float,
    timings: Mapping[str, Mapping[str, Any]],
    num_seeds: int = 1,
) -> pd.DataFrame:
    """Returns a row per algorithm: final accuracy or other score, rounds to the target, time.

    The accuracy is that of every seed's last evaluation, NaN if a seed diverged: the mean of the
    others would reward it.  ``rounds_to_target`` and ``time_to_target`` are medians over the seeds
    that reached the target (``reached``), by personal models where they were evaluated; no seed
    does by a score that is neither an accuracy nor R^2.  ``low``
    and ``high`` bound the mean's 95 % interval, NaN below three seeds; the sample standard
    deviation ``std`` is NaN of one.  Steps per second count
    all seeds together, without compilation.
    """
    own = (PERSONAL, PERSONAL_R2)  # which have a column of their own
    rows, metric = {}, score_of(x for x in history["metric"].unique() if x not in own)
    score = (metric or "").removeprefix("test/")
    personal = PERSONAL_R2 if metric == R2 else PERSONAL
    # A later call may have added an algorithm with more rounds, which the others have not done.
    # With a clock, every algorithm has a number of its own.
    most = max((timing["num_rounds"] for timing in timings.values()), default=0)
    for algorithm in history["algorithm"].unique():
        of_algorithm = history["algorithm"] == algorithm
        known = history.loc[of_algorithm, "metric"].unique()
        measured = metric if metric and metric in known else known[0]
        part = history.loc[of_algorithm & (history["metric"] == measured), :]
        diverged_at = np.array(first_divergences(part))
        curves = part.pivot(index="round", columns="seed", values="value")
        at, values = curves.index.to_numpy(), curves.to_numpy()  # [E], [E, seeds]
        final = _last_values(part, diverged_at)
        if measured != metric:  # not evaluated yet, or never
            final = np.full_like(final, np.nan)
        # Others are evaluated where this metric may not be.
        rounds = int(history.loc[of_algorithm, :].groupby("seed")["round"].max().min())
        limits = bounds_of(measured, final)
        of_personal = of_algorithm & (history["metric"] == personal)
        if of_personal.any():
            compared = history.loc[of_personal, :]
            curves = compared.pivot(index="round", columns="seed", values="value")
            at, values = curves.index.to_numpy(), curves.to_numpy()
        else:
            compared = part
        may_reach = measured in (ACCURACY, R2) or bool(of_personal.any())
        above = (values >= target) & (diverged_at == 0) & may_reach
        first, reached = above.argmax(axis=0), above.any(axis=0)
        timing = timings[algorithm]
        seconds = timing["run_seconds"]
        planned = timing["num_rounds"] if "time" in history.columns else most
        rows[algorithm] = {
            "rounds": rounds,
            "finished": rounds == planned and len(final) >= num_seeds,
            **(_statistics(score, final, limits) if score else {}),
            "rounds_to_target": _median(at[first][reached]),
            "reached": int(reached.sum()),
            "seeds": len(final),
            "diverged": int(np.count_nonzero(diverged_at)),
            "divergence": divergence_text(diverged_at),
            "run_seconds": seconds,
            "compile_seconds": timing["compile_seconds"],
            "local_steps": timing["local_steps"],
            "local_steps_per_second": timing["local_steps"] / seconds if seconds else 0.0,
        }
        if "time" in history.columns:
            times = compared.pivot(index="round", columns="seed", values="time").to_numpy()
            own = times[first, np.arange(len(final))]
            rows[algorithm]["time_to_target"] = _median(own[reached])
        if of_personal.any():
            last = _last_values(compared, diverged_at)
            rows[algorithm] |= _statistics("personal", last, bounds_of(personal, last))
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("algorithm")


def _last_values(part: pd.DataFrame, diverged_at: np.ndarray) -> np.ndarray:
    """Returns the last values by seed, NaN if a seed diverged."""
    last = part.loc[part.groupby("seed")["round"].idxmax(), :]
    return np.where(diverged_at.any(), np.nan, last["value"].to_numpy())


def _std(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan  # as in tables


def _statistics(
    name: str, scores: np.ndarray, bounds: tuple[float, float] | None
) -> dict[str, float]:
    """Returns mean and deviation, and the interval that tables show, NaN where they show none."""
    interval = shown_interval(scores, bounds=bounds)
    return {
        f"{name}_mean": float(scores.mean()),
        f"{name}_std": _std(scores),
        f"{name}_low": float(interval.low),
        f"{name}_high": float(interval.high),
    }


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else float("nan")


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds and steps of an algorithm, summed over the calls that resumed it."""

    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    local_steps: int = 0
    diverged: int = 0  # seeds
    num_rounds: int = 0


def add_timing(directory: pathlib.Path, new: Timing) -> None:
    """Adds the seconds and steps of one call to those in an algorithm's ``timing.json``."""
    old = read_timing(directory)
    total = dataclasses.replace(
        new,
        compile_seconds=old.compile_seconds + new.compile_seconds,
        run_seconds=old.run_seconds + new.run_seconds,
        local_steps=old.local_steps + new.local_steps,
    )
    RunFolder(directory).write_timing(dataclasses.asdict(total))


def read_timing(directory: pathlib.Path) -> Timing:
    """Returns the timing in an algorithm's folder; zeros if there is none."""
    return Timing(**RunFolder(directory).timing())


def read_timings(directory: pathlib.Path, algorithms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the timings of algorithms as :func:`summarize` takes them."""
    return {name: dataclasses.asdict(_total_timing(directory / name)) for name in algorithms}


def _total_timing(directory: pathlib.Path) -> Timing:
    """Returns the sum of the timings of an algorithm's seeds."""
    timings = [read_timing(folder) for folder in run_folders(directory)] or [Timing()]
    sums = {
        name: sum(getattr(timing, name) for timing in timings)
        for name in ("compile_seconds", "run_seconds", "local_steps", "diverged")
    }
    return Timing(**sums, num_rounds=max(timing.num_rounds for timing in timings))


def check_folder(path: pathlib.Path, kind: Kind) -> None:
    """Refuses an output folder that cannot be written or holds no results of ``kind``.

    Creates nothing.  A folder that can only be read may hold a finished run.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        check_kind(path, kind, "output")
    if path.is_dir() and is_read_only(path):
        return
    existing = next(p for p in (path, *path.parents) if p.exists() or p == p.parent)
    try:
        with tempfile.TemporaryDirectory(dir=existing):
            pass
    except OSError as error:
        raise ValueError(
            f"output is '{path}', which cannot be created: {error.strerror or error} ('{existing}')"
        ) from error


def own_differences(there: Sequence[str], here: Sequence[str]) -> list[str]:
    """Returns a text if results have other parts of a study module than a call."""
    if tuple(there) == tuple(here):
        return []
    known, given = ", ".join(there) or "none", ", ".join(here) or "none"
    return [f"the parts of a study module are {known} there and {given} here"]


def refuse_other(output: pathlib.Path, kind: str, differing: Sequence[str]) -> None:
    """Refuses a folder with other results of the kind, if any values differ."""
    if differing:
        raise FolderError(
            f"output is '{output}', which holds another {kind}: {'; '.join(differing)}; choose "
            "another folder or delete that one"
        )


def is_read_only(path: pathlib.Path) -> bool:
    """Returns True for a folder that exists and cannot be written."""
    return path.is_dir() and not os.access(path, os.W_OK)


def write_all(folder: pathlib.Path, files: Mapping[str, pd.DataFrame | Figure | str]) -> None:
    """Writes tables as CSV, figures and texts, each whole or not at all."""
    for name, content in files.items():
        with replacing(folder / name) as partial:
            if isinstance(content, pd.DataFrame):
                content.to_csv(partial, index=False)
            elif isinstance(content, Figure):
                save(content, partial, format=figure_format(name))
            else:
                partial.write_text(content)


def write_json(path: pathlib.Path, values: Mapping[str, Any]) -> None:
    """Writes JSON such that a kill leaves the old file or the new one; NaN becomes null."""
    text = json.dumps(as_json(values), indent=2, allow_nan=False)
    write_text(path, text + "\n")
