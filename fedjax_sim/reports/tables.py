"""Tables as text: frames for terminals, in Markdown, LaTeX, HTML and CSV."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import pandas as pd

from fedjax_sim.checks import check_count
from fedjax_sim.reports.frames import (
    check_columns,
    check_unique,
    configuration_columns,
    grid_values,
    score_values,
    value_texts,
)
from fedjax_sim.reports.intervals import interval_note, is_symmetric
from fedjax_sim.reports.labels import (
    PARTIAL,
    algorithm_labels,
    bounds_of,
    metric_label,
    setting_label,
)
from fedjax_sim.reports.selection import Mode, best
from fedjax_sim.types import shown

Format: TypeAlias = Literal["text", "markdown", "latex", "html", "csv"]

WIDTH = 80  # columns of a terminal

_STATISTICS = (
    "metric", "mean", "std", "low", "high", "num_seeds", "num_failed", "diverged", "p_holm",
    "is_best", "rounds_to_target", "reached",
)  # fmt: skip
_SPECIAL = {**{c: f"\\{c}" for c in "&%$#_{}"}, "~": r"\textasciitilde{}", "^": r"\^{}",
            "\\": r"\textbackslash{}", "±": r"$\pm$", PARTIAL: r"\dag{}",
            # Other letters in the fonts that LaTeX takes by default.
            "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # fmt: skip
# What Markdown would read as the end of a cell, a tag or a letter's name. Emphasis and code may be
# meant: pages have them in cells.
_MARKUP = re.compile(r"\||<(?=[A-Za-z/!?])|&(?=#?\w+;)")

_FEW_SEEDS = 5


@shown
class Mean(NamedTuple):
    r"""A cell of a table: a mean and its interval as text, which LaTeX writes as a formula.

    Example:
        >>> frame = pd.DataFrame({"loss": [Mean("0.31 ± 0.02", bold=True)]})
        >>> print(render(frame, "latex").splitlines()[-3])
        $\mathbf{0.31 \pm 0.02}$ \\
    """

    text: str
    bold: bool = False


def render(
    frame: pd.DataFrame, format: Format = "markdown", *, note: str = "", width: int = WIDTH
) -> str:
    """Returns a frame as a table.

    Named index levels are the first columns; the name of the columns is part of their headings.
    Numbers have four significant digits and NaN is empty; CSV has all numbers in full.  LaTeX needs
    the package booktabs.  Text leaves out the last columns that have no room, and names them; it
    cuts no value, and its bold cells end with a star.

    Args:
        frame: of numbers, texts and :class:`Mean`.
        format: "text", "markdown", "latex", "html" or "csv".
        note: text under the table, in LaTeX a comment above it; CSV has none.
        width: columns of the terminal, for text.

    Raises:
        ValueError: another format.

    Example:
        >>> print(render(pd.DataFrame({"lr": [0.1], "mean": [1 / 3], "low": [float("nan")]})))
        | lr | mean | low |
        |---|---|---|
        | 0.1 | 0.3333 |  |
        >>> frame = pd.DataFrame({"learning rate": [0.1], "accuracy": [0.25]})
        >>> print(render(frame, "text", width=20))
        learning rate
        0.1
        Without room:
        accuracy.
    """
    if format not in get_args(Format):
        known = ", ".join(map(repr, get_args(Format)))
        raise ValueError(f"format is {format!r}; expected one of {known}")
    levels = [str(name) for name in frame.index.names if name is not None]
    if format == "csv":
        return frame.to_csv(index=bool(levels), lineterminator="\n").removesuffix("\n")
    prefix = "" if frame.columns.name is None else f"{frame.columns.name} = "
    heads = [*levels, *(prefix + _text(name) for name in frame.columns)]
    whole = frame.reset_index(allow_duplicates=True) if levels else frame
    rows = [[_cell(x, format) for x in row] for row in whole.itertuples(index=False, name=None)]
    if format == "text":
        return _plain(heads, rows, len(levels), note, width)
    form = {"markdown": _markdown, "latex": _latex, "html": _html}[format]
    return form([_escaped(head, format) for head in heads], rows, len(levels), note)


def results_table(
    table: pd.DataFrame,
    format: Format = "markdown",
    *,
    digits: int = 3,
    percent: bool = False,
    target: float | None = None,
    note: str = "",
    width: int = WIDTH,
) -> str:
    r"""Returns the frame of :func:`results` as text: a row per configuration, a column per metric.

    Cells are "mean ± half-width of the interval"; an interval that was cut at 0 or 1 is written as
    [low, high], and fewer than three seeds have none.  The best mean and those that a paired test
    does not distinguish from it are bold, among configurations with the same setting.
    A configuration with a diverged seed shows the round and the number of seeds instead.  A note
    under the table says so.  LaTeX needs the package booktabs; CSV has all numbers in full.

    Args:
        table: as :func:`results` returns it.
        format: "text", "markdown", "latex", "html" or "csv".
        digits: decimals of the means and intervals.
        percent: write accuracies in percent, with ``digits`` - 2 decimals.
        target: value of the rounds to the target, for the column's heading.
        note: text before the note.
        width: columns of the terminal, for text.

    Raises:
        ValueError: another format, missing columns, digits < 1.

    Example:
        >>> row = {"algorithm": "fedavg", "metric": "test/accuracy", "mean": 0.81, "std": 0.01,
        ...        "low": 0.80, "high": 0.82, "num_seeds": 3, "num_failed": 0, "diverged": "",
        ...        "p_holm": float("nan"), "is_best": True}
        >>> print(results_table(pd.DataFrame([row])).partition("\n\n")[0])
        | method | test accuracy |
        |---|---|
        | FedAvg | **0.810 ± 0.010** |
    """
    check_count(1, digits=digits)
    check_columns(table, list(_STATISTICS[:-2]), "table")
    if format == "csv":
        return render(table, format)
    config = [name for name in table.columns if name not in _STATISTICS]
    metrics = table["metric"].unique().tolist()
    in_percent = {name: percent and _is_fraction(table, name) for name in metrics}
    heads = [metric_label(name) + (", %" if in_percent[name] else "") for name in metrics]
    rows: dict[tuple, dict[str, Mean | str]] = {}
    for row in table.to_dict(orient="records"):
        cells = rows.setdefault(_key(row, config), {})
        cells[row["metric"]] = _mean(row, digits, in_percent[row["metric"]])
    if "rounds_to_target" in table:
        value = "target" if target is None else f"{target:g}"
        heads.append(f"rounds to {value}")
        metrics.append("rounds_to_target")
        for row in table.to_dict(orient="records"):
            rows[_key(row, config)]["rounds_to_target"] = _rounds(row)
    index = None
    if config:
        names = ["method" if name == "algorithm" else setting_label(name) for name in config]
        algorithms = table["algorithm"].unique() if "algorithm" in config else ()
        labels = algorithm_labels(map(str, algorithms))
        texts = [
            [labels.get(x, known[str(x)]) for x in column]
            for column in zip(*rows, strict=True)
            for known in [value_texts(column)]
        ]
        index = pd.MultiIndex.from_arrays(texts, names=names)
    cells = [[own.get(name, "") for name in metrics] for own in rows.values()]
    frame = pd.DataFrame(cells, index, heads)
    notes = " ".join(filter(None, (note, explanation(table, "*" if format == "text" else "Bold"))))
    return render(frame, format, note=notes, width=width)


def explanation(table: pd.DataFrame, mark: str = "Bold") -> str:
    """Returns the sentences that explain a table of :func:`results`."""
    num_seeds = np.asarray(table["num_seeds"], int)
    text = interval_note(num_seeds.tolist(), table.attrs.get("level", 0.95))
    if np.isfinite(np.asarray(table["p_holm"], np.float64)).any():
        text += (
            f" {mark}: the best mean, and those that a two-sided paired t test over the seeds does"
            f" not distinguish from it (p of at least {table.attrs.get('alpha', 0.05):g} after"
            " Holm's correction)."
        )
        if num_seeds.min() < _FEW_SEEDS:
            text += f" With fewer than {_FEW_SEEDS} seeds the test distinguishes little."
    if any(table["diverged"]):
        text += " A method with a diverged seed has no mean."
    return text


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
        >>> print(render(table(pd.DataFrame(data, columns=columns), "M", "K")))
        | M | K = 1 |
        |---|---|
        | 2 | 0.512 ± 0.022 |
        | 4 | 1/3 failed |
    """
    rows = [rows] if isinstance(rows, str) else list(rows)
    check_count(1, digits=digits)
    check_columns(frame, [*rows, columns, "mean", "low", "high", "num_seeds", "num_failed"])
    check_unique(frame, [*rows, columns])
    numbers = (frame[name] for name in ("mean", "low", "high", "num_seeds", "num_failed"))
    text = [
        f"{failed}/{seeds} failed" if failed else _significant(mean, low, high, digits)
        for mean, low, high, seeds, failed in zip(*numbers, strict=True)
    ]
    cells = frame[[*rows, columns]].assign(text=text)
    return cells.pivot(index=rows, columns=columns, values="text").fillna("")


