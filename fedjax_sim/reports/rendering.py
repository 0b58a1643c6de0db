"""Tables of results as Markdown, LaTeX, HTML and CSV."""

import html
import math
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pandas as pd

from fedjax_sim.reports.frames import check_columns
from fedjax_sim.reports.intervals import check_level, is_symmetric
from fedjax_sim.reports.labels import (
    PARTIAL,
    algorithm_labels,
    bounds_of,
    metric_label,
    setting_label,
)

Format: TypeAlias = Literal["markdown", "latex", "html", "csv"]

_STATISTICS = (
    "metric", "mean", "std", "low", "high", "num_seeds", "num_failed", "diverged", "p_holm",
    "is_best", "rounds_to_target", "reached",
)  # fmt: skip
_SPECIAL = {**{c: f"\\{c}" for c in "&%$#_{}"}, "~": r"\textasciitilde{}", "^": r"\^{}",
            "\\": r"\textbackslash{}", "±": r"$\pm$", PARTIAL: r"\dag{}"}  # fmt: skip

_FEW_SEEDS = 5


def results_table(
    table: pd.DataFrame,
    format: Format = "markdown",
    *,
    digits: int = 3,
    percent: bool = False,
    target: float | None = None,
    level: float | None = None,
    note: str = "",
) -> str:
    r"""Returns the frame of :func:`results` as text: a row per configuration, a column per metric.

    Cells are "mean ± half-width of the interval"; an interval that was cut at 0 or 1 is written as
    [low, high].  The best mean and those that a paired test does not distinguish from it are bold.
    A configuration with a diverged seed shows the round and the number of seeds instead.  A note
    under the table says so.  LaTeX needs the package booktabs; CSV has all numbers in full.

    Args:
        table: as :func:`results` returns it.
        format: "markdown", "latex", "html" or "csv".
        digits: decimals of the means and intervals.
        percent: write accuracies in percent, with ``digits`` - 2 decimals.
        target: value of the rounds to the target, for the column's heading.
        level: level of the intervals, for the note; default: the level that :func:`results` had.
        note: text before the note.

    Raises:
        ValueError: another format, missing columns, digits < 1, a level outside (0, 1).

    Example:
        >>> row = {"algorithm": "fedavg", "metric": "test/accuracy", "mean": 0.81, "std": 0.01,
        ...        "low": 0.80, "high": 0.82, "num_seeds": 3, "num_failed": 0, "diverged": "",
        ...        "p_holm": float("nan"), "is_best": True}
        >>> print(results_table(pd.DataFrame([row])).partition("\n\n")[0])
        | method | test accuracy |
        |---|---|
        | FedAvg | **0.810 ± 0.010** |
    """
    if format not in get_args(Format):
        known = ", ".join(map(repr, get_args(Format)))
        raise ValueError(f"format is {format!r}; expected one of {known}")
    if digits < 1:
        raise ValueError(f"digits is {digits}; expected at least 1")
    if level is not None:
        check_level(level)
    check_columns(table, list(_STATISTICS[:-2]), "table")
    if format == "csv":
        return table.to_csv(index=False, lineterminator="\n").removesuffix("\n")
    config = [name for name in table.columns if name not in _STATISTICS]
    metrics = table["metric"].unique().tolist()
    in_percent = {name: percent and _is_fraction(table, name) for name in metrics}
    heads = ["method" if name == "algorithm" else setting_label(name) for name in config]
    heads += [metric_label(name) + (", %" if in_percent[name] else "") for name in metrics]
    rows: dict[tuple, list[str]] = {}
    labels = _labels(table) if "algorithm" in config else {}
    for row in table.to_dict(orient="records"):
        key = tuple("" if pd.isna(row[name]) else row[name] for name in config)
        texts = [labels.get(value, _number(value)) for value in key]
        cells = rows.setdefault(key, [_escaped(text, format) for text in texts])
        cells.append(_cell(row, digits, in_percent[row["metric"]], format))
    if "rounds_to_target" in table:
        value = "target" if target is None else f"{target:g}"
        heads.append(f"rounds to {value}")
        for row in table.loc[table["metric"] == metrics[0], :].to_dict(orient="records"):
            key = tuple("" if pd.isna(row[name]) else row[name] for name in config)
            rows[key].append(_escaped(_rounds(row), format))
    heads = [_escaped(head, format) for head in heads]
    notes = " ".join(filter(None, (note, explanation(table, level))))
    render = {"markdown": _markdown, "latex": _latex, "html": html_table}[format]
    return render(heads, list(rows.values()), len(config), notes)


