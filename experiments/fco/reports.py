"""Files of a task's report: tables, scores, curves and heat maps, which can be redrawn."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.fco.selection import Selected
from experiments.harness.report import Report, read_facts, write_csv
from fedjax_sim import plotting
from fedjax_sim.plotting import heat_maps

# (selected runs, further tables by name, values of name.json) -> text and figures
Build = Callable[
    [Selected, Mapping[str, pd.DataFrame], Mapping[str, Any]], tuple[Report, dict[str, Figure]]
]


def curves_figure(
    selected: Selected, metrics: Sequence[str], label: str = "", **look: Any
) -> Figure:
    """Metrics of the selected runs against rounds."""
    lines = selected.winners.rename(columns={"method": "algorithm"})
    figure = plotting.curves(lines, metrics, band="minmax", **look)
    if label:
        figure.supxlabel(label, fontsize="small")
    return figure


def grid_figures(selected: Selected, name: str, label: str = "") -> dict[str, Figure]:
    """For every method the scores of all pairs of rates."""
    drawn = {}
    for method, part in selected.score.groupby("method", sort=False):
        values = np.asarray(part["score"], np.float64)
        finite = values[np.isfinite(values)]
        wide = selected.mode == "min" and finite.size and 0 < finite.min() < finite.max() / 10
        figure = heat_maps.heat_map(
            part.drop(columns="method"), "lr", "server_lr", mode=selected.mode, log=bool(wide),
            label=f"{method}: {selected.metric}",
        )  # fmt: skip
        if label:
            figure.supxlabel(label, fontsize="x-small")
        drawn[f"{name}-{str(method).lower()}-grid"] = figure
    return drawn


def save(
    build: Build,
    folder: pathlib.Path,
    name: str,
    selected: Selected,
    tables: Mapping[str, pd.DataFrame],
    facts: Mapping[str, Any],
) -> None:
    """Writes text, histories of the selected runs, scores, further tables, settings and figures."""
    report, drawn = build(selected, tables, facts)
    report.save(folder, name, selected.winners, drawn, **facts)
    for kind, table in {"scores": selected.score, **tables}.items():
        if len(table):
            write_csv(folder / f"{name}-{kind}.csv", table)


def redraw(
    build: Build, folder: pathlib.Path, name: str, selected: Selected, kinds: Sequence[str] = ()
) -> None:
    """Writes text and figures again from the kept files.

    Args:
        kinds: the names of the further tables.
    """
    tables = {kind: read_table(folder, f"{name}-{kind}") for kind in kinds}
    report, drawn = build(selected, tables, read_facts(folder, name))
    report.redraw(folder, name, drawn)


def read_table(folder: pathlib.Path, name: str) -> pd.DataFrame:
    """A table of an earlier run, empty if it has none."""
    path = folder / f"{name}.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame()