def best_texts(
    scores: pd.DataFrame, per: Sequence[str], metric: str, mode: Mode
) -> tuple[pd.DataFrame, list[int]]:
    """Returns the best configurations as texts, with the column "mean", and numbers of seeds."""
    chosen = best(scores, per=per, mode=mode, bounds=bounds_of(metric, score_values(scores)))
    names = [*per, *(name for name in configuration_columns(scores) if name not in per)]
    rows, short = [], {name: value_texts(grid_values(scores, name)) for name in names}
    for row in chosen.to_dict(orient="records"):
        texts = {
            setting_label(name): short[name][str(row[name])]
            + "*" * (row.get(f"{name}_at_edge") is True)
            for name in names
            if not pd.isna(row[name])
        }
        mean = interval_text(row["mean"], row["low"], row["high"], 3)
        rows.append(texts | {"mean": _lost(row) or mean})
    return pd.DataFrame(rows).fillna(""), chosen["num_seeds"].tolist()


def interval_text(mean: float, low: float, high: float, decimals: int) -> str:
    """Returns a mean and its interval; the mean alone without one."""
    return _with_interval(mean, low, high, lambda value: _fixed(value, decimals))


def _with_interval(mean: float, low: float, high: float, write: Callable[[float], str]) -> str:
    """Returns a mean and its interval, with both ends if it was cut at a bound."""
    if not math.isfinite(low):
        return write(mean)
    if is_symmetric(mean, low, high):
        return f"{write(mean)} ± {write((high - low) / 2)}"
    return f"{write(mean)} [{write(low)}, {write(high)}]"


