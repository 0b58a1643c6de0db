"""Figures of sweeps: sensitivity to one hyper-parameter, heat maps over two, speed-up.

They take the frames of :mod:`fedjax_sim.reports.selection` and choose with its :func:`best`: a
hyper-parameter that is on no axis is tuned for every point, and the title names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from fedjax_sim.reports.figures.style import (
    COLORS,
    GREY,
    INK,
    LETTER,
    SHADES,
    Figure,
    add_caption,
    bare,
    color_limits,
    index_of,
    legend_above,
    legend_title,
    line_look,
    literal_texts,
    marker_look,
    panels,
    short,
    style_axes,
)
from fedjax_sim.reports.frames import check_columns, check_unique, grid_values, rows_with
from fedjax_sim.reports.intervals import interval_note
from fedjax_sim.reports.labels import algorithm_labels, setting_label
from fedjax_sim.reports.selection import Mode, best, sign_of

# Marks at the top edge for means that are no number on the axis.
_ABSENT = ((np.isnan, "x", "a seed failed"), (np.isinf, "^", "infinite"))
_FAR = "#E7E3DD"  # of means far worse than the others
_MOST_SPREADS = 3


@literal_texts
def sensitivity(
    scores: pd.DataFrame,
    x: str,
    *,
    by: str | None = None,
    mode: Mode = "min",
    label: str = "score",
    yscale: Literal["linear", "log"] = "linear",
    bounds: tuple[float, float] | None = None,
) -> Figure:
    """Best score over all other hyper-parameters against one of them, a line per value of ``by``.

    Lines are means over seeds, bands their 95 % confidence intervals.  Where a seed failed there is
    no mean: the line breaks and a cross is drawn at the top edge.  The horizontal axis is
    logarithmic where that spaces the values more evenly; values that are not numbers are spaced
    evenly.

    Args:
        scores: as :func:`fedjax_sim.reports.selection.scores` returns them; rows without ``x``
            (NaN) are left out.
        label: name of the score, for the vertical axis.
        bounds: range of the scores, such as (0, 1) for accuracies, to which bands are cut.

    Raises:
        ValueError: as :func:`fedjax_sim.reports.selection.best`; no row has ``x``.

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
    points = best(scores, per=[*lines, x], mode=mode, bounds=bounds)
    figure, (axes,) = panels((5.6, 3.8))
    axes.set_yscale(yscale)
    numeric = all(isinstance(value, int | float) for value in ticks)
    names = [] if by is None else grid_values(points, by)
    keys = value_labels(by, names)
    stacked = 0  # lines that have marks at the top edge
    for i, name in enumerate(names or [None]):
        part = points if by is None else rows_with(points, by, name)
        at = np.array([value if numeric else index_of(ticks, value) for value in part[x]])
        shown = "mean" if name is None else keys[i]
        _line(axes, at, part, ("mean", "low", "high"), i, shown)
        mean = np.asarray(part["mean"], np.float64)
        for absent, marker, _ in _ABSENT:
            where = at[absent(mean)]
            if not len(where):  # a line without points would widen the margins
                continue
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
    axes.set(xlabel=setting_label(x), ylabel=label)
    style_axes(axes)
    for absent, marker, meaning in _ABSENT:
        if absent(np.asarray(points["mean"], np.float64)).any():
            axes.plot([], [], marker, color=INK, label=meaning)
            keys.append(meaning)
    if keys:
        legend_above(figure, keys, 4, legend_title(by))
    axes.set_title(grid_title(scores, points, [x, *lines]), fontsize="medium", pad=6 + 9 * stacked)
    add_caption(figure, _about_bands(points))
    return figure


