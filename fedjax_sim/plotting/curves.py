"""Learning curves with bands over seeds.

Every function of this package returns a :class:`matplotlib.figure.Figure` and touches no global
state: it uses no pyplot and needs no display.  Save a figure with ``figure.savefig(path)``;
notebooks display it.
"""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_sim.analysis.frames import check_columns, check_unique
from fedjax_sim.analysis.intervals import mean_interval
from fedjax_sim.plotting.style import legend_above, line_look, style_axes

if TYPE_CHECKING:
    import pandas as pd


def curves(
    history: "pd.DataFrame",
    metric: str | Sequence[str],
    *,
    x: str = "round",
    by: str | None = "algorithm",
    band: Literal["std", "minmax", "ci"] | None = "std",
    yscale: Literal["linear", "log"] = "linear",
    max_columns: int = 3,
) -> Figure:
    """Learning curves: the mean over seeds, a band around it, one panel per metric.

    Seeds that were recorded at different ``x`` (simulated time, say) are interpolated linearly onto
    the union of their grids, over the range that all of them cover.

    Args:
        history: tidy frame, one value per row, with columns ``by``, ``seed``, ``x``, ``metric``,
            ``value``.
        metric: metrics, in the order of the panels.
        x: column of the horizontal axis.
        by: column with a line per value; lines keep the frame's order.  None: one line, no legend.
        band: ``"std"``: mean +- sample standard deviation; ``"minmax"``: all seeds; ``"ci"``: 95 %
            confidence interval of the mean (Student's t); None.  One seed: no band.
        yscale: scale of all panels.
        max_columns: largest number of panels side by side.

    Raises:
        ValueError: a missing column or metric, two rows for one point, an unknown band.

    Example:
        >>> import pandas as pd
        >>> columns = ["algorithm", "seed", "round", "metric", "value"]
        >>> rows = [("fedavg", s, r, "loss", 1 / (r + s + 1)) for s in range(3) for r in range(9)]
        >>> figure = curves(pd.DataFrame(rows, columns=columns), "loss")
        >>> figure.axes[0].get_ylabel(), len(figure.axes[0].lines)
        ('loss', 1)
    """
    metrics = [metric] if isinstance(metric, str) else list(metric)
    _check_history(history, metrics, x, by)
    if band not in ("std", "minmax", "ci", None):
        raise ValueError(f'band is {band!r}; expected "std", "minmax", "ci" or None')
    columns = min(max_columns, len(metrics))
    rows = math.ceil(len(metrics) / columns)
    figure = Figure(figsize=(1.2 + 4.4 * columns, 0.6 + 3.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    chosen = history.loc[history["metric"].isin(metrics), :]
    names = [None] if by is None else chosen[by].unique()
    for name, axes in zip(metrics, panels, strict=False):
        for i, group in enumerate(names):
            part = chosen.loc[chosen["metric"] == name, :]
            part = part if by is None else part.loc[part[by] == group, :]
            if len(part):
                grid, values = _on_one_grid(part, x)
                look = line_look(i)
                axes.plot(grid, values.mean(axis=0), **look, lw=1.8, label=str(group))
                if band is not None and len(values) > 1:
                    low, high = _band(values, band)
                    axes.fill_between(grid, low, high, color=look["color"], alpha=0.18, lw=0)
        axes.set(xlabel=x.replace("_", " "), ylabel=re.sub("[_/]", " ", name), yscale=yscale)
        style_axes(axes)
        axes.margins(x=0.02)
        if history[x].dtype.kind in "iu":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in panels[len(metrics) :]:
        axes.remove()
    if by is not None:
        title = None if by == "algorithm" else by.replace("_", " ")
        legend_above(figure, [str(name) for name in names], 3 * columns, title)
    return figure


def _check_history(history: "pd.DataFrame", metrics: list[str], x: str, by: str | None) -> None:
    points = [*([] if by is None else [by]), "seed", x, "metric"]
    check_columns(history, [*points, "value"], "history")
    known = history["metric"].unique().tolist()
    if not metrics or not set(metrics) <= set(known):
        raise ValueError(f"metric is {metrics}; expected some of {known}")
    check_unique(history.loc[history["metric"].isin(metrics), :], points, "history")


def _on_one_grid(part: "pd.DataFrame", x: str) -> tuple[np.ndarray, np.ndarray]:
    """The common grid ``[n]`` and the seeds' values on it ``[seeds, n]``."""
    seeds = []
    for _, rows in part.groupby("seed", sort=True):
        ordered = rows.sort_values(x)
        seeds.append((ordered[x].to_numpy(), ordered["value"].to_numpy(dtype=np.float64)))
    start, stop = max(at[0] for at, _ in seeds), min(at[-1] for at, _ in seeds)
    grid = np.unique(np.concatenate([at for at, _ in seeds]))
    grid = grid[(grid >= start) & (grid <= stop)]
    if not grid.size:
        raise ValueError(f"x is {x!r}: the seeds have no common range of it; expected an overlap")
    return grid, np.stack([np.interp(grid, at, values) for at, values in seeds])


def _band(values: np.ndarray, band: str) -> tuple[np.ndarray, np.ndarray]:
    if band == "minmax":
        return values.min(axis=0), values.max(axis=0)
    if band == "ci":
        _, low, high = mean_interval(values)
        return low, high
    with np.errstate(invalid="ignore"):  # a seed that diverged: the band ends there
        mean, half = values.mean(axis=0), values.std(axis=0, ddof=1)
        return mean - half, mean + half
