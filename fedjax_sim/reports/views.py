"""Tables that Jupyter shows for the results of ``simulate``, ``compare`` and ``sweep``."""

from functools import singledispatch
from html import escape
from typing import Any

import pandas as pd

from fedjax_sim.reports.frames import configuration_columns, row_ids, score_values
from fedjax_sim.reports.labels import (
    better,
    bounds_of,
    measures_quality,
    metric_label,
    setting_label,
)
from fedjax_sim.reports.results import results
from fedjax_sim.reports.selection import best, complete, scores
from fedjax_sim.reports.tables import interval_text, render, results_table
from fedjax_sim.runs import Comparison, Simulation, Sweep

MOST_METRICS = 4

_VALUES = ("seed", "diverged_at", "round", "metric", "value")  # columns besides the configuration


@singledispatch
def result_html(result: Any) -> str:
    """Returns the table that Jupyter shows for the result of a simulation, comparison or sweep."""
    raise TypeError(
        f"result is a {type(result).__name__}; expected Simulation, Comparison or Sweep"
    )


@result_html.register
def _(result: Simulation) -> str:
    state = "interrupted" if result.interrupted else "stopped" if result.stopped else "finished"
    return runs_html(result.to_frame(), f"Simulation, {state} after round {result.rounds_done}.")


@result_html.register
def _(result: Comparison) -> str:
    rounds = {part.rounds_done for parts in result.simulations.values() for part in parts}
    last = " to ".join(map(str, sorted({min(rounds), max(rounds)}))) if rounds else "0"
    note = f"Comparison after round {last}." + (" Interrupted." if result.interrupted else "")
    return runs_html(result.to_frame(), note)


@result_html.register
def _(result: Sweep) -> str:
    diverged = sum(run.diverged_at > 0 for run in result.runs)
    note = f"Sweep of {len(result.runs)} runs, of which {diverged} diverged."
    if result.missing or result.interrupted:
        note += f" {result.missing} runs of the grid are not finished."
    return sweep_html(result.to_frame(), note)


def runs_html(history: pd.DataFrame, note: str) -> str:
    """Returns the final metrics of a simulation or a comparison: a row per algorithm."""
    metrics = _common_metrics(history)
    if not metrics:
        return f"<p>{escape(note)} No evaluations.</p>"
    return results_table(results(history, metrics), "html", note=note)


def sweep_html(history: pd.DataFrame, note: str) -> str:
    """Returns the best configuration of a sweep by each metric at the last evaluation."""
    # Configurations with the most seeds count; those of an unfinished sweep may have fewer.
    metrics = _common_metrics(history)
    if not metrics:
        return f"<p>{escape(note)} No finished runs.</p>"
    frame = pd.DataFrame([_best_by(history, metric) for metric in metrics]).fillna("")
    settings = [name for name in frame if name != "mean"]
    note += " Mean over seeds and its 95 % interval. *: at the edge of the grid."
    return render(frame[[*settings, "mean"]].set_index("best by"), "html", note=note)


def _best_by(history: pd.DataFrame, metric: str) -> dict[str, str]:
    """Returns the texts of a row: the metric, the best configuration, its mean and interval."""
    mode = better(metric)
    table = complete(scores(history, metric, mode=mode))
    bounds = bounds_of(metric, score_values(table))
    row: dict[str, Any] = best(table, mode=mode, bounds=bounds).to_dict(orient="records")[0]
    texts = {"best by": metric_label(metric)}
    for name in configuration_columns(table):
        if not pd.isna(value := row[name]):
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            texts[setting_label(name)] = text + ("*" if row.get(f"{name}_at_edge") else "")
    if row["num_failed"]:
        return texts | {"mean": row["diverged"] or f"{row['num_failed']} seeds failed"}
    return texts | {"mean": interval_text(row["mean"], row["low"], row["high"], 3)}


def _common_metrics(history: pd.DataFrame) -> list[str]:
    """Returns the first metrics that all configurations have."""
    config = row_ids(history, [name for name in history.columns if name not in _VALUES])
    number = history.assign(config=config).groupby("metric", sort=False)["config"].nunique()
    counts = {str(name): int(number.loc[name]) for name in number.index}
    common = [name for name, count in counts.items() if count == len(set(config))]
    return [name for name in common if measures_quality(name)][:MOST_METRICS]
