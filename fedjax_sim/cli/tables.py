"""Tables of ``fedjax-sim`` in a terminal."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

from fedjax_sim.cli.diagnose import Diagnosis, kind_of
from fedjax_sim.reports import PARTIAL, PARTIAL_NOTE, interval_note, interval_text
from fedjax_sim.runs import Forecast
from fedjax_sim.studies.executions import Measured


class Fitted(Table):
    """Table that cuts no value: the last columns without room are left out, and named."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = list(map(_width, self.columns))
        ends = list(itertools.accumulate(size + 3 for size in widths))  # with padding and a line
        shown = max(sum(end < options.max_width for end in ends), 1)
        fitted = copy.copy(self)
        fitted.columns = self.columns[:shown]
        whole = sum(
            max(size, len(str(c.header))) + 3
            for size, c in zip(widths, fitted.columns, strict=False)
        )
        if whole >= options.max_width:  # headings are wrapped
            fitted.columns = [
                dataclasses.replace(column, width=size, no_wrap=False)
                for column, size in zip(fitted.columns, widths, strict=False)
            ]
        if hidden := [str(column.header) for column in self.columns[shown:]]:
            notes = [str(self.caption or ""), f"Without room: {', '.join(hidden)}."]
            fitted.caption = "\n".join(filter(None, notes))
            fitted.caption_justify = "left"
        yield from Table.__rich_console__(fitted, console, options)


def _width(column: Column) -> int:
    """Returns the width of a column whose cells are not wrapped; its heading may be."""
    lines = [line for cell in column.cells for line in str(cell).split("\n")]
    return max(map(len, [*lines, *str(column.header).split()]), default=0)


def summary_table(summary: pd.DataFrame, target: float) -> Table:
    """Returns the comparison's results, a row per algorithm, with 95 % intervals over seeds."""
    means = [name.removesuffix("_mean") for name in summary.columns if name.endswith("_mean")]
    score = next((name for name in means if name != "personal"), None)
    clock, personal = "time_to_target" in summary.columns, "personal_mean" in summary.columns
    rows = summary.to_dict(orient="index")
    partial = {name for name, row in rows.items() if row.get("partial_model")}
    seeds = summary["seeds"].tolist()
    notes = [
        *([interval_note(seeds)] if max(seeds) > 1 else []),
        *([PARTIAL_NOTE] if partial else []),
    ]
    table = Fitted(caption="\n".join(notes) or None, caption_justify="left")
    table.add_column("algorithm", no_wrap=True)
    has_target = score in ("accuracy", "r2")  # others are those of a study's own setup
    score_label = f"test {score}" if has_target else score or "result"
    target_label = f"{100 * target:g}%" if score == "accuracy" else f"{target:g}"
    for name in (
        *(["personal models"] if personal else []),
        score_label,
        *([f"{'time' if clock else 'rounds'} to {target_label}"] if has_target else []),
        *(["updates"] if clock else []),
        "seconds",
        "compile seconds",
        "local steps/s",
    ):
        table.add_column(name, justify="right", no_wrap=name in (score_label, "personal models"))
    for name, row in rows.items():
        reached_at = row["time_to_target" if clock else "rounds_to_target"]
        to_target = "never" if math.isnan(reached_at) else f"{reached_at:.6g}"
        if 0 < row["reached"] < row["seeds"]:
            to_target += f" ({row['reached']} of {row['seeds']} seeds)"
        accuracy = row["divergence"] or (_interval(row, score) if score else "")
        own = [_interval(row, "personal")] if personal else []
        if not row["finished"]:
            accuracy += f"\nafter round {row['rounds']}"
        table.add_row(
            f"{name} {PARTIAL}" if name in partial else str(name),
            *own,
            accuracy.strip(),
            *([to_target] if has_target else []),
            *([f"{row['rounds']:,}"] if clock else []),
            f"{row['run_seconds']:.1f}",
            f"{row['compile_seconds']:.1f}",
            f"{row['local_steps_per_second']:,.0f}",
        )
    return table


def _interval(row: Mapping[str, Any], name: str) -> str:
    mean, low, high = (row[f"{name}_{part}"] for part in ("mean", "low", "high"))
    return "" if math.isnan(mean) else interval_text(mean, low, high, 3)


