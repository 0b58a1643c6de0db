"""Style that all figures share: panels, colours, line styles, axes, legends, names, saving."""

from __future__ import annotations

import functools
import io
import math
import pathlib
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

import matplotlib.figure
import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.text import Text
from matplotlib.ticker import AutoLocator, FixedFormatter, Formatter, FuncFormatter

from fedjax_sim.checks import check_choice, check_count, check_positive
from fedjax_sim.reports.labels import setting_label

# Okabe and Ito's palette, distinct under the common colour-vision deficiencies, without its yellow,
# which is too pale for lines; black comes last.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Their number and that of the colours have no common divisor, so 28 lines differ.
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "D", "v", "P", "*")  # crosses and "^" are for runs that failed
FEW_POINTS = 12  # with a marker each
NARROW = 5.0  # inches; narrower figures, for one of two columns of a page, have a smaller font
_HANDLE = 8  # characters that a line in a legend takes
LETTER = 0.085  # inches of a letter of a tick label, at most
_PANEL_SHARE = 0.62  # of a row's height; the rest are legends, labels and captions
DPI = 110
INK = "#333333"
GREY = "#8A94A0"
SHADES = LinearSegmentedColormap.from_list("shades", ["#DCEAF5", COLORS[0], "#00304D"])


Arguments = ParamSpec("Arguments")


