"""Tables of selected configurations, as frames and as Markdown."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedjax_sim.reports.frames import check_columns, check_unique
from fedjax_sim.reports.intervals import is_symmetric


def table(
    frame: pd.DataFrame, rows: str | Sequence[str], columns: str, *, digits: int = 3
) -> pd.DataFrame:
    """Returns the frame of :func:`best` as a table of "mean ± half-width" texts.

    The mean has ``digits`` significant digits and the half-width of its interval the same decimals;
    one seed has no half-width.  An interval that was cut, as that of an accuracy at 1, is written
    as [low, high].  "1/3 failed" replaces a mean that is undefined because of failed seeds; a cell
    that was not run is empty.

    Raises:
        ValueError: an unknown column, two rows for one cell, digits < 1.

    Example:
        >>> columns = ["M", "K", "mean", "low", "high", "num_seeds", "num_failed"]
        >>> nan = float("nan")
        >>> data = [(2, 1, 0.512, 0.49, 0.534, 3, 0), (4, 1, nan, nan, nan, 3, 1)]
        >>> print(markdown(table(pd.DataFrame(data, columns=columns), "M", "K")))
        | M | K = 1 |
        |---|---|
        | 2 | 0.512 ± 0.022 |
        | 4 | 1/3 failed |
    """
    rows = [rows] if isinstance(rows, str) else list(rows)
    if digits < 1:
        raise ValueError(f"digits is {digits}; expected at least 1")
    check_columns(frame, [*rows, columns, "mean", "low", "high", "num_seeds", "num_failed"])
    check_unique(frame, [*rows, columns])
    numbers = (frame[name] for name in ("mean", "low", "high", "num_seeds", "num_failed"))
    text = [
        f"{failed}/{seeds} failed" if failed else _with_interval(mean, low, high, digits)
        for mean, low, high, seeds, failed in zip(*numbers, strict=True)
    ]
    cells = frame[[*rows, columns]].assign(text=text)
    return cells.pivot(index=rows, columns=columns, values="text").fillna("")


def markdown(frame: pd.DataFrame) -> str:
    """Returns a frame as a Markdown table: numbers with four significant digits, NaN empty.

    Named index levels are the first columns; the name of the columns is part of their headings.

    Example:
        >>> print(markdown(pd.DataFrame({"lr": [0.1], "mean": [1 / 3], "low": [float("nan")]})))
        | lr | mean | low |
        |---|---|---|
        | 0.1 | 0.3333 |  |
    """
    levels = [str(name) for name in frame.index.names if name is not None]
    prefix = "" if frame.columns.name is None else f"{frame.columns.name} = "
    heads = [*levels, *(f"{prefix}{_cell(name)}" for name in frame.columns)]
    body = (frame.reset_index() if levels else frame).itertuples(index=False)
    lines = [heads, ["---"] * len(heads), *([_cell(value) for value in row] for row in body)]
    rendered = ["| " + " | ".join(line) + " |" for line in lines]
    rendered[1] = rendered[1].replace(" ", "")
    return "\n".join(rendered)


def _with_interval(mean: float, low: float, high: float, digits: int) -> str:
    if not math.isfinite(mean):
        return f"{mean:g}"
    exponent = int(f"{mean:.{digits - 1}e}".partition("e")[2])  # of the rounded mean
    scientific = not -4 < exponent < 6
    scale = 10.0**exponent if scientific else 1.0
    decimals = max(0, digits - 1 - (0 if scientific else exponent))
    text, start, end = (f"{x / scale:.{decimals}f}" for x in (mean, low, high))
    power = f"e{exponent:+03d}" if scientific else ""
    if not math.isfinite(low):
        return text + power
    if not is_symmetric(mean, low, high):
        return f"{text}{power} [{start}{power}, {end}{power}]"
    text += f" ± {(high - low) / 2 / scale:.{decimals}f}"
    return f"({text}){power}" if scientific else text


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value).replace("|", "\\|")
