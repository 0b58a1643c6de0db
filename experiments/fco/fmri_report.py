"""Report of task 3: selected runs, baselines, the paper's statements, Figure 4.11."""

import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.fco import reports
from experiments.fco.claims import judged
from experiments.fco.fmri_claims import CLOSE, PRODUCTS, TWICE, statements
from experiments.fco.scans import ACCURACY, DENSITY, LOSS, METRICS
from experiments.fco.selection import (
    PAIR,
    RUN,
    Selected,
    ends_of,
    load,
    select,
    widened,
)
from experiments.fco.tables import grid_text, selected_table
from experiments.harness.report import Report, earlier_commands
from fedjax_sim.reports.figures import legend_above, line_look, style_axes

SHOWN_ROUNDS = (10, 30, 100, 300)  # of Figure 4.11
BASELINES = ("centralised", "local")
TABLES = ("baselines", "figure-4.11")


def progress(history: pd.DataFrame) -> pd.DataFrame:
    """Accuracy and density of the pairs of Figure 4.11, a row per pair, seed and round shown."""
    product = history["lr"] * history["server_lr"]
    # The product of decimal numbers, 0.1 * 0.03 say, is off by rounding.
    low, high = PRODUCTS[0] * (1 - 1e-9), PRODUCTS[1] * (1 + 1e-9)
    shown = history["round"].isin(SHOWN_ROUNDS) & history["metric"].isin((ACCURACY, DENSITY))
    rows = history.loc[product.between(low, high) & shown, :]
    wide = rows.pivot(index=[*PAIR, "seed", "round"], columns="metric", values="value")
    return wide.reset_index().rename_axis(columns=None)


def reaches(rows: pd.DataFrame, centralised: Mapping[str, float]) -> pd.DataFrame:
    """By method and round the share of pairs about as accurate and sparse as the centralised."""
    accurate = rows[ACCURACY] >= centralised[ACCURACY] - CLOSE
    sparse = rows[DENSITY] <= TWICE * centralised[DENSITY]
    shares = rows.assign(share=(accurate & sparse).astype(float))
    return shares.pivot_table(
        index="method", columns="round", values="share", aggfunc="mean", sort=False
    ).reindex(columns=sorted(set(rows["round"])))


def scatter(rows: pd.DataFrame, label: str) -> Figure:
    """Figure 4.11: accuracy against density, a dot per pair of rates, a panel per round."""
    rounds = sorted(set(rows["round"]))
    figure = Figure(figsize=(1.2 + 3.4 * len(rounds), 3.9), layout="constrained")
    panels = figure.subplots(1, len(rounds), sharex=True, sharey=True, squeeze=False)[0]
    names = rows["method"].unique().tolist()
    for done, axes in zip(rounds, panels, strict=True):
        for place, name in enumerate(names):
            part = rows[(rows["round"] == done) & (rows["method"] == name)]
            color = line_look(place)["color"]
            axes.plot(part[DENSITY], part[ACCURACY], "o", ms=5, alpha=0.6, color=color, label=name)
        axes.set(xlabel="density", title=f"round {done}", xlim=(-0.03, 1.03))
        style_axes(axes)
    panels[0].set_ylabel("validation accuracy")
    legend_above(figure, names, len(names))
    text = f"{label}: all pairs of rates with product in {list(PRODUCTS)}"
    figure.supxlabel(text, fontsize="small")
    return figure


def build(
    selected: Selected, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text and figures; the tables are the baselines and the rows of :func:`progress`."""
    baselines, rows = (tables[kind] for kind in TABLES)
    ends = facts["baselines"]
    shares = reaches(rows, ends["centralised"])
    report = Report(
        f"Sparse logistic regression on fMRI ({facts['data']})",
        f"{facts['setting']}.  {grid_text(selected)}.",
    )
    report.section("Selected runs", selected_table(selected, lambda m: columns(selected, m)))
    report.section("Baselines", baselines)
    pairs = len(rows.loc[:, PAIR[1:]].drop_duplicates())
    stated = statements(ends["centralised"], ends["local"], shares, pairs)
    report.claims(judged("fmri", stated, selected))
    report.section(
        "Share of pairs as accurate and as sparse as the centralised baseline",
        f"Of the {pairs} pairs of Figure 4.11, whose rates have a product in {list(PRODUCTS)}.",
        shares,
    )
    drawn = {
        "fmri": reports.curves_figure(selected, METRICS, facts["data"]),
        "fmri-rates": reports.rates_figure(selected, facts["data"]),
    }
    if len(rows):
        drawn["figure-4.11"] = scatter(rows, facts["data"])
    return report, drawn


def save(
    folder: pathlib.Path,
    history: pd.DataFrame,
    baselines: Mapping[str, Selected],
    facts: Mapping[str, Any],
    widen: bool = False,
) -> None:
    """Writes the report of all runs, with ``widen`` also the folder's."""
    ends = ends_of(history, (ACCURACY, DENSITY), 1)
    selected, rows = select(history, LOSS, 1, ends=ends), progress(history)
    if widen:
        selected = widened(load(folder, "fmri", LOSS, 1), selected)
        kept = reports.read_table(folder, f"fmri-{TABLES[1]}").astype({"round": int})
        joined = pd.concat([kept, rows], ignore_index=True)
        rows = joined.drop_duplicates([*RUN, "round"], keep="last")
        facts = {**facts, **earlier_commands(folder, "fmri")}
    alone = [selected_table(one, lambda m, one=one: columns(one, m)) for one in baselines.values()]
    winners = [selected.winners, *(one.winners for one in baselines.values())]
    shown = pd.concat(winners, ignore_index=True)
    shown = shown.loc[shown["metric"].isin(METRICS)]
    table = pd.concat(alone, ignore_index=True)
    tables: dict[str, pd.DataFrame] = dict(zip(TABLES, (table, rows), strict=True))
    reports.save(build, folder, "fmri", selected._replace(winners=shown), tables, facts)


def redraw(folder: pathlib.Path, grids: bool = False) -> None:
    """Writes the report again from its kept files."""
    selected = load(folder, "fmri", LOSS, 1)
    reports.redraw(build, folder, "fmri", selected, TABLES, grids)


def columns(selected: Selected, method: str) -> dict[str, float]:
    """The last values of a selected run."""
    return {metric: selected.at_end(method, metric) for metric in METRICS}
