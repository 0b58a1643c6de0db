"""Figures: learning curves with bands over seeds, who has which labels, client sizes.

Every function returns a :class:`matplotlib.figure.Figure` and touches no global state: no pyplot,
no display needed, nothing shown.  Save it with ``figure.savefig(path)``; notebooks display it.
"""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedjax_sim.data.federated import FederatedData

if TYPE_CHECKING:
    import pandas as pd

# Okabe and Ito's palette: distinct under the common colour-vision deficiencies.  Its yellow is left
# out (too pale for lines); black comes last.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", "-.", ":")  # the next style when the colours are used up
INK = "#333333"
SHADES = LinearSegmentedColormap.from_list("shades", ["#DCEAF5", COLORS[0], "#00304D"])


def curves(
    history: "pd.DataFrame",
    metric: str | Sequence[str],
    *,
    x: str = "round",
    by: str = "algorithm",
    band: Literal["std", "minmax", "ci"] | None = "std",
    yscale: Literal["linear", "log"] = "linear",
    max_columns: int = 3,
) -> Figure:
    """Learning curves: the mean over seeds, a band around it, one panel per metric.

    Seeds that were recorded at different ``x`` (simulated time, say) are interpolated linearly onto
    the union of their grids, over the range that all of them cover.

    Args:
        history: tidy frame, one value a row, with columns ``by``, ``seed``, ``x``, ``metric``,
            ``value``.
        metric: which metrics to show, in the order of the panels.
        x: column of the horizontal axis.
        by: column that tells the lines apart; they keep the frame's order.
        band: ``"std"``: mean +- sample standard deviation; ``"minmax"``: all seeds; ``"ci"``: 95 %
            confidence interval of the mean (Student's t); None.  One seed: no band.
        yscale: of all panels.
        max_columns: panels side by side.

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
    names = history.loc[history["metric"].isin(metrics), by].unique()
    for name, axes in zip(metrics, panels, strict=False):
        for i, group in enumerate(names):
            part = history.loc[(history["metric"] == name) & (history[by] == group), :]
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
    title = None if by == "algorithm" else by.replace("_", " ")
    legend_above(figure, [str(name) for name in names], 3 * columns, title)
    return figure


def client_label_map(
    counts: np.ndarray, class_names: Sequence[str] | None = None, *, max_clients: int = 100
) -> Figure:
    """Who has which labels: a cell per client and class, darker with more examples; none is white.

    The colour scale is that of square roots, so that small counts remain visible.  Bars above show
    the clients' sizes.

    Args:
        counts: [M, C] examples of each class at each client
            (:func:`fedjax_sim.data.summary.label_counts`).
        class_names: C names; numbers if None.
        max_clients: the first so many clients are shown.

    Raises:
        ValueError: counts not two-dimensional or negative, a wrong number of names,
            max_clients < 1.

    Example:
        >>> figure = client_label_map(np.array([[10, 0], [5, 5]]), ["cat", "dog"])
        >>> [tick.get_text() for tick in figure.axes[1].get_yticklabels()]
        ['cat', 'dog']
    """
    counts = np.asarray(counts)
    if counts.ndim != 2 or counts.size == 0 or counts.min() < 0:
        raise ValueError(f"counts has shape {counts.shape}; expected non-negative [M, C]")
    num_clients, num_classes = counts.shape
    if class_names is not None and len(class_names) != num_classes:
        raise ValueError(f"class_names has {len(class_names)} names; expected {num_classes}")
    if max_clients < 1:
        raise ValueError(f"max_clients is {max_clients}; expected at least 1")
    shown = counts[:max_clients]
    width = float(np.clip(0.3 * len(shown), 3, 10))  # inches of the map
    height = float(np.clip(0.25 * num_classes, 1, 6))
    figure = Figure(figsize=(width + 2, height + 1.6), layout="constrained")
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=[0.7, height])
    top.bar(np.arange(len(shown)), shown.sum(axis=1), width=0.8, color="#8A94A0")
    top.set_ylabel("examples")
    top.set_yticks([0, max(shown.sum(axis=1).max(), 1)])
    style_axes(top)

    x, y = np.arange(len(shown) + 1) - 0.5, np.arange(num_classes + 1) - 0.5
    gap = 0.6 if max(len(shown), num_classes) <= 100 else 0.0  # gaps would swallow tiny cells
    cells = main.pcolormesh(
        x,
        y,
        np.ma.masked_equal(shown.T, 0),
        cmap=SHADES,
        norm=PowerNorm(0.5, vmin=0, vmax=max(shown.max(), 1)),
        edgecolor="white",
        lw=gap,
    )
    main.invert_yaxis()
    main.set_xlabel(
        "client" if len(shown) == num_clients else f"client (first {len(shown)} of {num_clients})"
    )
    main.set_ylabel("class")
    main.xaxis.set_major_locator(MaxNLocator(integer=True))
    if class_names is not None:
        main.set_yticks(range(num_classes), class_names)
    elif num_classes <= 20:
        main.set_yticks(range(num_classes))
    style_axes(main)
    main.grid(False)
    bar = figure.colorbar(cells, ax=main, label="examples", pad=0.02, aspect=7 * height)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def size_histogram(data: FederatedData) -> Figure:
    """Histogram of the clients' numbers of examples, with the median marked.

    Example:
        >>> figure = size_histogram(FederatedData({"x": np.zeros(5)}, np.array([0, 2, 5])))
        >>> sum(int(bar.get_height()) for bar in figure.axes[0].patches)
        2
    """
    sizes = np.asarray(data.sizes)
    step = max(1, math.ceil((sizes.max() + 1) / 50))
    edges = np.arange(0, sizes.max() + step + 1, step) - 0.5  # no size lies on an edge
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.hist(sizes, bins=edges.tolist(), color=COLORS[0], edgecolor="white", lw=0.6)
    median = float(np.median(sizes))
    axes.axvline(median, color=COLORS[1], lw=1.8, ls="--", label=f"median {median:g}")
    axes.set(xlabel="examples per client", ylabel="clients")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(loc="outside upper right", frameon=False)
    style_axes(axes)
    return figure


def _check_history(history: "pd.DataFrame", metrics: list[str], x: str, by: str) -> None:
    needed = [by, "seed", x, "metric", "value"]
    missing = [column for column in needed if column not in history.columns]
    if missing:
        raise ValueError(f"history lacks the columns {missing}; it has {list(history.columns)}")
    known = history["metric"].unique().tolist()
    if not metrics or not set(metrics) <= set(known):
        raise ValueError(f"metric is {metrics}; expected some of {known}")
    points = history.loc[history["metric"].isin(metrics), needed[:-1]]
    if (repeated := points.duplicated()).any():
        row = points.loc[repeated, :].iloc[0].to_dict()
        raise ValueError(
            f"history has two rows for {row}; expected one (is another column varied?)"
        )


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
        from fedjax_sim.analysis.intervals import mean_interval

        _, low, high = mean_interval(values)
        return low, high
    with np.errstate(invalid="ignore"):  # a seed that diverged: the band ends there
        mean, half = values.mean(axis=0), values.std(axis=0, ddof=1)
        return mean - half, mean + half


def line_look(i: int) -> dict[str, Any]:
    """Colour and style of the i-th line of a panel."""
    style = LINE_STYLES[i // len(COLORS) % len(LINE_STYLES)]
    return {"color": COLORS[i % len(COLORS)], "ls": style}


def legend_above(
    figure: Figure, names: Sequence[str], columns: int, title: str | None = None
) -> None:
    """One legend for all panels, with the given lines in the given order."""
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.lines}
    figure.legend(
        [lines[name] for name in names],
        names,
        loc="outside upper center",
        ncols=min(len(names), columns),
        frameon=False,
        title=title,
    )


def style_axes(axes: Axes) -> None:
    """Thin spines, a pale grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(color=INK, labelcolor=INK)
    axes.grid(color="#E3E6E8", lw=0.8)
    axes.set_axisbelow(True)