class Figure(matplotlib.figure.Figure):
    """Figure of matplotlib that Jupyter shows without ``%matplotlib inline``."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=DPI)
        return file.getvalue()


def literal_texts(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Returns a drawing function whose names, captions and labels are shown as they are.

    Matplotlib would read a formula between two dollars.  Texts that users set later may be
    formulas, and numbers at ticks are.
    """

    @functools.wraps(draw)
    def drawn(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Figure:
        figure = draw(*args, **kwargs)
        for text in _named_texts(figure):
            text.set_text(_literal(text.get_text()))
        for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
            shown = axis.get_major_formatter()
            if isinstance(shown, FixedFormatter | FuncFormatter):  # names in place of numbers
                axis.set_major_formatter(FuncFormatter(functools.partial(_tick, shown)))
        return figure

    return drawn


def _tick(shown: Formatter, x: float, place: int | None) -> str:
    """Returns the name at a tick."""
    return _literal(shown(x, place))


def _literal(text: str) -> str:
    """Returns a text for matplotlib in which dollars are no marks of formulas."""
    return re.sub(r"(?<!\\)\$", r"\\$", text)


def _named_texts(figure: matplotlib.figure.Figure) -> Iterator[Text]:
    """Yields all texts but those at ticks."""
    yield from figure.texts
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in filter(None, legends):
        yield from (*legend.get_texts(), legend.get_title())
    for axes in figure.axes:
        yield from (axes.title, *axes.texts, axes.xaxis.label, axes.yaxis.label)


def panels(
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    count: int | None = None,
    **shared: Any,
) -> tuple[Figure, list[Axes]]:
    """Returns a figure and its first panels, row by row; default: all."""
    figure = Figure(figsize=size, layout="constrained")
    every = figure.subplots(rows, columns, squeeze=False, **shared).ravel().tolist()
    for axes in every[count:] if count else ():
        axes.remove()
    return figure, every[:count]


def rows_and_columns(count: int, max_columns: int) -> tuple[int, int]:
    """Returns the shape of a grid of ``count`` panels."""
    check_count(1, max_columns=max_columns)
    columns = min(max_columns, count)
    return math.ceil(count / columns), columns


def line_look(i: int) -> dict[str, Any]:
    """Returns colour and style of the i-th line of a panel, which also differ in print in grey."""
    return {"color": COLORS[i % len(COLORS)], "ls": LINE_STYLES[i % len(LINE_STYLES)]}


def marker_look(i: int, num_points: int) -> dict[str, Any]:
    """Returns the marker of the i-th line: on every point of a few, else spaced along the line."""
    few = num_points <= FEW_POINTS
    return {
        "marker": MARKERS[i % len(MARKERS)],
        "ms": 4.5,
        # Parts of the panel's diagonal; lines that lie on each other have their markers apart.
        "markevery": 1 if few else (0.03 * (i % len(MARKERS)), 0.18),
    }


def legend_above(
    figure: matplotlib.figure.Figure,
    names: Sequence[str],
    columns: int,
    title: str | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Adds one legend of the named lines of all panels, with notes after their names."""
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.lines}
    texts = [f"{name}: {notes[name]}" if notes and notes.get(name) else name for name in names]
    add_legend(figure, [lines[name] for name in names], texts, columns, title, handlelength=2.6)


def legend_title(by: str | None) -> str | None:
    """Returns the title of a legend of the column's values; algorithms need none."""
    return None if by in (None, "algorithm") else setting_label(by)


def add_legend(
    figure: matplotlib.figure.Figure,
    handles: Sequence[Any],
    texts: Sequence[str],
    columns: int,
    title: str | None = None,
    **options: Any,
) -> None:
    """Adds a legend above the panels, with as many of the columns as the figure has room for."""
    points = font_points(figure.get_figwidth())
    room = int(figure.get_figwidth() * 72 / (0.58 * points))  # characters
    fitting = room // (max(map(len, texts)) + _HANDLE)
    figure.legend(
        handles,
        [textwrap.fill(text, max(room - _HANDLE, 1)) for text in texts],
        loc="outside upper center",
        ncols=max(1, min(len(texts), columns, fitting)),
        frameon=False,
        title=title,
        fontsize=points,
        **options,
    )


def line_names(axes: Axes) -> list[str]:
    """Returns the labels of the lines that a legend shows: not of crosses and single seeds."""
    labels = [str(line.get_label()) for line in axes.lines]
    return [label for label in labels if not label.startswith("_")]


def font_points(width: float) -> float:
    """Returns the size of the font for a figure of that width in inches."""
    return 10 if width >= NARROW else 8


def font_of(size: tuple[float, float]) -> Any:
    """Returns a context in which texts have the font of a figure of that size."""
    return rc_context({"font.size": font_points(size[0])})


def add_caption(figure: matplotlib.figure.Figure, text: str) -> None:
    """Adds lines to the text under the panels, wrapped at the figure's width."""
    if not text:
        return
    points = 0.75 * font_points(figure.get_figwidth())
    width = int(figure.get_figwidth() * 72 / (0.63 * points))  # characters
    lines = "\n".join(line for part in text.split("\n") for line in textwrap.wrap(part, width))
    before = figure.get_supxlabel()
    joined = f"{before}\n{lines}" if before else lines
    figure.supxlabel(joined, fontsize=points, color=INK, x=0.01, ha="left", linespacing=1.3)


def save(
    figure: matplotlib.figure.Figure,
    path: str | pathlib.Path,
    *,
    dpi: float = DPI,
    format: str | None = None,
) -> None:
    """Writes a figure as PDF, SVG or PNG, by the suffix of the path or by ``format``.

    Text stays text in PDF and SVG files, with its fonts embedded in PDF.  Files have no date, so
    equal figures make equal files.

    Raises:
        ValueError: another suffix or format; a dpi that is not positive.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "figure.svg"
        ...     save(Figure(), path)
        ...     path.read_text()[:5]
        '<?xml'
    """
    check_positive(dpi=dpi)
    kind = figure_format(path) if format is None else format
    check_choice(("pdf", "svg", "png"), format=kind)
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    with rc_context({"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "fedjax_sim"}):
        figure.savefig(path, format=kind, dpi=dpi, metadata=undated)


def figure_format(path: str | pathlib.Path) -> str:
    """Returns "pdf", "svg" or "png", the suffix of a path."""
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in (".pdf", ".svg", ".png"):
        raise ValueError(f"output is '{path}'; expected a name that ends in .pdf, .svg or .png")
    return suffix[1:]


def style_axes(axes: Axes) -> None:
    """Sets thin spines, a pale grid behind the data, and the largest number of vertical ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(color=INK, labelcolor=INK)
    axes.grid(color="#E3E6E8", lw=0.8)
    axes.set_axisbelow(True)
    _fix_vertical_ticks(axes)


def _fix_vertical_ticks(axes: Axes) -> None:
    """Sets the largest number of ticks of a linear vertical axis by the height of its row.

    By default it follows from the height of the panel itself.  Where labels such as "0.5" need more
    room than "1", the layout of the figure and the ticks then change each other, pass after pass,
    and the label of the axis can end outside the figure.
    """
    locator, place = axes.yaxis.get_major_locator(), axes.get_subplotspec()
    figure = axes.get_figure(root=True)
    if not isinstance(locator, AutoLocator) or place is None or figure is None:
        return
    height = 72 * figure.get_figheight() / place.get_gridspec().nrows  # points
    room = _PANEL_SHARE * height / (2 * font_points(figure.get_figwidth()))
    locator.set_params(nbins=min(max(round(room), 2), 9))


def bare(bar: Colorbar) -> Colorbar:
    """Removes the outline of a colour bar."""
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return bar


def color_limits(finite: np.ndarray, log: bool) -> tuple[float, float]:
    """Returns colour limits, which differ even for one value or none."""
    low, high = (finite.min(), finite.max()) if len(finite) else (1.0, 1.0)
    if low < high:
        return low, high
    return (low / 2, high * 2) if log else (low - 0.5, high + 0.5)


def index_of(values: Sequence[Any], value: Any) -> int:
    """Returns the position of a value; NaN equals only NaN."""
    return next(i for i, v in enumerate(values) if v == value or (pd.isna(v) and pd.isna(value)))


def short(value: Any) -> str:
    """Returns a value as a short text; NaN is "none"."""
    if isinstance(value, float):
        return "none" if math.isnan(value) else f"{value:g}"
    return str(value)
