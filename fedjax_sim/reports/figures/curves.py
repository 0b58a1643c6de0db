"""Learning curves with bands over seeds, and panels of a whole run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedjax_sim.checks import did_you_mean
from fedjax_sim.reports.figures.style import (
    GREY,
    Figure,
    add_caption,
    font_of,
    legend_above,
    legend_title,
    line_look,
    literal_texts,
    marker_look,
    panels,
    rows_and_columns,
    short,
    style_axes,
)
from fedjax_sim.reports.folders import default_metrics
from fedjax_sim.reports.frames import (
    check_columns,
    check_unique,
    divergence_text,
    finite_part,
    first_divergences,
    rows_with,
)
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

QUANTILES = ("q10", "q50", "q90")
_FONT = 8  # points, in a figure of the width of a page
_SPREAD = 100  # ratio of values from which an axis is logarithmic
# Measures of fedjax_sim.diagnostics.dynamics, in the order of their panels.
_DYNAMICS = {
    "drift": "drift of clients",
    "disagreement": "disagreement of clients",
    "alignment": "alignment (cosine)",
    "eigenvalue": "largest eigenvalue",
    "noise": "variance of gradients",
}


@literal_texts
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
    rows, columns = rows_and_columns(len(metrics), max_columns)
    size = size or (1.2 + 4.4 * columns, 0.8 + 3.2 * rows)
    chosen = finite_part(history.loc[history["metric"].isin(metrics), :])
    with font_of(size):
        figure, every = panels(size, rows, columns, len(metrics))
        num_seeds = set()
        for i, (label, group) in enumerate(lines_of(chosen, by)):
            for title, axes in zip(metrics, every, strict=True):
                part = group.loc[group["metric"] == title, :]
                if len(part):
                    num_seeds.add(part["seed"].nunique())
                    draw_line(axes, part, x, band, i, label, title)
        for title, axes in zip(metrics, every, strict=True):
            axes.set(
                xlabel=metric_label(x), ylabel=metric_label(title), xscale=xscale, yscale=yscale
            )
            style_axes(axes)
            axes.margins(x=0.02)
            if history[x].dtype.kind in "iu" and xscale == "linear":
                axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        add_notes(figure, chosen, by, 3 * columns, caption)
        add_caption(figure, explained(band, num_seeds))
    return figure


def lines_of(history: pd.DataFrame, by: str | None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields the label and the rows of every line, one per value of the column; NaN is "none"."""
    if by is None:
        yield "mean", history
        return
    names = history[by].unique().tolist()
    known = algorithm_labels(name for name in names if isinstance(name, str))
    for name in names:
        text = short(name) if pd.isna(name) else str(name)
        yield known.get(name, text), rows_with(history, by, name)


def divergence_notes(history: pd.DataFrame, by: str | None) -> dict[str, str]:
    """Returns, by the label of each line, the rounds in which its seeds diverged, as a text."""
    lines = lines_of(history, by)
    return {label: divergence_text(first_divergences(rows)) for label, rows in lines}


def add_notes(
    figure: Figure, history: pd.DataFrame, by: str | None, columns: int, caption: str
) -> None:
    """Adds the lines' legend, the caption, and the rounds in which seeds diverged."""
    drawn = {str(line.get_label()) for axes in figure.axes for line in axes.lines}
    every = divergence_notes(history, by)
    # A run may have none of the metrics of the panels.
    notes = {label: note for label, note in every.items() if label in drawn}
    if by is not None:
        legend_above(figure, list(notes), columns, legend_title(by), notes)
    diverged = [f"Run {note}." for note in notes.values() if note and by is None]
    add_caption(figure, "\n".join(filter(None, (caption, *diverged))))


class SeedCurve(NamedTuple):
    """Values of seeds on their common grid, and their mean until a seed fails."""

    at: np.ndarray  # [n]
    values: np.ndarray  # [seeds, n]
    mean: np.ndarray  # [n]


