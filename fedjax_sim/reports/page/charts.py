"""Data of a report's charts: views of curves, distributions, client maps and grids.

A chart shows one view at a time.  Its choices, such as metric and horizontal axis, have a view per
combination, by the positions of the chosen entries (``"0/2"``).  Columns are lists of equal length.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedjax_sim.reports.figures.curves import QUANTILES, is_distribution, seed_curve
from fedjax_sim.reports.figures.results import against
from fedjax_sim.reports.frames import finite_part, grid_values, value_texts
from fedjax_sim.reports.intervals import shown_interval
from fedjax_sim.reports.labels import PROGRESS, bounds_of, metric_label, setting_label
from fedjax_sim.reports.selection import Mode, best

MOST_CLIENTS = 100  # of a map
MOST_ROUNDS = 12  # with a distribution over clients
MOST_SHARES = 100  # points of a distribution over clients
MOST_CELLS = 400  # of a heat map
# Of a number; single precision needs them: with fewer, a flat curve becomes a staircase beside its
# band.
DIGITS = 9


class Chart(NamedTuple):
    """Views by the positions of the choices, and the kind of drawing."""

    kind: str  # "lines", "shares", "map" or "grid"
    choices: list[tuple[str, list[str]]]  # name of a choice, and the texts of its entries
    views: dict[str, dict[str, Any]]
    start: tuple[int, ...] = ()  # positions that are shown first; () for zeros
    note: str = ""  # a sentence on what no view shows
    names: tuple[str, ...] = ()  # of the lines, if they are not the report's methods


def curves(history: pd.DataFrame, metrics: Sequence[str], most: int) -> Chart | None:
    """Returns learning curves: mean over seeds and its interval, a view per metric and axis."""
    axes, names = progress_axes(history), algorithm_names(history)
    views, longest = {}, 0
    for j, x in enumerate(axes):
        frame = finite_part(against(history, x, "algorithm"))
        for i, metric in enumerate(metrics):
            parts = _parts(frame, metric, names)
            columns, points = _lines([_mean_band(part, x, metric) for part in parts], most)
            longest = max(longest, points)
            absent = [name for name, part in zip(names, parts, strict=True) if part.empty]
            views[f"{i}/{j}"] = _view(x, metric_label(metric), columns, "mean", absent)
    choices = [("metric", list(map(metric_label, metrics))), ("against", _axis_names(axes))]
    return Chart("lines", choices, views, _start(axes), _thinned(longest, most)) if views else None


def distributions(history: pd.DataFrame, values: Sequence[str], most: int) -> Chart | None:
    """Returns quantiles over clients against progress: median and 10 % to 90 %."""
    axes, names = progress_axes(history), algorithm_names(history)
    views, longest = {}, 0
    for j, x in enumerate(axes):
        frame = finite_part(against(history, x, "algorithm"))
        for i, name in enumerate(values):
            lines = zip(*(_parts(frame, f"{name}/{q}", names) for q in QUANTILES), strict=True)
            columns, points = _lines([_median_band(parts, x) for parts in lines], most)
            longest = max(longest, points)
            views[f"{i}/{j}"] = _view(x, metric_label(name), columns, "median")
    choices = [("value", list(map(metric_label, values))), ("against", _axis_names(axes))]
    return Chart("lines", choices, views, _start(axes), _thinned(longest, most)) if views else None


def diagnosis(measured: pd.DataFrame, most: int) -> Chart:
    """Returns measured quantities, means over seeds, and the bounds of theory over them."""
    names = [str(name) for name in measured["quantity"].unique()]
    parts = [measured.loc[measured["quantity"] == name, :] for name in names]
    metric = str(measured["metric"].iloc[0])
    lines = [_mean_band(part.fillna({"seed": 0}), "round", metric) for part in parts]
    columns, longest = _lines(lines, most)
    view = _view("round", metric, columns, "mean") | {"logs": [False, True]}
    return Chart("lines", [], {"": view}, note=_thinned(longest, most), names=tuple(names))


def shares(clients: pd.DataFrame, names: Sequence[str], most: int) -> Chart | None:
    """Returns the share of clients up to a value, a view per metric, split and round."""
    fixed = {"algorithm", "seed", "round", "client", "split", "num_examples", "name"}
    metrics = [str(name) for name in clients.columns if name not in fixed]
    values = list(itertools.product(metrics, clients["split"].unique()))
    rounds = _spaced(sorted(set(clients["round"])), MOST_ROUNDS)
    most = min(most, MOST_SHARES)
    views, longest = {}, 0
    for i, (metric, split) in enumerate(values):
        of_split = clients.loc[clients["split"] == split, :]
        for j, done in enumerate(rounds):
            lines, absent, notes = [], [], []
            for name in names:
                own = of_split.loc[of_split["algorithm"] == name, :]
                rows = own.loc[own["round"] == done, :]
                every = np.asarray(rows[metric], np.float64)
                kept = np.asarray(_rounded(np.sort(every[np.isfinite(every)])), np.float64)
                at = np.concatenate([kept[:1], kept])
                lines.append(_Line(at, np.arange(len(at)) / max(len(kept), 1), None, None, False))
                if not len(every):
                    absent.append(name)
                    continue
                if lost := len(every) - len(kept):
                    notes.append(f"{name}: {lost} of {len(every)} values are not finite, left out.")
                if (some := rows["seed"].nunique()) < (seeds := own["seed"].nunique()):
                    notes.append(f"{name}: {some} of {seeds} seeds.")
            columns, points = _lines(lines, most)
            longest = max(longest, points)
            what = "share of clients"
            view = _view("", f"{what} up to the value", columns, what, absent, notes)
            views[f"{i}/{j}"] = view | {"x": metric_label(metric), "zero": [False, True]}
    texts = [", ".join(filter(None, (metric_label(metric), split))) for metric, split in values]
    choices = [("value", texts), ("after round", list(map(str, rounds)))]
    start = (0, max(len(rounds) - 1, 0))
    return Chart("shares", choices, views, start, _thinned(longest, most)) if views else None


def client_map(labels: pd.DataFrame) -> Chart:
    """Returns the examples of each label at the first clients."""
    shown = labels.loc[labels["client"] < MOST_CLIENTS, :]
    columns = {name: shown[name].tolist() for name in ("client", "label", "examples")}
    # Clients and labels without an example have a place, too.
    ends = {name: int(np.max(labels[name])) + 1 for name in ("client", "label")}
    view = {
        "x": "client",
        "y": "label",
        "xs": list(range(min(ends["client"], MOST_CLIENTS))),
        "ys": list(range(ends["label"])),
        "columns": columns,
        "rows": ends["label"],
    }
    return Chart("map", [], {"": view})


def sensitivity(
    score: pd.DataFrame, swept: Sequence[str], labels: Mapping[str, str], metric: str, mode: Mode
) -> Chart | None:
    """Returns the best mean over the other settings against one number of the grid."""
    views = {}
    bounds = bounds_of(metric, np.asarray(score["score"], np.float64))
    for i, x in enumerate(swept):
        lines, at_all, failures = [], [], []
        for name in labels:
            own = score.loc[(score["algorithm"] == name) & score[x].notna(), :]
            if own.empty:
                lines.append(_Line.empty())
                continue
            points = best(own, per=[x], mode=mode, bounds=bounds).sort_values(x)
            at, mean, low, high = (
                np.asarray(points[key], np.float64) for key in (x, "mean", "low", "high")
            )
            at_all += at.tolist()
            failures += [f"{labels[name]} at {value:g}" for value in at[~np.isfinite(mean)]]
            lines.append(_Line(at, mean, low, high, False, gaps=True))
        columns, _ = _lines(lines, len(score))
        view = _view("", metric_label(metric), columns, "best mean")
        note = f"Every setting failed: {', '.join(failures)}." if failures else ""
        logs = [is_geometric(at_all), False]
        views[str(i)] = view | {"x": setting_label(x), "logs": logs, "note": note}
    choices = [("against", list(map(setting_label, swept)))]
    return Chart("lines", choices, views, names=tuple(labels.values())) if views else None


def grids(
    score: pd.DataFrame, swept: Sequence[str], labels: Mapping[str, str], metric: str, mode: Mode
) -> tuple[Chart | None, str]:
    """Returns heat maps over two numbers of the grid, a view per algorithm and pair, and a note."""
    texts, views, large = [], {}, []
    for name, label in labels.items():
        own = score.loc[score["algorithm"] == name, :]
        for x, y in itertools.combinations(swept, 2):
            cells = own.loc[own[x].notna() & own[y].notna(), :]
            if cells.empty or min(cells[x].nunique(), cells[y].nunique()) < 2:
                continue
            found = best(cells, per=[y, x], mode=mode)
            text = f"{label}: {setting_label(y)}, {setting_label(x)}"
            if len(found) > MOST_CELLS:
                large.append(f"{text} ({len(found)})")
                continue
            views[str(len(texts))] = _grid(found, x, y, metric, mode)
            texts.append(text)
    note = f"No map has more than {MOST_CELLS} cells: {'; '.join(large)}." if large else ""
    return (Chart("grid", [("grid", texts)], views) if views else None), note


def _grid(cells: pd.DataFrame, x: str, y: str, metric: str, mode: Mode) -> dict[str, Any]:
    mean = np.asarray(cells["mean"], np.float64)
    order = np.where(np.isfinite(mean), -mean if mode == "max" else mean, math.inf)
    failed = [
        f"{count} of {seeds} seeds failed" if count else ""
        for count, seeds in zip(cells["num_failed"], cells["num_seeds"], strict=True)
    ]
    small = max(len(grid_values(cells, x)), len(grid_values(cells, y))) <= 8
    names = {axis: value_texts(grid_values(cells, axis)) for axis in (x, y)}
    columns = {
        "x": [names[x][str(value)] for value in cells[x].tolist()],
        "y": [names[y][str(value)] for value in cells[y].tolist()],
        "mean": _rounded(mean),
        "best": [bool(np.isfinite(mean[i]) and i == order.argmin()) for i in range(len(mean))],
        "failed": failed,
        "text": [
            ("✗" if lost else f"{value:.3g}") if small or lost else ""
            for value, lost in zip(mean, failed, strict=True)
        ],
    }
    return {
        "x": setting_label(x),
        "y": setting_label(y),
        "value": metric_label(metric),
        "columns": columns,
        "xs": [*names[x].values()],
        "ys": [*names[y].values()][::-1],
        "rows": len(grid_values(cells, y)),
        "reversed": mode == "min",
    }


class _Line(NamedTuple):
    """One curve with its band."""

    at: np.ndarray
    mean: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None
    failed: bool  # it ends because a seed diverged
    gaps: bool = False  # points that are not finite are left out

    @classmethod
    def empty(cls) -> "_Line":
        """Returns a line without points."""
        return cls(np.zeros(0), np.zeros(0), None, None, False)


def _mean_band(part: pd.DataFrame, x: str, metric: str) -> _Line:
    """Returns mean and interval over seeds until the first value that is not finite."""
    if part.empty:
        return _Line.empty()
    grid, values, means = seed_curve(part, x)
    length = int(np.isfinite(means).sum())
    _, low, high = shown_interval(values[:, :length], bounds=bounds_of(metric, values))
    return _Line(grid[:length], means[:length], low, high, length < len(means))


def _median_band(parts: Sequence[pd.DataFrame], x: str) -> _Line:
    """Returns the quantiles over clients, averaged over the seeds."""
    if any(part.empty for part in parts):
        return _Line.empty()
    low, middle, high = (seed_curve(part, x) for part in parts)
    length = int(np.isfinite(low.mean + middle.mean + high.mean).sum())
    at, mean, below, above = (
        values[:length] for values in (low.at, middle.mean, low.mean, high.mean)
    )
    return _Line(at, mean, below, above, length < len(middle.mean))


def _lines(lines: Sequence[_Line], most: int) -> tuple[dict[str, list], int]:
    """Returns the columns of several curves, thinned, and the points of the longest."""
    columns: dict[str, list] = {"m": [], "x": [], "mean": [], "low": [], "high": [], "end": []}
    for number, line in enumerate(lines):
        at = np.flatnonzero(np.isfinite(line.mean)) if line.gaps else np.arange(len(line.at))
        kept = np.asarray(_spaced(at.tolist(), most), int)
        nothing = np.full(len(line.at), math.nan)
        columns["m"] += [number] * len(kept)
        for name, values in (
            ("x", line.at),
            ("mean", line.mean),
            ("low", nothing if line.low is None else line.low),
            ("high", nothing if line.high is None else line.high),
        ):
            # Rounds, bits and rates as they are: neighbours of large ones have places of their own.
            digits = 15 if name == "x" else DIGITS
            columns[name] += _rounded(np.asarray(values, np.float64)[kept], digits)
        columns["end"] += [line.failed and i == len(kept) - 1 for i in range(len(kept))]
    for name, absent in (("low", None), ("high", None), ("end", False)):
        if all(value is absent for value in columns[name]):
            del columns[name]
    return columns, max((len(line.at) for line in lines), default=0)


def _thinned(longest: int, most: int) -> str:
    """Returns the note on curves of which not all points are shown; empty if there are none."""
    if longest <= most:
        return ""
    return (
        f"Curves are thinned to {most} of up to {longest:,} points, evenly spaced, the first and "
        "the last among them."
    )


def _view(
    x: str,
    y: str,
    columns: dict[str, list],
    value: str,
    absent: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    missing = [f"Not recorded for {', '.join(absent)}."] if absent else []
    note = " ".join([*missing, *notes])
    axis = metric_label(x) if x else ""
    return {"x": axis, "y": y, "value": value, "columns": columns, "note": note}


def progress_axes(history: pd.DataFrame) -> list[str]:
    """Returns the measures of progress that the history has and that differ from the round."""
    found = ["round"]
    for name in PROGRESS:
        rows = history.loc[history["metric"] == name, :]
        if len(rows) and not (np.asarray(rows["value"]) == np.asarray(rows["round"])).all():
            found.append(name)
    return found


def _start(axes: Sequence[str]) -> tuple[int, int]:
    """Returns the choices at first: simulated time, where it differs from the round."""
    return 0, axes.index("time") if "time" in axes else 0


def _axis_names(axes: Sequence[str]) -> list[str]:
    return [f"{metric_label(x)}s" if x == "round" else metric_label(x) for x in axes]


def distribution_names(history: pd.DataFrame) -> list[str]:
    """Returns the metrics that the history has as quantiles over clients."""
    known = [str(name) for name in history["metric"].unique()]
    names = dict.fromkeys(name.rpartition("/")[0] for name in known)
    return [name for name in names if is_distribution(name, set(known))]


def algorithm_names(history: pd.DataFrame) -> list[str]:
    """Returns the algorithms of a history in their order."""
    return [str(name) for name in history["algorithm"].unique()]


def _parts(frame: pd.DataFrame, metric: str, names: Sequence[str]) -> list[pd.DataFrame]:
    rows = frame.loc[frame["metric"] == metric, :]
    return [rows.loc[rows["algorithm"] == name, :] for name in names]


def is_geometric(values: Sequence[float]) -> bool:
    """Returns True for positive values over more than a factor of ten."""
    return len(values) > 1 and min(values) > 0 and max(values) > 10 * min(values)


def _spaced(values: Sequence[Any], most: int) -> list[Any]:
    """Returns at most ``most`` values, evenly spaced, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[i] for i in np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]


def _rounded(values: np.ndarray, digits: int = DIGITS) -> list[float | None]:
    """Returns numbers of so many digits; None for those that are not finite."""
    return [float(f"{x:.{digits}g}") if math.isfinite(x) else None for x in values]