def best_table(best: pd.DataFrame, metric: str) -> Table:
    """Returns the best configurations of a sweep, a row per algorithm and cell."""
    known = ("mean", "low", "high", "num_seeds", "num_failed", "diverged")
    names = [n for n in best if n not in known and not str(n).endswith("_at_edge")]
    seeds = best["num_seeds"].tolist()
    table = Fitted(
        *map(str, names), metric, "seeds",
        caption=interval_note(seeds) if seeds else None, caption_justify="left",
    )  # fmt: skip
    for row in best.to_dict(orient="records"):
        cells = []
        for name in names:
            text = _value_text(row[name])
            cells.append(text + (" (edge)" if row.get(f"{name}_at_edge") is True else ""))
        table.add_row(*cells, _score_text(row), str(row["num_seeds"]))
    return table


def trials_table(trials: pd.DataFrame, metric: str, mode: str, most: int = 5) -> Table:
    """Returns the best trials of a tuning that did all rounds, each configuration once."""
    about = ("trial", "mean", "low", "high", "num_seeds", "num_failed", "diverged", "rounds")
    names = [name for name in trials if name not in (*about, "complete")]
    done = trials.loc[trials["complete"] & ~trials.duplicated(names), :]
    best = done.sort_values("mean", ascending=mode == "min", kind="stable").head(most)
    names = [name for name in names if best[name].notna().any()]
    biased = "The best of many scores is biased: report a run with other seeds, or another metric."
    notes = [interval_note(best["num_seeds"].tolist()), biased] if len(best) else [biased]
    table = Fitted("trial", metric, *names, caption="\n".join(notes), caption_justify="left")
    for row in best.to_dict(orient="records"):
        values = (_value_text(row[name]) for name in names)
        table.add_row(str(row["trial"]), _score_text(row), *values)
    return table


def _score_text(row: Mapping[Any, Any]) -> str:
    """Returns a mean score and its interval, or why there is none."""
    if math.isnan(row["mean"]):
        return row.get("diverged") or f"{row['num_failed']} seeds failed"
    return interval_text(row["mean"], row["low"], row["high"], 4)


def _value_text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return "" if text == "nan" else text


def measured_table(algorithm: str, measured: Sequence[Measured]) -> Table:
    """Returns the measurements of executions, the fastest first."""
    table = Fitted(
        "clients together", "devices", "convolutions", "ms per round", "ratio", "compile s", "MB",
        title=algorithm,
    )  # fmt: skip
    for choice, seconds, compile_seconds, num_bytes in measured:
        table.add_row(
            str(choice.chunk),
            str(choice.num_devices),
            choice.lowering,
            f"{1e3 * seconds:.2f}",
            f"{seconds / measured[0].seconds:.2f}",
            f"{compile_seconds:.1f}",
            f"{num_bytes / 1e6:.0f}",
        )
    return table


def forecast_table(forecasts: Mapping[str, Forecast]) -> Table:
    """Returns the needs of a comparison's algorithms, a column each."""
    table = Fitted("", *forecasts, title="forecast")
    columns = [forecast.rows for forecast in forecasts.values()]
    most_first = sorted(columns, key=len, reverse=True)
    for name in dict.fromkeys(name for column in most_first for name in column):
        table.add_row(name, *(column.get(name, "") for column in columns))
    return table


def diagnosis_tables(diagnosis: Diagnosis) -> list[Table]:
    """Returns the constants, and the bounds that apply."""
    constants = Table("constant", "value", "kind", title="diagnosis of fedavg")
    for name, value in diagnosis.constants.known.items():
        constants.add_row(name, f"{value:.4g}", kind_of(name))
    if not math.isnan(diagnosis.prescribed_lr):
        constants.add_row("prescribed lr", f"{diagnosis.prescribed_lr:.4g}", "Proposition 2.1")
    bounds = Table("bound", "last value", "drawn")
    drawn = {row.bound: row for row in diagnosis.overlay.rows if row.valid}
    for row in drawn.values():
        bounds.add_row(row.bound, f"{row.value:.4g}", "yes")
    for name, reason in diagnosis.overlay.skipped.items():
        bounds.add_row(name, "", f"no: {reason}")
    return [constants, bounds]