def draw_line(
    axes: Axes, part: pd.DataFrame, x: str, band: Band | None, i: int, label: str, metric: str
) -> None:
    """Draws a line, its band, and a cross where it ends because a seed diverged."""
    grid, values, means = seed_curve(part, x)
    ends = None
    if band not in (None, "seeds") and len(values) > 1:
        ends = _band(values, band)
        if bounds := bounds_of(metric, values):
            ends = np.clip(ends, *bounds)
        ends = np.where(np.isfinite(means), ends, np.nan)
    draw_curve(axes, grid, means, i, ends, label=label)
    for at, single in by_seed(part, x) if band == "seeds" else ():
        look, ended = line_look(i), until_failure(single)
        axes.plot(at, ended, **look, lw=0.7, alpha=0.6, label="_seed", zorder=1.5)
        mark_failure(axes, at, ended, look["color"], size=5)


def draw_curve(
    axes: Axes,
    at: np.ndarray,
    middle: np.ndarray,
    i: int,
    ends: Any,
    *,
    label: str,
    lw: float = 1.8,
) -> None:
    """Draws the i-th line, a band between its ends, and a cross where the line ends early."""
    look = line_look(i)
    marks = marker_look(i, len(at)) if np.isfinite(middle).any() else {}
    axes.plot(at, middle, **look, **marks, lw=lw, label=label)
    mark_failure(axes, at, middle, look["color"])
    if ends is not None:
        axes.fill_between(at, *ends, color=look["color"], alpha=0.18, lw=0)


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
    points = [name for name in (by, "seed", x, "metric") if name is not None]
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


def seed_curve(part: pd.DataFrame, x: str) -> SeedCurve:
    """Returns the values of the seeds against ``x``, and their mean."""
    grid, values = on_one_grid(by_seed(part, x), x)
    with np.errstate(invalid="ignore"):  # infinities of both signs
        return SeedCurve(grid, values, until_failure(values.mean(axis=0)))


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


class HasHistory(Protocol):
    """Result of ``simulate``, ``compare`` or ``sweep``."""

    def to_frame(self) -> pd.DataFrame: ...


@literal_texts
def dashboard(
    result: HasHistory | pd.DataFrame,
    metrics: Sequence[str] | None = None,
    *,
    by: str | None = None,
    max_columns: int = 3,
    size: tuple[float, float] | None = None,
    caption: str = "",
) -> Figure:
    """Panels of a whole run: accuracy and loss, and every distribution over clients.

    A metric that the history has as quantiles over clients (``NAME/q10``, ``NAME/q50``,
    ``NAME/q90``, from :func:`~fedjax_sim.engine.evaluation.client_evaluator` or
    :func:`~fedjax_sim.diagnostics.dynamics.client_dynamics`) has a panel with the median over
    clients and a band from 10 % to 90 % of the clients, averaged over the seeds.  Other metrics are
    drawn as their mean over the seeds with its 95 % interval.  Lines of diverged runs end with a
    cross.  Axes of positive values that differ much are logarithmic.

    Args:
        result: of :func:`fedjax_sim.simulate` or :func:`fedjax_sim.compare`, or its ``to_frame()``.
        metrics: panels in this order; default: test accuracy and training loss, then all
            distributions over clients.
        by: column with a line per value; default ``algorithm`` if there is one.
        max_columns: largest number of panels side by side.
        size: width and height in inches; default: the width of a page, 7.2.
        caption: text under the panels, before the one about lines and bands.

    Raises:
        ValueError: missing columns or metrics.

    Example:
        >>> names = ["loss", "dynamics/drift/q10", "dynamics/drift/q50", "dynamics/drift/q90"]
        >>> rows = [(0, r, name, i + 1.0) for r in (1, 2) for i, name in enumerate(names)]
        >>> history = pd.DataFrame(rows, columns=["seed", "round", "metric", "value"])
        >>> figure = dashboard(history)
        >>> [axes.get_ylabel() for axes in figure.axes]
        ['loss', 'drift of clients']
    """
    history = result if isinstance(result, pd.DataFrame) else result.to_frame()
    if by is None and "algorithm" in history:
        by = "algorithm"
    check_columns(history, [by, "seed", "round", "metric", "value"], "history")
    known = set(history["metric"])
    names = list(metrics or _default_panels(history))
    missing = [name for name in names if name not in known and not is_distribution(name, known)]
    if missing or not names:
        raise ValueError(f"metrics contains {missing}; expected some of {sorted(known)}")
    rows, columns = rows_and_columns(len(names), max_columns)
    size = size or (2.4 * columns, 0.7 + 1.9 * rows)
    chosen = finite_part(history)
    num_seeds: set[int] = set()
    with rc_context({"font.size": _FONT}):
        figure, every = panels(size, rows, columns, len(names))
        for i, (label, group) in enumerate(lines_of(chosen, by)):
            num_seeds.add(len(set(group["seed"])))
            for name, axes in zip(names, every, strict=True):
                if is_distribution(name, known):
                    _draw_distribution(axes, group, name, i, label)
                elif name in set(group["metric"]):
                    part = group.loc[group["metric"] == name, :]
                    draw_line(axes, part, "round", "ci", i, label, name)
        for name, axes in zip(names, every, strict=True):
            _finish(axes, name, chosen)
        add_notes(figure, chosen, by, columns + 1, caption)
        distributions = [is_distribution(name, known) for name in names]
        if any(distributions):
            add_caption(figure, "Of clients: median, and band from 10 % to 90 % of the clients.")
        if not all(distributions):
            lines = explained("ci", num_seeds)
            if any(distributions):
                lines = f"Others: {lines.removeprefix('Lines: ')}"
            add_caption(figure, lines)
    return figure


