"""Figures of the gap between theory and practice."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import NullFormatter

from fedjax_sim.diagnostics import Overlay
from fedjax_sim.reports.figures.bounds import bound_curves
from fedjax_sim.reports.figures.figure import Figure
from fedjax_sim.reports.figures.style import (
    add_caption,
    legend_above,
    line_look,
    style_axes,
)


def gap_figure(
    frame: pd.DataFrame, metric: str, bounds: Overlay, target: float | None = None
) -> Figure:
    """Measured curves of prescribed and tuned settings, with the theorems' bounds over them.

    Args:
        frame: tidy, with columns ``run``, ``quantity``, ``seed``, ``round``, ``metric``, ``value``
            (:meth:`fedjax_sim.studies.advice.Gap.to_frame`).
        metric: metric of the frame.
        bounds: at the rounds of the frame.
        target: value of a horizontal line.

    Raises:
        ValueError: as :func:`fedjax_sim.reports.figures.bound_curves`.

    Example:
        >>> columns = ["run", "quantity", "seed", "round", "metric", "value"]
        >>> rows = [("FedAvg", "model", 0, r, "F - F*", 1 / r) for r in (1, 2, 4)]
        >>> figure = gap_figure(pd.DataFrame(rows, columns=columns), "F - F*", Overlay([], {}), 0.5)
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['FedAvg', 'target']
    """
    part = frame.loc[frame["metric"] == metric, :]
    plain = part["quantity"] == "model"
    names = np.where(plain, part["run"], part["run"] + ": " + part["quantity"])
    part = part.assign(run=names)
    figure = bound_curves(part, metric, bounds, by="run", target=target)
    figure.set_figheight(3.2 + 0.22 * len(figure.axes[0].lines))  # the legend may be long
    return figure


def local_steps_figure(frame: pd.DataFrame, rounds: int, local_steps: int) -> Figure:
    """Bounds at prescribed rates against the number of local steps, a line per theorem.

    Args:
        frame: columns ``theorem``, ``metric``, ``local_steps``, ``bound``.
        rounds: after which the bounds hold, for the caption.
        local_steps: number that a ring marks.

    Raises:
        ValueError: no finite bound.

    Example:
        >>> columns = ["theorem", "metric", "local_steps", "bound"]
        >>> rows = [("FedAvg", "F - F*", K, 1 / K) for K in (1, 2, 4)]
        >>> figure = local_steps_figure(pd.DataFrame(rows, columns=columns), 100, local_steps=2)
        >>> figure.axes[0].get_xlabel()
        'local steps'
    """
    finite = frame.loc[np.isfinite(np.asarray(frame["bound"], float)), :]
    if finite.empty:
        raise ValueError("frame has no finite bound; expected one: no theorem applies")
    metrics = list(finite["metric"].unique())
    figure = Figure(figsize=(6.4, 1.2 + 3.4 * len(metrics)), layout="constrained")
    names = list(finite["theorem"].unique())
    panels = figure.subplots(len(metrics), 1, squeeze=False)[:, 0]
    for axes, metric in zip(panels, metrics, strict=True):
        for i, name in enumerate(names):
            part = finite.loc[(finite["theorem"] == name) & (finite["metric"] == metric), :]
            if part.empty:
                continue
            x, y = part["local_steps"].to_numpy(), part["bound"].to_numpy()
            axes.plot(x, y, label=name, **line_look(i))
            here = x == local_steps
            axes.plot(x[here], y[here], "o", mfc="none", color=line_look(i)["color"])
        axes.set(xlabel="local steps", ylabel=f"bound of {metric}", xscale="log", yscale="log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, high / 10), max(high, 10 * low))  # at least a decade
        style_axes(axes)
    legend_above(figure, names, 2)
    add_caption(figure, f"Bounds after {rounds} rounds, at the rates that the theorems prescribe.")
    return figure