def explanation(table: pd.DataFrame, level: float | None = None) -> str:
    """Returns the sentences that explain a table of :func:`results`.

    Args:
        table: as :func:`results` returns it; a frame without its ``attrs`` has the defaults.
        level: level of the intervals; default: the table's.

    Example:
        >>> row = {"num_seeds": 1, "diverged": "", "p_holm": float("nan")}
        >>> explanation(pd.DataFrame([row]))
        'One seed.'
    """
    percent = 100 * (table.attrs.get("level", 0.95) if level is None else level)
    num_seeds = np.asarray(table["num_seeds"], int)
    fewest, most = num_seeds.min(), num_seeds.max()
    if most == 1:
        text = "One seed."
    else:
        seeds = f"{most}" if fewest == most else f"{fewest} to {most}"
        text = f"Mean over {seeds} seeds and its {percent:g} % interval (Student's t)."
    if np.isfinite(np.asarray(table["p_holm"], np.float64)).any():
        text += (
            " Bold: the best mean, and those that a two-sided paired t test over the seeds does not"
            f" distinguish from it (p of at least {table.attrs.get('alpha', 0.05):g} after Holm's"
            " correction)."
        )
        if fewest < _FEW_SEEDS:
            text += f" With fewer than {_FEW_SEEDS} seeds the test distinguishes little."
    if any(table["diverged"]):
        text += " A method with a diverged seed has no mean."
    return text


def html_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], num_config: int, notes: str
) -> str:
    """Returns a table in HTML: heads and cells are HTML, notes are text."""
    lines = [f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"]
    for line in rows:
        cells = [f"<th>{text}</th>" for text in line[:num_config]]
        cells += [f"<td>{text}</td>" for text in line[num_config:]]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join(["<table>", *lines, "</table>", f"<p>{html.escape(notes)}</p>"])


def _labels(table: pd.DataFrame) -> dict[Any, str]:
    return algorithm_labels(str(name) for name in table["algorithm"].unique())


def _cell(row: dict, digits: int, in_percent: bool, format: Format) -> str:
    """Returns mean and interval of one row, bold if it is among the best."""
    if row["num_failed"]:
        failed = f"{row['num_failed']} of {row['num_seeds']} seeds failed"
        return _escaped(row["diverged"] or failed, format)
    scale, decimals = (100, max(0, digits - 2)) if in_percent else (1, digits)
    mean, low, high = (scale * row[name] for name in ("mean", "low", "high"))
    text = interval_text(mean, low, high, decimals)
    if format != "latex":
        opening, closing = ("<b>", "</b>") if format == "html" else ("**", "**")
        return f"{opening}{text}{closing}" if row["is_best"] else text
    formula = re.sub(r"e([+-]\d+)", lambda e: rf" \cdot 10^{{{int(e[1])}}}", text)
    formula = formula.replace("±", r"\pm").replace(" [", r"\ [")
    return rf"$\mathbf{{{formula}}}$" if row["is_best"] else f"${formula}$"


def interval_text(mean: float, low: float, high: float, decimals: int) -> str:
    """Returns a mean and its interval; the mean alone without one."""
    text = _fixed(mean, decimals)
    if not math.isfinite(low):
        return text
    if is_symmetric(mean, low, high):
        return f"{text} ± {_fixed((high - low) / 2, decimals)}"
    return f"{text} [{_fixed(low, decimals)}, {_fixed(high, decimals)}]"


def _fixed(value: float, decimals: int) -> str:
    """Returns a number with fixed decimals, very small and large ones with an exponent."""
    if value and not 10.0**-decimals <= abs(value) < 1e6:
        return f"{value:.1e}"
    return f"{value:.{decimals}f}"


def _rounds(row: dict) -> str:
    if not row["reached"]:
        return "not reached"
    text = f"{row['rounds_to_target']:g}"
    seeds = f" ({row['reached']} of {row['num_seeds']} seeds)"
    return text if row["reached"] == row["num_seeds"] else text + seeds


def _is_fraction(table: pd.DataFrame, metric: str) -> bool:
    values = np.asarray(table.loc[table["metric"] == metric, "mean"], np.float64)
    return bounds_of(metric, values) is not None


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _escaped(text: str, format: Format) -> str:
    if format == "latex":
        return "".join(_SPECIAL.get(character, character) for character in text)
    return html.escape(text) if format == "html" else text.replace("|", "\\|")


def _markdown(
    heads: Sequence[str], rows: Sequence[Sequence[str]], num_config: int, notes: str
) -> str:
    del num_config
    lines = ["| " + " | ".join(line) + " |" for line in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:], "", notes])


def _latex(heads: Sequence[str], rows: Sequence[Sequence[str]], num_config: int, notes: str) -> str:
    columns = "l" * num_config + "c" * (len(heads) - num_config)
    body = [" & ".join(line) + r" \\" for line in rows]
    return "\n".join(
        [
            *(f"% {line}" for line in notes.splitlines()),
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )
