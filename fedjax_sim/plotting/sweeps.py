"""Figures of sweeps: sensitivity to one hyper-parameter, speed-up; heat maps are in ``heat_maps``.

They take the frames of :mod:`fedjax_sim.analysis.selection` and choose with its :func:`best`: what is not on
an axis is tuned for every point, and the title says so.  As in :mod:`fedjax_sim.plotting.curves`, every
function returns a Figure and touches no global state.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from fedjax_sim.analysis.selection import Mode, best, grid_values, rows_with
from fedjax_sim.plotting.curves import INK, legend_above, line_look, style_axes

_GREY = "#8A94A0"
# What is drawn at the top edge where a mean is not a number on the axis.
_ABSENT = ((np.isnan, "x", "a seed failed"), (np.isinf, "^", "infinite"))


def sensitivity(
    scores: pd.DataFrame,
    x: str,
    *,
    by: str | None = None,
    mode: Mode = "min",
    level: float = 0.95,
    label: str = "score",
    yscale: Literal["linear", "log"] = "linear",
) -> Figure:
    """Score against one hyper-parameter, a line per value of ``by``: the best over all the others.

    Lines are means over seeds, bands their confidence intervals.  Where a seed failed there is no
    mean: the line breaks and a cross stands at the top edge.  The horizontal axis is logarithmic
    where that spaces the values more evenly; values that are not numbers are spaced evenly.

    Args:
        scores: as :func:`fedjax_sim.analysis.selection.scores` returns them; rows without ``x`` (NaN) are
            not shown.
        label: what the score is, for the vertical axis.

    Raises:
        ValueError: as :func:`fedjax_sim.analysis.selection.best`; nobody has ``x``.

    Example:
        >>> rows = [(lr, seed, 2 * lr + seed) for lr in (0.25, 1.0, 4.0) for seed in (0, 1)]
        >>> frame = pd.DataFrame(rows, columns=["lr", "seed", "score"])
        >>> axes = sensitivity(frame, "lr").axes[0]
        >>> axes.get_xscale(), axes.lines[0].get_ydata().tolist()
        ('log', [1.0, 2.5, 8.5])
    """
    ticks = [value for value in grid_values(scores, x) if not pd.isna(value)]
    if not ticks:
        raise ValueError(f"x is {x!r}, which no row has; expected a column with values")
    scores = scores.loc[np.asarray(scores[x].notna()), :]
    lines = [by] if by is not None else []
    points = best(scores, per=[*lines, x], mode=mode, level=level)
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.set_yscale(yscale)
    numeric = all(isinstance(value, int | float) for value in ticks)
    names = [] if by is None else grid_values(points, by)
    stacked = 0  # lines that have marks at the top edge
    for i, name in enumerate(names or [None]):
        part = points if by is None else rows_with(points, by, name)
        at = np.array([value if numeric else index_of(ticks, value) for value in part[x]])
        shown = "mean" if name is None else short(name)
        _line(axes, at, part, ("mean", "low", "high"), i, shown)
        mean = np.asarray(part["mean"], np.float64)
        for absent, marker, _ in _ABSENT:
            where = at[absent(mean)]
            axes.plot(
                where,
                np.full(len(where), 1.03 + 0.05 * stacked),
                marker,
                color=line_look(i)["color"],
                transform=axes.get_xaxis_transform(),  # x in data, y in parts of the axis
                clip_on=False,
            )
        stacked += int(not np.isfinite(mean).all())
    _place_ticks(axes, ticks, 12, numeric)
    axes.set(xlabel=words(x), ylabel=label)
    style_axes(axes)
    keys = [short(name) for name in names]
    for absent, marker, meaning in _ABSENT:
        if absent(np.asarray(points["mean"], np.float64)).any():
            axes.plot([], [], marker, color=INK, label=meaning)
            keys.append(meaning)
    if keys:
        legend_above(figure, keys, 4, None if by in (None, "algorithm") else words(by))
    axes.set_title(grid_title(scores, points, [x, *lines]), fontsize="medium", pad=6 + 9 * stacked)
    return figure


def speed_up_figure(
    frame: pd.DataFrame,
    over: str = "num_clients",
    *,
    by: str | None = None,
    panel: str | None = None,
    label: str = "error",
) -> Figure:
    """Error and speed-up against the number of clients M, both axes logarithmic.

    Left (above, with ``panel``) the mean error, beside 1/M from the largest one at the smallest M;
    right (below) the speed-up over the smallest M, beside the linear one.  Bands are confidence
    intervals.

    With ``panel="local_steps"`` and ``by="algorithm"`` the upper row has the layout of the figures
    of Yuan and Ma (2020), "Federated Accelerated Stochastic Gradient Descent".

    Args:
        frame: as :func:`fedjax_sim.analysis.selection.speed_up` returns it.
        over: the column of M.
        by: the column that tells the curves apart.
        panel: the column with a pair of panels per value.
        label: what the error is ("suboptimality", "rounds").

    Raises:
        ValueError: missing columns; two rows for one point.

    Example:
        >>> from fedjax_sim.analysis.statistics import speed_up
        >>> rows = [(m, seed, (1 + seed) / m) for m in (2, 4, 8) for seed in (0, 1)]
        >>> frame = speed_up(pd.DataFrame(rows, columns=["num_clients", "seed", "score"]))
        >>> left, right = speed_up_figure(frame).axes
        >>> left.lines[-1].get_ydata().tolist(), right.lines[-1].get_ydata().tolist()
        ([0.75, 0.375, 0.1875], [1.0, 2.0, 4.0])
    """
    key = [name for name in (panel, by, over) if name is not None]
    if missing := [n for n in (*key, "error", "speed_up", "linear") if n not in frame.columns]:
        raise ValueError(f"the frame lacks the columns {missing}; it has {list(frame.columns)}")
    if (repeated := frame.duplicated(key)).any():
        at = frame.loc[repeated, key].iloc[0].to_dict()
        raise ValueError(f"frame has two rows for {at}; expected one (is another column varied?)")
    panels = [None] if panel is None else grid_values(frame, panel)
    names = [] if by is None else grid_values(frame, by)
    if panel is None:
        figure = Figure(figsize=(9.2, 3.8), layout="constrained")
        pairs = figure.subplots(1, 2, squeeze=False)
    else:
        figure = Figure(figsize=(1.2 + 2.9 * len(panels), 6.2), layout="constrained")
        pairs = figure.subplots(2, len(panels), sharex=True, sharey="row", squeeze=False).T
    for value, (left, right) in zip(panels, pairs, strict=True):
        part = frame if panel is None else rows_with(frame, panel, value)
        _speed_up_pair(left, right, part, over, by, names, 8 if panel is None else 6)
        if panel is not None:
            left.set_title(f"{words(panel)} = {short(value)}", fontsize="medium")
    bases = _bases(frame, over)
    for left, right in pairs[:1]:
        left.set_ylabel(label)
        right.set_ylabel(f"speed-up over {words(over)} = {' or '.join(map(short, bases))}")
    for axes in pairs[:, 1] if panel is not None else pairs.ravel():
        axes.set_xlabel(words(over))
    title = None if by in (None, "algorithm") else words(by)
    legend_above(figure, [*(short(name) for name in names), "linear speed-up"], 6, title)
    return figure


def _speed_up_pair(
    left: Axes,
    right: Axes,
    frame: pd.DataFrame,
    over: str,
    by: str | None,
    names: Sequence[Any],
    room: int,
) -> None:
    sizes = grid_values(frame, over)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
    for axes, value in ((left, "error"), (right, "speed_up")):
        for i, name in enumerate(names or [None]):
            part = frame if by is None else rows_with(frame, by, name)
            shown = "mean" if name is None else short(name)
            columns = (value, f"{value}_low", f"{value}_high")
            _line(axes, np.asarray(part[over]), part, columns, i, shown)
        _place_ticks(axes, sizes, room)
        style_axes(axes)
    guide = {
        "color": _GREY,
        "ls": (0, (1, 1.5)),
        "lw": 1.6,
        "label": "linear speed-up",
        "zorder": 1,
    }
    at = np.array(sizes, np.float64)
    first = np.asarray(rows_with(frame, over, sizes[0])["error"], np.float64)
    if np.isfinite(first).any():
        left.plot(at, np.max(first[np.isfinite(first)]) * at[0] / at, **guide)
    for base in _bases(frame, over):
        right.plot(at[at >= base], at[at >= base] / base, **guide)
    right.yaxis.set_major_locator(LogLocator(base=2, numticks=9))
    right.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    right.yaxis.set_minor_locator(NullLocator())


def _bases(frame: pd.DataFrame, over: str) -> list[Any]:
    """The smallest M of the curves."""
    return grid_values(rows_with(frame, "linear", 1.0), over)


def _line(
    axes: Axes, at: np.ndarray, frame: pd.DataFrame, columns: Sequence[str], i: int, label: str
) -> None:
    """The i-th line and its band, which on a log axis ends at a third of the lowest mean."""
    order = np.argsort(at)
    mean, low, high = (np.asarray(frame[name], np.float64)[order] for name in columns)
    look = line_look(i)
    axes.plot(at[order], mean, **look, lw=1.8, marker="o", ms=4, label=label)
    finite = mean[np.isfinite(mean)]
    if axes.get_yscale() == "log" and len(finite):
        low = np.maximum(low, finite.min() / 3)
    axes.fill_between(at[order], low, high, color=look["color"], alpha=0.18, lw=0)


def _place_ticks(axes: Axes, values: Sequence[Any], most: int, numeric: bool = True) -> None:
    """Ticks at the values, at most so many of the numbers; a log axis if that is more even."""
    if not numeric:
        axes.set_xticks(range(len(values)), [short(value) for value in values])
        return
    if axes.get_xscale() != "log" and _is_geometric(np.array(values, np.float64)):
        axes.set_xscale("log")
    shown = values[:: math.ceil(len(values) / most)]
    size = "small" if len(shown) > 8 else None
    axes.set_xticks(shown, [short(value) for value in shown], fontsize=size)
    axes.xaxis.set_minor_locator(NullLocator())


def _is_geometric(values: np.ndarray) -> bool:
    """Whether ascending values are more evenly spaced in logarithms."""
    if len(values) < 3 or values[0] <= 0:
        return False
    linear, logarithmic = np.diff(values), np.diff(np.log(values))
    return bool(np.ptp(logarithmic) / logarithmic.mean() < np.ptp(linear) / linear.mean())


def grid_title(scores: pd.DataFrame, cells: pd.DataFrame, shown: Sequence[str]) -> str:
    """What the numbers are: means over how many seeds, best over which hyper-parameters."""
    tuned = [
        words(name)
        for name in scores.columns
        if name not in (*shown, "seed", "score", "diverged_at")
        and len(grid_values(scores, name)) > 1
    ]
    seeds = cells["num_seeds"].unique().tolist()
    parts = [f"mean of {seeds[0]} seeds"] if len(seeds) == 1 and seeds[0] > 1 else []
    return ", ".join(parts + ([f"best over {', '.join(tuned)}"] if tuned else []))


def index_of(values: Sequence[Any], value: Any) -> int:
    """Position of a value; NaN equals NaN, and only it."""
    return next(i for i, v in enumerate(values) if v == value or (pd.isna(v) and pd.isna(value)))


def short(value: Any) -> str:
    if isinstance(value, float):
        return "none" if math.isnan(value) else f"{value:g}"
    return str(value)


def words(name: str | None) -> str:
    return "" if name is None else name.replace("_", " ")
