"""One figure of a run: losses, distributions over clients, dynamics of clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedjax_sim.checks import check_count
from fedjax_sim.reports.divergence import finite_part
from fedjax_sim.reports.figures.curves import (
    add_notes,
    by_seed,
    draw_line,
    explained,
    line_labels,
    mark_failure,
    mean_of_seeds,
    on_one_grid,
    until_failure,
)
from fedjax_sim.reports.figures.figure import Figure
from fedjax_sim.reports.figures.style import (
    GREY,
    add_caption,
    line_look,
    marker_look,
    style_axes,
)
from fedjax_sim.reports.folders import default_metrics
from fedjax_sim.reports.frames import check_columns
from fedjax_sim.reports.labels import bounds_of, metric_label

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


class HasHistory(Protocol):
    """Result of ``simulate``, ``compare`` or ``sweep``."""

    def to_frame(self) -> pd.DataFrame: ...


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
    check_columns(
        history, [*([] if by is None else [by]), "seed", "round", "metric", "value"], "history"
    )
    known = set(history["metric"])
    panels = list(metrics or _default_panels(history))
    missing = [name for name in panels if name not in known and not is_distribution(name, known)]
    if missing or not panels:
        raise ValueError(f"metrics contains {missing}; expected some of {sorted(known)}")
    check_count(1, max_columns=max_columns)
    columns = min(max_columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = size or (2.4 * columns, 0.7 + 1.9 * rows)
    chosen = finite_part(history)
    num_seeds: set[int] = set()
    with rc_context({"font.size": _FONT}):
        figure = Figure(figsize=size, layout="constrained")
        every = figure.subplots(rows, columns, squeeze=False).ravel()
        for i, (value, label) in enumerate(line_labels(chosen, by).items()):
            group = chosen if by is None else chosen.loc[chosen[by] == value, :]
            num_seeds.add(len(set(group["seed"])))
            for name, axes in zip(panels, every, strict=False):
                if is_distribution(name, known):
                    _draw_distribution(axes, group, name, i, label)
                elif name in set(group["metric"]):
                    part = group.loc[group["metric"] == name, :]
                    draw_line(axes, part, "round", "ci", i, label, name)
        for name, axes in zip(panels, every, strict=False):
            _finish(axes, name, chosen)
        for axes in every[len(panels) :]:
            axes.remove()
        add_notes(figure, chosen, by, columns + 1, caption)
        distributions = [is_distribution(name, known) for name in panels]
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
    lines, grid = [], np.array([])
    for quantile in QUANTILES:
        part = group.loc[group["metric"] == f"{name}/{quantile}", :]
        if part.empty:
            return
        grid, values = on_one_grid(by_seed(part, "round"), "round")
        lines.append(until_failure(mean_of_seeds(values)))
    low, middle, high = lines
    look = line_look(i)
    marks = marker_look(i, len(grid)) if np.isfinite(middle).any() else {}
    axes.plot(grid, middle, **look, **marks, lw=1.4, label=label)
    axes.fill_between(grid, low, high, color=look["color"], alpha=0.18, lw=0)
    mark_failure(axes, grid, middle, look["color"])


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