def _default_panels(history: pd.DataFrame) -> list[str]:
    known = set(history["metric"])
    names = [name.rpartition("/")[0] for name in known if name.endswith(f"/{QUANTILES[1]}")]
    order = list(_DYNAMICS)

    def place(name: str) -> tuple[int, str]:
        last = name.rpartition("/")[2]
        return (1 + order.index(last) if last in order else 0), name

    distributions = sorted((x for x in names if is_distribution(x, known)), key=place)
    parts = tuple(f"{name}/" for name in distributions)
    return [x for x in default_metrics(history) if not x.startswith(parts)] + distributions


def is_distribution(name: str, known: set[str]) -> bool:
    return all(f"{name}/{quantile}" in known for quantile in QUANTILES)


def _draw_distribution(axes: Axes, group: pd.DataFrame, name: str, i: int, label: str) -> None:
    """Draws the median over clients and the band between the outer quantiles."""
    parts = [group.loc[group["metric"] == f"{name}/{q}", :] for q in QUANTILES]
    if any(part.empty for part in parts):
        return
    low, middle, high = (seed_curve(part, "round") for part in parts)
    draw_curve(axes, middle.at, middle.mean, i, (low.mean, high.mean), label=label, lw=1.4)


def _finish(axes: Axes, name: str, history: pd.DataFrame) -> None:
    """Sets labels and scales."""
    drawn = [name, f"{name}/{QUANTILES[0]}", f"{name}/{QUANTILES[-1]}"]
    values = np.asarray(history.loc[history["metric"].isin(drawn), "value"], np.float64)
    values = values[np.isfinite(values)]
    last = name.rpartition("/")[2]
    axes.set(xlabel="round", ylabel=_DYNAMICS.get(last, metric_label(name)))
    style_axes(axes)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True, min_n_ticks=1))
    if last == "alignment":
        axes.axhline(0, color=GREY, lw=0.8, zorder=1)
        axes.set_ylim(top=1.03)
        return
    if bounds_of(name, values) is None and len(values) and values.min() > 0:
        axes.set_yscale("log" if values.max() > _SPREAD * values.min() else "linear")