def _fixed(value: float, decimals: int) -> str:
    """Returns a number with fixed decimals, very small and large ones with an exponent."""
    if value and not 10.0**-decimals <= abs(value) < 1e6:
        return f"{value:.1e}"
    return f"{value:.{decimals}f}"


def _significant(mean: float, low: float, high: float, digits: int) -> str:
    """Returns a mean with significant digits, and its interval with the same decimals."""
    if not math.isfinite(mean):
        return f"{mean:g}"
    exponent = int(f"{mean:.{digits - 1}e}".partition("e")[2])  # of the rounded mean
    if -4 < exponent < 6:
        decimals = max(0, digits - 1 - exponent)
        return _with_interval(mean, low, high, lambda x: f"{x:.{decimals}f}")
    scale, power = 10.0**exponent, f"e{exponent:+03d}"
    return _with_interval(mean, low, high, lambda x: f"{x / scale:.{digits - 1}f}{power}")


def _key(row: dict, config: Sequence[str]) -> tuple:
    return tuple("" if pd.isna(row[name]) else row[name] for name in config)


def _mean(row: dict, digits: int, in_percent: bool) -> Mean | str:
    """Returns mean and interval of one row, bold if it is among the best."""
    if lost := _lost(row):
        return lost
    scale, decimals = (100, max(0, digits - 2)) if in_percent else (1, digits)
    mean, low, high = (scale * row[name] for name in ("mean", "low", "high"))
    return Mean(interval_text(mean, low, high, decimals), bool(row["is_best"]))


