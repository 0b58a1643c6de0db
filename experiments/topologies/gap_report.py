"""Table and figure of the accuracy against the spectral gap."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.harness import Report, counted

METRICS = ["mean/accuracy", "worst/accuracy", "consensus"]
MARKERS = {"ring": "o", "Erdos-Renyi": "D", "torus": "s", "complete": "^"}
KEYS = ["method", "alpha", "graph", "share", "gap"]


def scores(history: pd.DataFrame, gaps: Mapping[tuple[str, float], float]) -> pd.DataFrame:
    """Returns the last round's metrics, a row per run, with the gap of its mixing matrix."""
    last = history.loc[history["round"] == history["round"].max(), :]
    keys = ["method", "alpha", "graph", "share", "seed"]
    table = last.pivot_table(index=keys, columns="metric", values="value", dropna=False)
    table = table.dropna(how="all").reset_index().rename_axis(columns=None)
    pairs = zip(table["graph"], table["share"], strict=True)
    table.insert(4, "gap", [gaps[pair] for pair in pairs])
    return table.loc[:, [*KEYS, "seed", *METRICS]]


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Means and intervals over the seeds, a row per method, heterogeneity and mixing matrix."""
    rows = []
    for _, part in table.groupby(KEYS, sort=False):
        end = fs.analysis.mean_interval(part["mean/accuracy"])
        row = {key: part[key].iloc[0] for key in KEYS}
        row |= {"accuracy": end.mean, "low": end.low, "high": end.high}
        # NaN with a seed that diverged, as the accuracy.
        row |= {
            "worst client": part["worst/accuracy"].mean(skipna=False),
            "distance": part["consensus"].mean(skipna=False),
        }
        rows.append(row)
    return pd.DataFrame(rows).sort_values(["method", "alpha", "gap"], kind="stable")


def draw(table: pd.DataFrame) -> Figure:
    """Draws the mean client's error against the gap: a panel per method, a line per graph."""
    rows = summary(table)
    methods = rows["method"].unique()
    figure, panels = plt.subplots(
        1, len(methods), figsize=(5 * len(methods), 4), sharey=True, layout="constrained"
    )
    for axes, method in zip(panels, methods, strict=True):
        own = rows.loc[rows["method"] == method, :]
        for number, (alpha, part) in enumerate(own.groupby("alpha")):
            colour = f"C{number}"
            for graph, points in part.groupby("graph"):
                error = 100 * (1 - points["accuracy"])
                ends = 100 * (points["high"] - points["accuracy"])
                axes.errorbar(
                    points["gap"], error, yerr=ends, fmt=f"{MARKERS[str(graph)]}-",
                    color=colour, markersize=5, capsize=2, linewidth=0.8,
                )  # fmt: skip
            axes.plot([], [], color=colour, label=f"Dirichlet {alpha:g}")
        axes.set(title=method, xscale="log", yscale="log", xlabel="spectral gap")
        axes.set_yticks(ticks := [5, 10, 20, 40, 80], labels=[f"{tick}" for tick in ticks])
        axes.minorticks_off()
    for graph, marker in MARKERS.items():
        panels[0].plot([], [], marker, color="black", markersize=5, label=graph)
    panels[0].set_ylabel("mean client's test error in %")
    panels[0].legend(frameon=False, fontsize=8, ncols=2)
    return figure


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Returns the report's text and figure."""
    options = facts["options"]
    report = Report(
        f"Spectral gap and heterogeneity, {counted(options['seeds'], 'seed')}",
        f"16 clients, softmax regression on digits, {options['rounds']} rounds at the rate "
        f"{options['lr']:g}. In every round a client takes one gradient, the mean over its "
        "minibatches. `share` is what a client keeps of its own model. `accuracy` is the mean over "
        "the clients of their own models' accuracies on the common test set, with an interval of "
        "95 % over the seeds; `distance` is the mean squared distance of the models from their "
        "mean.",
        "The gap is that of the mixing matrix with the share, so equal gaps on different graphs "
        "are compared. Seeds differ in partition, initial models and minibatches, and all methods, "
        "graphs and shares have the same ones. A constant rate for all: none was tuned.",
        summary(tables[""]),
    )
    return report, {"gap": draw(tables[""])}
