"""Bars of the contributions of clients."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.ticker import MaxNLocator

from fedjax_sim.reports.figures.figure import Figure
from fedjax_sim.reports.figures.style import COLORS, GREY, INK, add_caption, font_points, style_axes
from fedjax_sim.reports.frames import check_columns


def contributions(
    values: pd.DataFrame,
    *,
    label: str = "contribution",
    size: tuple[float, float] | None = None,
    caption: str = "",
) -> Figure:
    """Bars of the clients' values, a panel per method; error bars are two standard errors.

    Args:
        values: columns ``method``, ``client``, ``value`` and ``standard_error``, as
            ``Valuation.to_frame`` returns them; frames of several methods may be concatenated.
        label: of the vertical axes.
        size: width and height in inches; default 5.6 and 2.2 per method.
        caption: text under the panels.

    Raises:
        ValueError: missing columns, no rows.

    Example:
        >>> rows = [("exact", c, v, 0.0) for c, v in enumerate([0.5, -0.1])]
        >>> columns = ["method", "client", "value", "standard_error"]
        >>> axes = contributions(pd.DataFrame(rows, columns=columns)).axes[0]
        >>> [float(bar.get_height()) for bar in axes.patches], axes.get_title()
        ([0.5, -0.1], 'exact')
    """
    check_columns(values, ["method", "client", "value", "standard_error"], "values")
    methods = values["method"].unique().tolist()
    if not methods:
        raise ValueError("values has no rows; expected some")
    size = size or (5.6, 0.8 + 2.2 * len(methods))
    with rc_context({"font.size": font_points(size[0])}):
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(methods), 1, sharex=True, squeeze=False)[:, 0]
        for axes, method in zip(panels, methods, strict=True):
            part = values.loc[values["method"] == method, :]
            height = np.asarray(part["value"], np.float64)
            error = 2 * np.asarray(part["standard_error"], np.float64)
            colors = np.where(height < 0, COLORS[1], COLORS[0]).tolist()
            axes.bar(np.asarray(part["client"]), height, color=colors, width=0.8)
            if error.any():
                axes.errorbar(
                    np.asarray(part["client"]), height, error, fmt="none", ecolor=INK, capsize=2
                )
            axes.axhline(0, color=GREY, lw=0.8)
            axes.set(ylabel=label, title=method)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            style_axes(axes)
        panels[-1].set_xlabel("client")
        add_caption(figure, caption)
    return figure
