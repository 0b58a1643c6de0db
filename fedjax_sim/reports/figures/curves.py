"""Learning curves with bands over seeds.

Every function of this package returns a :class:`matplotlib.figure.Figure` and touches no global
state: it uses no pyplot and needs no display.  Save a figure with
:func:`fedjax_sim.reports.figures.save`; notebooks display it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedjax_sim.checks import check_count, did_you_mean
from fedjax_sim.reports.divergence import divergence_text, finite_part, first_divergences
from fedjax_sim.reports.figures.figure import Figure
from fedjax_sim.reports.figures.style import (
    add_caption,
    font_points,
    legend_above,
    legend_title,
    line_look,
    marker_look,
    style_axes,
)
from fedjax_sim.reports.frames import check_columns, check_unique
from fedjax_sim.reports.intervals import FEWEST, shown_interval
from fedjax_sim.reports.labels import algorithm_labels, bounds_of, metric_label

Band: TypeAlias = Literal["std", "minmax", "ci", "seeds"]

# What a band is, for the text under a figure.
_BANDS = {
    "std": "bands: ± 1 standard deviation",
    "minmax": "bands: smallest to largest seed",
    "ci": "bands: 95 % interval of the mean (Student's t)",
    "seeds": "thin lines: single seeds",
}


def curves(
    history: pd.DataFrame,
    metric: str | Sequence[str],
    *,
    x: str = "round",
    by: str | None = "algorithm",
    band: Band | None = "ci",
    xscale: Literal["linear", "log"] = "linear",
    yscale: Literal["linear", "log"] = "linear",
    max_columns: int = 3,
    size: tuple[float, float] | None = None,
    caption: str = "",
) -> Figure:
    """Learning curves: the mean over seeds, a band around it, one panel per metric.

    Seeds that were recorded at different ``x`` (simulated time, say) are interpolated linearly onto
    the union of their grids, over the range that all of them cover.

    A mean is over all seeds or not drawn: the line ends, with a cross, at the last point before a
    seed diverged, and the legend names the round and how many seeds did.  Bands of accuracies are
    cut to [0, 1].  A text under the panels says what lines and bands are.

    Args:
        history: tidy frame, one value per row, with columns ``by``, ``seed``, ``x``, ``metric``,
            ``value``.  With ``round`` and ``diverged_at`` (the round of a run's first server state
            that is not finite, or 0), values from that round on are left out; without, values that
            are not finite end a line.
        metric: metrics, in the order of the panels.
        x: column of the horizontal axis.
        by: column with a line per value; lines keep the frame's order.  None: one line, no legend.
            Algorithms of the library have their papers' names.
        band: ``"ci"``: 95 % interval of the mean (Student's t), as in tables, from three seeds on;
            ``"std"``: mean +- sample standard deviation; ``"minmax"``: all seeds; ``"seeds"``: thin
            lines of the single seeds; None.  One seed: no band.
        xscale: scale of the horizontal axes; a logarithmic one has no place for round 0.
        yscale: scale of all panels.
        max_columns: largest number of panels side by side.
        size: width and height of the figure in inches; default: by the number of panels.
        caption: text under the panels, before the one about lines and bands.

    Raises:
        ValueError: a missing column or metric, two rows for one point, an unknown band.

    Example:
        >>> columns = ["algorithm", "seed", "round", "metric", "value"]
        >>> rows = [("fedavg", s, r, "loss", 1 / (r + s + 1)) for s in range(3) for r in range(9)]
        >>> figure = curves(pd.DataFrame(rows, columns=columns), "loss")
        >>> figure.axes[0].get_ylabel(), [line.get_label() for line in figure.axes[0].lines]
        ('loss', ['FedAvg'])
        >>> figure.get_supxlabel()
        "Lines: mean of 3 seeds; bands: 95 % interval of the mean (Student's t)."
    """
    metrics = [metric] if isinstance(metric, str) else list(metric)
    _check_history(history, metrics, x, by)
    if band is not None and band not in _BANDS:
        known = ", ".join(map(repr, _BANDS))
        raise ValueError(f"band is {band!r}; expected one of {known}, or None")
    check_count(1, max_columns=max_columns)
    columns = min(max_columns, len(metrics))
    rows = math.ceil(len(metrics) / columns)
    size = size or (1.2 + 4.4 * columns, 0.8 + 3.2 * rows)
    chosen = finite_part(history.loc[history["metric"].isin(metrics), :])
    with rc_context({"font.size": font_points(size[0])}):
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        num_seeds = set()
        for i, (name, label) in enumerate(line_labels(chosen, by).items()):
            group = chosen if by is None else chosen.loc[chosen[by] == name, :]
            for title, axes in zip(metrics, panels, strict=False):
                part = group.loc[group["metric"] == title, :]
                if len(part):
                    num_seeds.add(part["seed"].nunique())
                    draw_line(axes, part, x, band, i, label, title)
        for title, axes in zip(metrics, panels, strict=False):
            axes.set(
                xlabel=metric_label(x), ylabel=metric_label(title), xscale=xscale, yscale=yscale
            )
            style_axes(axes)
            axes.margins(x=0.02)
            if history[x].dtype.kind in "iu" and xscale == "linear":
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        for axes in panels[len(metrics) :]:
            axes.remove()
        add_notes(figure, chosen, by, 3 * columns, caption)
        add_caption(figure, explained(band, num_seeds))
    return figure


def line_labels(history: pd.DataFrame, by: str | None) -> dict[Any, str]:
    """Returns the lines' labels by the values of the column ``by``."""
    if by is None:
        return {None: "mean"}
    names = history[by].unique().tolist()
    known = algorithm_labels(name for name in names if isinstance(name, str))
    return {name: known.get(name, str(name)) for name in names}


def divergence_notes(history: pd.DataFrame, by: str | None) -> dict[str, str]:
    """Returns, by the label of each line, the rounds in which its seeds diverged, as a text."""
    return {
        label: divergence_text(
            first_divergences(history if by is None else history.loc[history[by] == name, :])
        )
        for name, label in line_labels(history, by).items()
    }


def add_notes(
    figure: Figure, history: pd.DataFrame, by: str | None, columns: int, caption: str
) -> None:
    """Adds the lines' legend, the caption, and the rounds in which seeds diverged."""
    notes = divergence_notes(history, by)
    if by is not None:
        legend_above(figure, list(notes), columns, legend_title(by), notes)
    diverged = [f"Run {note}." for note in notes.values() if note and by is None]
    add_caption(figure, "\n".join(filter(None, (caption, *diverged))))


def draw_line(
    axes: Axes, part: pd.DataFrame, x: str, band: Band | None, i: int, label: str, metric: str
) -> None:
    """Draws a line, its band, and a cross where it ends because a seed diverged."""
    look = line_look(i)
    seeds = by_seed(part, x)
    grid, values = on_one_grid(seeds, x)
    means = until_failure(mean_of_seeds(values))
    marks = marker_look(i, len(grid)) if np.isfinite(means).any() else {}
    axes.plot(grid, means, **look, **marks, lw=1.8, label=label)
    mark_failure(axes, grid, means, look["color"])
    if band == "seeds":
        for at, single in seeds:
            ended = until_failure(single)
            axes.plot(at, ended, **look, lw=0.7, alpha=0.6, label="_seed", zorder=1.5)
            mark_failure(axes, at, ended, look["color"], size=5)
    elif band is not None and len(values) > 1:
        low, high = _band(values, band)
        if bounds := bounds_of(metric, values):
            low, high = np.clip([low, high], *bounds)
        shown = np.where(np.isfinite(means), 1.0, np.nan)
        axes.fill_between(grid, low * shown, high * shown, color=look["color"], alpha=0.18, lw=0)


def mark_failure(
    axes: Axes, at: np.ndarray, values: np.ndarray, color: str, size: float = 8
) -> None:
    """Draws a cross at the last finite value, if values that are not finite follow it."""
    finite = np.flatnonzero(np.isfinite(values))
    if 0 < len(finite) < len(values):
        last = finite[-1]
        look: dict[str, Any] = {"ls": "", "marker": "x", "ms": size, "mew": 2, "color": color}
        axes.plot(at[last], values[last], **look, label="_diverged", clip_on=False, zorder=3)


def explained(band: str | None, num_seeds: set[int]) -> str:
    """Returns the text about lines and bands."""
    fewest, most = min(num_seeds), max(num_seeds)
    if most == 1:
        return "Lines: one seed."
    seeds = f"{most}" if fewest == most else f"{fewest} to {most}"
    if band == "ci" and most < FEWEST:
        return f"Lines: mean of {seeds} seeds, without an interval, which needs {FEWEST}."
    return "; ".join([f"Lines: mean of {seeds} seeds", *([_BANDS[band]] if band else [])]) + "."


def _check_history(history: pd.DataFrame, metrics: list[str], x: str, by: str | None) -> None:
    points = [*([] if by is None else [by]), "seed", x, "metric"]
    check_columns(history, [*points, "value"], "history")
    known = history["metric"].unique().tolist()
    if not metrics or not set(metrics) <= set(known):
        similar = "".join(did_you_mean(name, known) for name in metrics if name not in known)
        raise ValueError(f"metric is {metrics}; expected some of {known}{similar}")
    check_unique(history.loc[history["metric"].isin(metrics), :], points, "history")


def by_seed(part: pd.DataFrame, x: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns ``x`` and the values of every seed."""
    ordered = (rows.sort_values(x) for _, rows in part.groupby("seed", sort=True))
    return [(rows[x].to_numpy(), rows["value"].to_numpy(dtype=np.float64)) for rows in ordered]


def on_one_grid(
    seeds: Sequence[tuple[np.ndarray, np.ndarray]], x: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the common grid ``[n]`` and the seeds' values on it ``[seeds, n]``."""
    start, stop = max(at[0] for at, _ in seeds), min(at[-1] for at, _ in seeds)
    grid = np.unique(np.concatenate([at for at, _ in seeds]))
    grid = grid[(grid >= start) & (grid <= stop)]
    if not grid.size:
        raise ValueError(f"x is {x!r}: the seeds have no common range of it; expected an overlap")
    return grid, np.stack([np.interp(grid, at, values) for at, values in seeds])


def mean_of_seeds(values: np.ndarray) -> np.ndarray:
    """Returns the mean ``[n]`` of values ``[seeds, n]``."""
    with np.errstate(invalid="ignore"):  # infinities of both signs
        return values.mean(axis=0)


def until_failure(values: np.ndarray) -> np.ndarray:
    """Returns the values with NaN from the first one on that is not finite."""
    failed = np.logical_or.accumulate(~np.isfinite(values))
    return np.where(failed, np.nan, values)


def _band(values: np.ndarray, band: str) -> tuple[np.ndarray, np.ndarray]:
    if band == "minmax":
        return values.min(axis=0), values.max(axis=0)
    if band == "ci":
        _, low, high = shown_interval(values)
        return low, high
    with np.errstate(invalid="ignore"):  # a seed that diverged: the band ends there
        mean, half = values.mean(axis=0), values.std(axis=0, ddof=1)
        return mean - half, mean + half
