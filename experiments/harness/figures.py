"""Figures that several experiments draw."""

import io
import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from fedjax_sim.runs import replacing

__all__ = ["legends", "lines", "tidy"]

DPI = 90
COLOURS = 128  # of a file's palette


def save(figure: Figure, path: pathlib.Path, dpi: int = DPI) -> None:
    """Writes a figure as a PNG file, making its folder, and closes it.

    A palette makes the file a third as large as full colours do.  A kill leaves the old file or
    the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi)
    plt.close(figure)
    image = Image.open(drawn).convert("RGB")
    palette = image.quantize(COLOURS, dither=Image.Dither.NONE)
    with replacing(path) as partial:
        palette.save(partial, "PNG", optimize=True)


def lines(
    table: pd.DataFrame, over: str, value: str, by: Sequence[str], label: str | None = None
) -> Figure:
    """A line per combination of the columns ``by``: ``value`` against ``over``.

    Ten colours and three styles: lines that lie on each other can be seen, and 30 lines differ.
    """
    figure, axes = plt.subplots(figsize=(6.2, 3.5), layout="constrained")
    for i, (_, part) in enumerate(table.groupby(list(by), sort=False)):
        values = [(column, part[column].iloc[0]) for column in by]
        name = " ".join(v if isinstance(v, str) else f"{column} {v:g}" for column, v in values)
        look: dict[str, Any] = {"color": f"C{i % 10}", "ls": ("-", "--", ":")[i % 3]}
        axes.plot(part[over], part[value], marker="o", ms=4, **look, label=name)
    axes.set(xlabel=over, ylabel=label or value)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def tidy(frame: pd.DataFrame, columns: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """A frame with a column per metric in the form of :func:`fedjax_sim.reports.figures.curves`,
    without rows that have no value.
    """
    melted = frame.melt(
        list(names), value_vars=list(columns), var_name="metric", value_name="value"
    )
    return melted.dropna(subset=["value"])


def legends(axes: Any, **look: Any) -> None:
    """A legend without a frame on each of the axes."""
    for axis in axes:
        axis.legend(frameon=False, **look)
