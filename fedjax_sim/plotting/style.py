"""Style that all figures share: colours, line styles, axes, legends, names."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

# Okabe and Ito's palette, distinct under the common colour-vision deficiencies, without its yellow,
# which is too pale for lines; black comes last.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", "-.", ":")  # the next style when the colours are used up
INK = "#333333"
GREY = "#8A94A0"
SHADES = LinearSegmentedColormap.from_list("shades", ["#DCEAF5", COLORS[0], "#00304D"])


def line_look(i: int) -> dict[str, Any]:
    """Returns colour and style of the i-th line of a panel."""
    style = LINE_STYLES[i // len(COLORS) % len(LINE_STYLES)]
    return {"color": COLORS[i % len(COLORS)], "ls": style}


def legend_above(
    figure: Figure, names: Sequence[str], columns: int, title: str | None = None
) -> None:
    """Adds one legend for all panels, with the given lines in the given order."""
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
    """Sets thin spines and a pale grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(color=INK, labelcolor=INK)
    axes.grid(color="#E3E6E8", lw=0.8)
    axes.set_axisbelow(True)


def bare(bar: Colorbar) -> Colorbar:
    """Removes the outline of a colour bar."""
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return bar


def index_of(values: Sequence[Any], value: Any) -> int:
    """Returns the position of a value; NaN equals only NaN."""
    return next(i for i, v in enumerate(values) if v == value or (pd.isna(v) and pd.isna(value)))


def short(value: Any) -> str:
    """Returns a value as a short text; NaN is "none"."""
    if isinstance(value, float):
        return "none" if math.isnan(value) else f"{value:g}"
    return str(value)


def words(name: str | None) -> str:
    """Returns a column's name with spaces."""
    return "" if name is None else name.replace("_", " ")
