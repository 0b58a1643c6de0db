"""Report of measured gaps beside the bounds of Theorems 4.3, 4.4 and 4.7."""

import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from experiments.fco.quadratics import CONDITION, DIM, NUM_CLIENTS
from experiments.fco.theorems import NOT_A_THEOREM, RADIUS, SMALL, WEIGHT
from experiments.harness.report import Report, read_facts, rounded
from experiments.harness.tables import bounds_hold

NAME = "theory"


def figure(table: pd.DataFrame) -> Figure:
    """Gaps and bounds against rounds, a panel per theorem."""
    names = list(dict.fromkeys(table["theorem"]))
    drawn, axes = plt.subplots(1, len(names), figsize=(15, 3.6), layout="constrained", sharey=True)
    for axis, name in zip(axes, names, strict=True):
        for i, K in enumerate(dict.fromkeys(table["K"])):
            part = table.loc[(table["theorem"] == name) & (table["K"] == K)]
            axis.loglog(part["R"], part["gap"], f"C{i}o-", label=f"K = {K}")
            axis.loglog(part["R"], part["bound"], f"C{i}--")
        axis.set(title=f"Theorem {name}", xlabel="rounds")
    axes[0].legend(frameon=False)
    axes[0].set(ylabel="Phi - Phi*; dashed: bound")
    return drawn


def build(table: pd.DataFrame, options: Mapping[str, Any]) -> tuple[Report, dict[str, Figure]]:
    """Text and figure."""
    report = Report(
        "FedDualAvg beside its theorems",
        f"d = {DIM}, M = {NUM_CLIENTS}, L = 1, condition number {CONDITION:g}, l1 weight {WEIGHT} "
        f"(4.3, 4.7) or l1 radius {RADIUS} (4.4, FedMiD); {options['repetitions']} "
        f"repetitions; rates as prescribed, for 4.3 a client rate of {SMALL:g} of the product.",
        table,
    )
    proved = table["theorem"] != NOT_A_THEOREM
    parts = (("Theorems", table[proved]), ("FedMiD", table[~proved]))
    counts = [f"{name}: {part['holds'].sum()} of {len(part)} bounds hold." for name, part in parts]
    report.add(" ".join(counts))
    groups = table[proved].groupby("theorem", sort=False)
    report.claims(
        bounds_hold(f"Theorem {name} for FedDualAvg", part["holds"]) for name, part in groups
    )
    return report, {NAME: figure(table)}


def save(folder: pathlib.Path, table: pd.DataFrame, options: Mapping[str, Any]) -> None:
    """Writes the report."""
    kept = rounded(table)
    report, drawn = build(kept, options)
    report.save(folder, NAME, kept, drawn, options=options)


def redraw(folder: pathlib.Path) -> None:
    """Writes the report again from its kept files."""
    report, drawn = build(pd.read_csv(folder / f"{NAME}.csv"), read_facts(folder, NAME)["options"])
    report.redraw(folder, NAME, drawn)