@literal_texts
def heat_map(
    scores: pd.DataFrame,
    x: str,
    y: str,
    *,
    mode: Mode = "min",
    log: bool = False,
    label: str = "score",
) -> Figure:
    """Mean score over seeds for every pair of values of two hyper-parameters.

    The best cell is outlined.  Cells with a failed seed are hatched and show how many failed; a
    combination that was not run is white.  The means are printed where there is room, always up to
    8 x 8.  Means far worse than those of the better half, such as 1e30 shortly before a divergence,
    do not set the colours: they are pale grey, and the colour bar ends with an arrow.

    Args:
        scores: as :func:`fedjax_sim.reports.selection.scores` returns them.
        log: logarithmic colours, for scores that differ by orders of magnitude.
        label: name of the score, for the colour bar.

    Raises:
        ValueError: as :func:`fedjax_sim.reports.selection.best`; ``x`` equal to ``y``; ``log``
            and a mean that is not positive.

    Example:
        >>> rows = [(a, b, 0, a * b) for a in (0.1, 1.0) for b in (1, 2, 4)]
        >>> frame = pd.DataFrame(rows, columns=["lr", "local_steps", "seed", "score"])
        >>> axes = heat_map(frame, "lr", "local_steps").axes[0]
        >>> [text.get_text() for text in axes.texts]
        ['0.100', '1.00', '0.200', '2.00', '0.400', '4.00']
    """
    if x == y:
        raise ValueError(f"x and y are both {x!r}; expected two columns")
    cells = best(scores, per=[y, x], mode=mode)
    xs, ys = grid_values(cells, x), grid_values(cells, y)
    mean = np.asarray(cells["mean"], np.float64)
    finite = np.isfinite(mean)
    if log and (mean[finite] <= 0).any():
        raise ValueError(f"log is True and a mean score is {mean[finite].min():g}; expected > 0")
    at = np.array(
        [(index_of(ys, b), index_of(xs, a)) for b, a in zip(cells[y], cells[x], strict=True)]
    )
    values = np.full((len(ys), len(xs)), math.nan)
    values[tuple(at[finite].T)] = mean[finite]

    width = float(np.clip(0.62 * len(xs), 2.5, 9))  # inches of the map
    height = float(np.clip(0.36 * len(ys), 1.4, 7))
    figure, (axes,) = panels((width + 2.2, height + 1.2))
    shown, end = _without_outliers(mean[finite], mode, log)
    norm = (LogNorm if log else Normalize)(*color_limits(shown, log))
    shades = SHADES.with_extremes(under=_FAR, over=_FAR)
    colors = axes.pcolormesh(
        np.arange(len(xs) + 1) - 0.5,
        np.arange(len(ys) + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=shades,
        norm=norm,
        edgecolor="white",
        lw=0.6,
    )
    room = width / len(xs) >= 0.55 and height / len(ys) >= 0.2
    numbers = zip(at, mean, cells["num_failed"], cells["num_seeds"], strict=True)
    for (row, column), value, failed, seeds in numbers:
        if not np.isfinite(value):
            hatch = "////" if failed else None
            axes.add_patch(_box(row, column, facecolor="#F4F4F4", edgecolor="#C9CDD1", hatch=hatch))
        if room:
            text = f"✗ {failed}/{seeds}" if failed else f"{value:#.3g}".rstrip(".")
            color = _readable(shades(norm(value))) if np.isfinite(value) else INK
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
        elif failed:
            axes.text(column, row, "✗", ha="center", va="center", fontsize=8, color=INK)
    if finite.any():
        winner = at[np.argmin(np.where(finite, mean if mode == "min" else -mean, math.inf))]
        axes.add_patch(_box(*winner, facecolor="none", edgecolor=COLORS[1], lw=2.5, clip_on=False))
    labels = value_labels(x, xs)
    axes.set_xticks(range(len(xs)), labels)
    if max(map(len, labels)) * LETTER > width / len(xs):
        axes.tick_params("x", labelrotation=90)
    axes.set_yticks(range(len(ys)), value_labels(y, ys))
    axes.set(xlabel=setting_label(x), ylabel=setting_label(y))
    axes.set_title(grid_title(scores, cells, [x, y]), fontsize="medium")
    style_axes(axes)
    axes.grid(False)
    bar = figure.colorbar(colors, ax=axes, label=label, pad=0.02, aspect=7 * height, extend=end)
    bare(bar)
    return figure


@literal_texts
def speed_up_figure(
    frame: pd.DataFrame,
    over: str = "num_clients",
    *,
    by: str | None = None,
    panel: str | None = None,
    label: str = "error",
) -> Figure:
    """Error and speed-up against the number of clients M, both axes logarithmic.

    The left panels (upper, with ``panel``) show the mean error, the right (lower) ones the speed-up
    over the smallest M.  Where a curve speeds up, dotted lines show the linear speed-up: in the
    left panels 1/M from the largest error at the smallest M.  Bands are confidence intervals.

    With ``panel="local_steps"`` and ``by="algorithm"`` the upper row has the layout of the figures
    of Yuan and Ma (2020), "Federated Accelerated Stochastic Gradient Descent".

    Args:
        frame: as :func:`fedjax_sim.reports.statistics.speed_up` returns it.
        over: column of M.
        by: column with a curve per value.
        panel: column with a pair of panels per value.
        label: name of the error ("suboptimality", "rounds").

    Raises:
        ValueError: missing columns; two rows for one point.

    Example:
        >>> from fedjax_sim.reports.statistics import speed_up
        >>> rows = [(m, seed, (1 + seed) / m) for m in (2, 4, 8) for seed in (0, 1)]
        >>> frame = speed_up(pd.DataFrame(rows, columns=["num_clients", "seed", "score"]))
        >>> left, right = speed_up_figure(frame).axes
        >>> left.lines[-1].get_ydata().tolist(), right.lines[-1].get_ydata().tolist()
        ([0.75, 0.375, 0.1875], [1.0, 2.0, 4.0])
    """
    key = [name for name in (panel, by, over) if name is not None]
    check_columns(frame, [*key, "error", "speed_up", "linear"])
    check_unique(frame, key)
    values = [None] if panel is None else grid_values(frame, panel)
    names = [] if by is None else grid_values(frame, by)
    labels = value_labels(by, names)
    if panel is None:
        figure, every = panels((9.2, 3.8), 1, 2)
    else:
        size = (1.2 + 2.9 * len(values), 6.2)
        figure, every = panels(size, 2, len(values), sharex=True, sharey="row")
    pairs = list(zip(every[: len(values)], every[len(values) :], strict=True))
    for value, (left, right) in zip(values, pairs, strict=True):
        part = frame if panel is None else rows_with(frame, panel, value)
        _speed_up_pair(
            left, right, part, over, by, dict(zip(names, labels, strict=True)),
            8 if panel is None else 6,
        )  # fmt: skip
        if panel is not None:
            left.set_title(f"{setting_label(panel)} = {short(value)}", fontsize="medium")
    bases = _bases(frame, over)
    for left, right in pairs[:1]:
        left.set_ylabel(label)
        right.set_ylabel(f"speed-up over {setting_label(over)} = {' or '.join(map(short, bases))}")
    for axes in every if panel is None else every[len(values) :]:
        axes.set_xlabel(setting_label(over))
    keys = [*labels, "linear speed-up"] if _speeds_up(frame) else labels
    if keys:
        legend_above(figure, keys, 6, legend_title(by))
    add_caption(figure, _about_bands(frame))
    return figure


def _speed_up_pair(
    left: Axes,
    right: Axes,
    frame: pd.DataFrame,
    over: str,
    by: str | None,
    labels: Mapping[Any, str],
    room: int,
) -> None:
    sizes = grid_values(frame, over)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
    for axes, value in ((left, "error"), (right, "speed_up")):
        for i, name in enumerate(labels or [None]):
            part = frame if by is None else rows_with(frame, by, name)
            shown = "mean" if name is None else labels[name]
            columns = (value, f"{value}_low", f"{value}_high")
            _line(axes, np.asarray(part[over]), part, columns, i, shown)
        _place_ticks(axes, sizes, room)
        style_axes(axes)
    if _speeds_up(frame):
        _linear_guides(left, right, frame, over, sizes)
    right.yaxis.set_major_locator(LogLocator(base=2, numticks=9))
    right.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    right.yaxis.set_minor_locator(NullLocator())


def _speeds_up(frame: pd.DataFrame) -> bool:
    return bool((frame["speed_up"] > 1).any())


def _linear_guides(
    left: Axes, right: Axes, frame: pd.DataFrame, over: str, sizes: Sequence[Any]
) -> None:
    guide = {
        "color": GREY,
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


def value_labels(by: str | None, names: Sequence[Any]) -> list[str]:
    """Returns the values of a column as texts, algorithms as their papers write them."""
    texts = [short(name) for name in names]
    texts = [x if texts.count(x) == 1 else str(y) for x, y in zip(texts, names, strict=True)]
    labels = algorithm_labels(texts) if by == "algorithm" else {}
    return [labels.get(text, text) for text in texts]


def _about_bands(points: pd.DataFrame) -> str:
    """Returns the text under a figure; none without bands."""
    num_seeds = np.asarray(points["num_seeds"], int).tolist()
    note = interval_note(num_seeds, points.attrs.get("level", 0.95))
    return note.replace("Mean", "Lines: mean").replace(" and its", "; bands: its")


def _bases(frame: pd.DataFrame, over: str) -> list[Any]:
    """Returns the smallest M of every curve."""
    return grid_values(rows_with(frame, "linear", 1.0), over)


def _line(
    axes: Axes, at: np.ndarray, frame: pd.DataFrame, columns: Sequence[str], i: int, label: str
) -> None:
    """Draws the i-th line and its band, which on a log axis ends at a third of the lowest mean."""
    order = np.argsort(at)
    mean, low, high = (np.asarray(frame[name], np.float64)[order] for name in columns)
    look = line_look(i)
    axes.plot(at[order], mean, **look, **marker_look(i, 0), lw=1.8, label=label)
    finite = mean[np.isfinite(mean)]
    if axes.get_yscale() == "log" and len(finite):
        low = np.maximum(low, finite.min() / 3)
    axes.fill_between(at[order], low, high, color=look["color"], alpha=0.18, lw=0)


def _place_ticks(axes: Axes, values: Sequence[Any], most: int, numeric: bool = True) -> None:
    """Sets at most ``most`` ticks at the values, and a log axis if that is more even."""
    if not numeric:
        labels = [short(value) for value in values]
        axes.set_xticks(range(len(values)), labels)
        figure = axes.get_figure(root=True)
        assert figure is not None
        if max(map(len, labels)) * LETTER > figure.get_figwidth() / len(labels):
            axes.set_xticks(
                range(len(values)), labels, rotation=30, ha="right", rotation_mode="anchor"
            )
        return
    if axes.get_xscale() != "log" and _is_geometric(np.array(values, np.float64)):
        axes.set_xscale("log")
    shown = values[:: math.ceil(len(values) / most)]
    size = "small" if len(shown) > 8 else None
    axes.set_xticks(shown, [short(value) for value in shown], fontsize=size)
    axes.xaxis.set_minor_locator(NullLocator())


def _is_geometric(values: np.ndarray) -> bool:
    """Returns True for ascending values that are more evenly spaced in logarithms."""
    if len(values) < 3 or values[0] <= 0:
        return False
    linear, logarithmic = np.diff(values), np.diff(np.log(values))
    return bool(np.ptp(logarithmic) / logarithmic.mean() < np.ptp(linear) / linear.mean())


def grid_title(scores: pd.DataFrame, cells: pd.DataFrame, shown: Sequence[str]) -> str:
    """Returns a title: number of seeds, and the hyper-parameters that the best is chosen over."""
    tuned = [
        setting_label(name)
        for name in scores.columns
        if name not in (*shown, "seed", "score", "diverged_at")
        and len(grid_values(scores, name)) > 1
    ]
    seeds = cells["num_seeds"].unique().tolist()
    parts = [f"mean of {seeds[0]} seeds"] if len(seeds) == 1 and seeds[0] > 1 else []
    return ", ".join(parts + ([f"best over {', '.join(tuned)}"] if tuned else []))


def _without_outliers(
    means: np.ndarray, mode: Mode, log: bool
) -> tuple[np.ndarray, Literal["neither", "min", "max"]]:
    """Returns the means that set the colours, and the end of the colour bar that has an arrow.

    A mean is left out if it is worse than the worst of the better half by more than three times the
    range of that half, on the scale of the colours.
    """
    sign = sign_of(mode)
    scaled = sign * (np.log(means) if log else means)
    better_half = np.sort(scaled)[: (len(scaled) + 1) // 2]
    if not len(better_half) or not (spread := np.ptp(better_half)):
        return means, "neither"
    kept = scaled <= better_half[-1] + _MOST_SPREADS * spread
    return means[kept], "neither" if kept.all() else "max" if sign > 0 else "min"


def _readable(background: Sequence[float]) -> str:
    """Returns black or white, whichever contrasts more by the definition of WCAG 2."""
    rgb = np.array(background[:3])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ (0.2126, 0.7152, 0.0722)
    return "white" if (luminance + 0.05) ** 2 < 0.05 * 1.05 else "black"


def _box(row: int, column: int, **look: Any) -> Rectangle:
    return Rectangle((column - 0.5, row - 0.5), 1, 1, **look)
