"""Scores of the methods, tables and figure."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import Report, counted
from experiments.valuation.methods import EXACT, TOLERANCE
from experiments.valuation.problem import DUPLICATED, FAULTS, HONEST, MISLABELLED, RIDER

COLOURS = {HONEST: "C0", DUPLICATED: "C4", MISLABELLED: "C3", RIDER: "C1"}


def area_under_curve(bad: np.ndarray, good: np.ndarray) -> float:
    """Probability that a bad client has a smaller value than a good one; ties count half.

    Example:
        >>> area_under_curve(np.array([0.0, 2.0]), np.array([1.0, 2.0]))
        0.625
    """
    pairs = good[None, :] - bad[:, None]
    return float((pairs > 0).mean() + (pairs == 0).mean() / 2)


def precision(values: np.ndarray, bad: np.ndarray) -> float:
    """Share of bad clients among the k smallest values, k being the number of bad clients.

    Example:
        >>> precision(np.array([0.1, -0.3, 0.2]), np.array([True, True, False]))
        1.0
    """
    lowest = np.argsort(values, kind="stable")[: bad.sum()]
    return float(bad[lowest].mean())


def scores(values: pd.DataFrame) -> pd.DataFrame:
    """A row per method: cost, detection of every kind, deviation from a reference.

    The reference is the exact Shapley value, or the one by the most permutations; the deviation is
    the distance from it as a share of its length.
    """
    rows = []
    reference = reference_of(values)
    for method in values["method"].unique():
        parts = []
        for seed in values["seed"].unique():
            every = values.loc[values["seed"] == seed, :]
            part = every.loc[every["method"] == method, :]
            value, kind = np.asarray(part["value"], float), np.asarray(part["kind"])
            best = np.asarray(every.loc[every["method"] == reference, "value"], float)
            row = {"runs": part["runs"].iloc[0], "evaluations": part["evaluations"].iloc[0]}
            for fault in FAULTS:
                row[f"AUC {fault}"] = area_under_curve(value[kind == fault], value[kind == HONEST])
            bad = np.isin(kind, (MISLABELLED, RIDER))
            row["precision"] = precision(value, bad)
            row["deviation"] = np.linalg.norm(value - best) / np.linalg.norm(best)
            row["rank correlation"] = pd.Series(value).corr(pd.Series(best), method="spearman")
            parts.append(row)
        rows.append({"method": method, **pd.DataFrame(parts).mean().to_dict()})
    return pd.DataFrame(rows)


def reference_of(values: pd.DataFrame) -> str:
    """Name of the method with which the others are compared."""
    names = values["method"].unique().tolist()
    if EXACT in names:
        return EXACT
    counts = {name: int(name.split()[0]) for name in names if name.endswith("permutations")}
    return max(counts, key=counts.__getitem__)


def draw(values: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """A row per method, with its cost: values of single clients, and detection of every kind."""
    table = table.sort_values("runs", kind="stable")
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 0.9 + 0.42 * len(table)), layout="constrained", sharey=True,
        width_ratios=(1.8, 1),
    )  # fmt: skip
    for row, name in enumerate(table["method"]):
        part = values.loc[values["method"] == name, :]
        scale = part.groupby("seed")["value"].transform(lambda v: np.abs(v).max())
        for i, (kind, colour) in enumerate(COLOURS.items()):
            rows = part["kind"] == kind
            x = part.loc[rows, "value"] / scale[rows]
            y = np.full(len(x), row - 0.27 + 0.18 * i)
            left.plot(x, y, "|", color=colour, ms=6, mew=1.3, label="" if row else kind)
    labels = table["method"] + table["runs"].map("  ({:.0f})".format)
    left.set_yticks(range(len(table)), labels.tolist())
    left.invert_yaxis()
    left.axvline(0, color="grey", lw=0.7)
    left.set(xlabel="value / largest absolute value of the seed", ylabel="method (training runs)")
    for fault, marker in {MISLABELLED: "s", DUPLICATED: "D", RIDER: "o"}.items():
        area = table[f"AUC {fault}"]
        right.plot(area, range(len(table)), marker, color=COLOURS[fault], ms=6, alpha=0.8)
    right.axvline(0.5, color="grey", lw=0.7, ls=":")
    right.set(xlabel="AUC against honest clients", xlim=(-0.03, 1.03))
    right.tick_params(left=False)
    figure.legend(
        *left.get_legend_handles_labels(), ncols=4, frameon=False, loc="outside upper center"
    )
    return figure


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text and figure."""
    options, values = facts["options"], tables["values"]
    kinds = values.loc[values["method"] == values["method"].iloc[0], :]
    kinds = kinds.loc[kinds["seed"] == kinds["seed"].iloc[0], "kind"]
    number = kinds.value_counts()
    reference = reference_of(values)
    share = f"{options['false_labels']:.0%}"
    report = Report(
        f"Values of clients on {facts['data']}, {counted(options['seeds'], 'seed')}",
        f"{number.sum()} clients: {number[HONEST]} honest, {number[DUPLICATED]} in pairs with "
        f"equal data, {number[MISLABELLED]} with {share} of the labels false, {number[RIDER]} "
        f"uploading zeros. FedAvg, {options['rounds']} rounds, cohorts of {facts['cohort']}. The "
        "value is the fall of the loss on held-out examples; large is good.",
        "AUC is the probability that a faulty client has a smaller value than an honest one "
        "(0.5: chance). Precision is the share of mislabelled clients and free riders among as "
        "many clients with the smallest values. The deviation is the distance from the values of "
        f"{reference}, as a share of their length. Runs of influence are the time of the "
        "derivative. Evaluations are those of single models without training. Truncation: at "
        f"{TOLERANCE:.0%} of the value of all clients. Means over seeds.",
        tables[""],
    )
    return report, {facts["figure"]: draw(values, tables[""])}