def _lost(row: dict) -> str:
    """Returns the reason for which there is no mean; empty if there is one."""
    failed = f"{row['num_failed']} of {row['num_seeds']} seeds failed"
    return (row["diverged"] or failed) if row["num_failed"] else ""


def _rounds(row: dict) -> str:
    if not row["reached"]:
        return "not reached"
    text = f"{row['rounds_to_target']:.12g}"  # whole rounds, or halves between two
    seeds = f" ({row['reached']} of {row['num_seeds']} seeds)"
    return text if row["reached"] == row["num_seeds"] else text + seeds


def _is_fraction(table: pd.DataFrame, metric: str) -> bool:
    values = np.asarray(table.loc[table["metric"] == metric, "mean"], np.float64)
    return bounds_of(metric, values) is not None


def _cell(value: Any, format: Format) -> str:
    if isinstance(value, Mean):
        return _formula(value) if format == "latex" else _bold(value, format)
    return _escaped(_text(value), format)


def _text(value: Any) -> str:
    """Returns a number with four significant digits, NaN as an empty text."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def _bold(mean: Mean, format: Format) -> str:
    marks = {"html": ("<b>", "</b>"), "text": ("", " *")}
    opening, closing = marks.get(format, ("**", "**"))
    return f"{opening}{mean.text}{closing}" if mean.bold else mean.text


def _formula(mean: Mean) -> str:
    formula = re.sub(r"e([+-]\d+)", lambda e: rf" \cdot 10^{{{int(e[1])}}}", mean.text)
    formula = formula.replace("±", r"\pm").replace(" [", r"\ [")
    return rf"$\mathbf{{{formula}}}$" if mean.bold else f"${formula}$"


def _escaped(text: str, format: Format) -> str:
    text = " ".join(text.splitlines())  # a cell is one line
    if format == "latex":
        return "".join(_SPECIAL.get(character, character) for character in text)
    if format == "html":
        return html.escape(text)
    return text if format == "text" else _MARKUP.sub(r"\\\g<0>", text)


def _markdown(
    heads: Sequence[str], rows: Sequence[Sequence[str]], num_levels: int, note: str
) -> str:
    del num_levels
    lines = ["| " + " | ".join(line) + " |" for line in (heads, *rows)]
    under = ["", note] if note else []
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:], *under])


def _plain(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    num_levels: int,
    note: str,
    width: int,
) -> str:
    """Returns a table of as many columns as the width has room for, the first one at least."""
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    ends = np.cumsum([size + 2 for size in widths]) - 2
    shown = max(int((ends <= width).sum()), min(num_levels + 1, len(columns)))
    lines = [
        "  ".join(f"{x:<{size}}" for x, size in zip(line[:shown], widths, strict=False)).rstrip()
        for line in ((heads, *rows) if columns else ())
    ]
    left = f"Without room: {', '.join(heads[shown:])}." if heads[shown:] else ""
    under = textwrap.wrap(" ".join(filter(None, (left, note))), width)
    return "\n".join([*lines, *under])


def _latex(heads: Sequence[str], rows: Sequence[Sequence[str]], num_levels: int, note: str) -> str:
    columns = "l" * num_levels + "c" * (len(heads) - num_levels)
    head, *body = (_latex_row(line) for line in (heads, *rows))
    return "\n".join(
        [
            *(f"% {line}" for line in note.splitlines()),
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            head,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _latex_row(cells: Sequence[str]) -> str:
    row = " & ".join(cells) + r" \\"
    # After the end of a row and after a rule, "[" and "*" would begin an argument.
    return f"{{}}{row}" if row.startswith(("[", "*")) else row


def _html(heads: Sequence[str], rows: Sequence[Sequence[str]], num_levels: int, note: str) -> str:
    lines = ["".join(f"<th>{head}</th>" for head in heads)]
    for row in rows:
        tags = ["th"] * num_levels + ["td"] * (len(row) - num_levels)
        lines.append("".join(f"<{tag}>{x}</{tag}>" for tag, x in zip(tags, row, strict=True)))
    under = [f"<p>{html.escape(note)}</p>"] if note else []
    table = ["<table>", *(f"<tr>{line}</tr>" for line in lines), "</table>"] if heads else []
    return "\n".join([*table, *under])
