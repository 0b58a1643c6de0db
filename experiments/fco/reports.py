"""Files of a task's report: tables, scores and figures, which can be redrawn."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.fco.selection import Selected, from_tables, kept_tables
from experiments.harness.report import Report, read_facts, rounded, write_csv
from fedjax_sim.reports.figures import add_caption, heat_map

# (selected runs, further tables by name, values of name.json) -> text and figures
Build = Callable[
    [Selected, Mapping[str, pd.DataFrame], Mapping[str, Any]], tuple[Report, dict[str, Figure]]
]


def curves_figure(
    selected: Selected, metrics: Sequence[str], label: str = "", **look: Any
) -> Figure:
    """Metrics of the selected runs against rounds."""
    lines = selected.winners.rename(columns={"method": "algorithm"})
    figure = fs.plotting.curves(lines, metrics, band="minmax", **look)
    if label:
        add_caption(figure, label)
    return figure


def rates_figure(selected: Selected, label: str = "") -> Figure:
    """The best score over all server rates against the client rate, a line per method."""
    score = selected.score.rename(columns={"method": "algorithm"})
    yscale = "log" if _spans_decades(score, selected.mode) else "linear"
    figure = fs.plotting.sensitivity(
        score, "lr", by="algorithm", mode=selected.mode, label=selected.metric, yscale=yscale
    )
    figure.set_size_inches(8, 3.6)
    if label:
        add_caption(figure, label)
    return figure


def heat_map_figures(selected: Selected, name: str) -> dict[str, Figure]:
    """For every method the scores of all pairs of rates, which git does not keep."""
    return {
        f"{name}-{str(method).lower()}-grid": heat_map(
            part.drop(columns="method"), "lr", "server_lr", mode=selected.mode,
            log=_spans_decades(part, selected.mode), label=f"{method}: {selected.metric}",
        )
        for method, part in selected.score.groupby("method", sort=False)
    }  # fmt: skip


def _spans_decades(score: pd.DataFrame, mode: str) -> bool:
    values = np.asarray(score["score"], np.float64)
    finite = values[np.isfinite(values)]
    return mode == "min" and finite.size > 0 and 0 < finite.min() < finite.max() / 10


def save(
    build: Build,
    folder: pathlib.Path,
    name: str,
    selected: Selected,
    tables: Mapping[str, pd.DataFrame],
    facts: Mapping[str, Any],
) -> None:
    """Writes text, histories of the selected runs, scores, further tables, settings and figures."""
    history, score = map(rounded, kept_tables(selected))
    selected = from_tables(history, score, selected.metric, selected.last, selected.mode)
    tables = {kind: rounded(table) for kind, table in tables.items()}
    report, drawn = build(selected, tables, facts)
    report.save(folder, name, history, drawn, **facts)
    for kind, table in {"scores": score, **tables}.items():
        if len(table):
            write_csv(folder / f"{name}-{kind}.csv", table)


def redraw(
    build: Build,
    folder: pathlib.Path,
    name: str,
    selected: Selected,
    kinds: Sequence[str] = (),
    grids: bool = False,
) -> None:
    """Writes text and figures again from the kept files; ``grids``: heat maps of all pairs, too."""
    tables = {kind: read_table(folder, f"{name}-{kind}") for kind in kinds}
    report, drawn = build(selected, tables, read_facts(folder, name))
    if grids:
        drawn |= heat_map_figures(selected, name)
    report.redraw(folder, name, drawn)


def read_table(folder: pathlib.Path, name: str) -> pd.DataFrame:
    """A table of an earlier run, empty if it has none."""
    path = folder / f"{name}.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame()
