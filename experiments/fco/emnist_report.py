"""Reports of task 4: selected runs, the paper's statements at equal and at best rates."""

import pathlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.fco import reports
from experiments.fco.claims import judged
from experiments.fco.emnist_claims import METRICS, STATEMENTS
from experiments.fco.handwriting import SIZE, TASKS
from experiments.fco.selection import Selected, ends_of, load, select, widened
from experiments.fco.tables import equal_rates_table, grid_text, selected_table
from experiments.harness.report import Report, earlier_commands, read_facts

LAST = 10  # evaluations over which runs are compared
# Not the paper's:
BOUNDARY = 0.999  # of a radius


def at_boundary(history: pd.DataFrame) -> float:
    """The share of evaluated models with a kernel at its ball's boundary, or close to it."""
    sizes = np.asarray(history.loc[history["metric"] == SIZE, "value"], np.float64)
    return float(np.mean(sizes > BOUNDARY))


def violations(history: pd.DataFrame) -> dict[str, float]:
    """By method the largest excess over a radius, as a share of it, at all evaluated models."""
    rows = history.loc[history["metric"] == SIZE, ["method", "value"]]
    names, sizes = np.asarray(rows["method"]), np.asarray(rows["value"], np.float64)
    # Diverged models have no size.
    return {
        str(name): max(float(np.nanmax(sizes[names == name])) - 1, 0.0)
        for name in history["method"].unique()
    }


def build(
    name: str, selected: Selected, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text and figures of a task, which has no further tables."""
    del tables
    options, violated, touching = facts["options"], facts["violations"], facts["at_boundary"]
    label = f"{name}, scale {options['scale']}, {options['dataset']}"

    def columns(method: str) -> dict[str, float]:
        means = {metric: selected.at_end(method, metric) for metric in METRICS}
        norm = {"norm / radius": selected.at_end(method, SIZE)}
        return means | norm | {"largest violation": violated[method]}

    report = Report(
        f"Task {name}: {TASKS[name].described()}",
        f"{facts['setting']}.  {grid_text(selected)}.  Largest violation of the constraint at any "
        f"evaluated model of any run, as a share of the radius: {max(violated.values()):.2g}.  Of "
        f"all evaluated models {100 * touching:.3g} % have a kernel at the boundary; where none "
        "has, the methods hardly differ from FedAvg.",
    )
    report.section(
        "Selected runs",
        f"By the mean training loss of the last {selected.last} evaluations, over which all "
        "metrics here are means.",
        selected_table(selected, columns),
    )
    report.section(
        "At equal rates",
        "The mean training loss of the last evaluations, diverged runs left blank.",
        equal_rates_table(selected),
        *(part for metric in METRICS[1:] for part in _equal_accuracies(selected, metric)),
    )
    report.claims(judged(name, STATEMENTS, selected))
    drawn = {name: reports.curves_figure(selected, METRICS, label)}
    if len(selected.score[["lr", "server_lr"]].drop_duplicates()) > 1:
        drawn[f"{name}-rates"] = reports.rates_figure(selected, label)
    return report, drawn


def _equal_accuracies(selected: Selected, metric: str) -> tuple[str | pd.DataFrame, ...]:
    table = equal_rates_table(selected, metric) if metric in selected.ends else pd.DataFrame()
    return (f"The {metric.replace('/', ' ')}:", table) if len(table) else ()


def save(
    folder: pathlib.Path,
    name: str,
    history: pd.DataFrame,
    facts: Mapping[str, Any],
    widen: bool = False,
) -> None:
    """Selects among all runs, with ``widen`` also the folder's, and writes the report of a task."""
    shown = history.loc[history["metric"].isin((*METRICS, SIZE))]
    ends = ends_of(shown, METRICS[1:], min(LAST, shown["round"].nunique()))
    selected = select(shown, METRICS[0], LAST, ends=ends)
    facts = {
        **facts,
        "violations": violations(history),
        "at_boundary": at_boundary(history),
        "runs": len(selected.score),
    }
    if widen:
        selected = widened(load(folder, name, METRICS[0], LAST), selected)
        facts |= joined(read_facts(folder, name), facts) | earlier_commands(folder, name)
    reports.save(partial(build, name), folder, name, selected, {}, facts)


def joined(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The facts about two parts of a grid as those of one."""
    runs = kept["runs"] + new["runs"]
    touching = sum(part["at_boundary"] * part["runs"] for part in (kept, new)) / runs
    violated = {
        method: max(part["violations"].get(method, 0.0) for part in (kept, new))
        for method in kept["violations"] | new["violations"]
    }
    return {"violations": violated, "at_boundary": touching, "runs": runs}


def redraw(folder: pathlib.Path, name: str, grids: bool = False) -> None:
    """Writes the report of a task again from its kept files."""
    selected = load(folder, name, METRICS[0], LAST)
    reports.redraw(partial(build, name), folder, name, selected, (), grids)
