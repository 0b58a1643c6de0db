"""Tables and figures of :mod:`experiments.fedac.a9a`: best scores beside the authors'."""

import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from experiments.harness.report import Report, read_facts, rounded, write_csv

CELL = ["algorithm", "M", "K"]
# Not the paper's:
CLOSE = 0.15  # decades
THRESHOLDS = (1e-2, 1e-3, 1e-4, 1e-5)
# The codes of the authors' summary.csv.
CODES = {
    -1: "vanilla_fedac", 0: "fedavg", 1: "fedac_i", 2: "fedac_ii_code", 3: "mb_sgd", 4: "mb_ac_sgd",
}  # fmt: skip
LABELS = {
    "fedavg": "FedAvg", "fedac_i": "FedAc-I", "fedac_ii": "FedAc-II",
    "fedac_ii_code": "FedAc-II (code)", "vanilla_fedac": "vanilla FedAc", "mb_sgd": "MB-SGD",
    "mb_ac_sgd": "MB-AC-SGD",
}  # fmt: skip


def best(table: pd.DataFrame) -> pd.DataFrame:
    """Per cell the least score, its rate, and whether it is the grid's first or last.

    A cell of which every run diverged has an infinite score.
    """
    table = table.assign(score=table["score"].fillna(np.inf))
    found = table.loc[table.groupby(CELL)["score"].idxmin()]
    ends = found["lr"].isin((table["lr"].min(), table["lr"].max()))
    return found.assign(**{"at edge": ends})[[*CELL, "score", "lr", "at edge"]]


def published(
    folder: str | None, dataset: str, l2: float, lrs: tuple[float, ...], optimum: float
) -> pd.DataFrame | None:
    """The authors' best scores over the rates, a row per cell; None without their file.

    Raises:
        ValueError: the folder does not have the file.
    """
    if folder is None:
        return None
    path = pathlib.Path(folder) / f"summary_{dataset}_{l2:.0e}.csv"
    if not path.exists():
        raise ValueError(f"FEDAC_PUBLISHED is a folder without {path.name}; expected it there")
    runs = pd.read_csv(path)
    in_grid = np.isclose(np.asarray(runs["eta"])[:, None], lrs).any(1)
    runs = runs.loc[in_grid & np.isclose(runs["lambd"], l2) & runs["T"].eq(4096)]
    runs = runs.assign(
        algorithm=[CODES[code] for code in runs["alg"]],
        lr=runs["eta"],
        score=runs["best_loss"] - optimum,
    )
    return best(runs).rename(columns={"score": "authors", "lr": "lr of authors"})


def compared(table: pd.DataFrame, authors: pd.DataFrame | None) -> pd.DataFrame:
    """Best scores, ours and the authors', and the difference of their decimal logarithms."""
    ours = best(table)
    if authors is None:
        return ours
    both = ours.merge(authors.drop(columns="at edge"), on=CELL, how="left")
    difference = np.log10(both["score"]) - np.log10(both["authors"])
    return both.assign(**{"log10 ratio": difference})


def agreement(cells: pd.DataFrame) -> pd.DataFrame:
    """Per algorithm and for all: cells, share within 0.15 decades, median and extreme ratios."""
    known = cells.dropna(subset="log10 ratio")

    def row(name: str, part: pd.DataFrame) -> dict[str, Any]:
        gaps = part["log10 ratio"]
        return {
            "algorithm": name,
            "cells": len(part),
            f"within {CLOSE} decades": f"{(gaps.abs() <= CLOSE).mean():.1%}",
            "median log10 ratio": gaps.median(),
            "median |log10 ratio|": gaps.abs().median(),
            "least": gaps.min(),
            "largest": gaps.max(),
            "same rate": f"{np.isclose(part['lr'], part['lr of authors']).mean():.1%}",
        }

    parts = [row(str(name), part) for name, part in known.groupby("algorithm")]
    return pd.DataFrame([*parts, row("all", known)])


def rounds_needed(cells: pd.DataFrame, num_steps: int = 4096) -> pd.DataFrame:
    """Rounds to a threshold: ``num_steps / K`` with the largest K whose score is below it.

    "none": not even with K = 1.  "> R": not with R rounds, and cells of more rounds were not run.
    "-": not run at all.
    """
    columns = {"score": "", "authors": " (authors)"}
    columns = {k: v for k, v in columns.items() if k in cells}
    present = sorted(set(cells["M"].tolist()))
    largest = [m for m in (1024, 2048, 8192) if m in present] or present[-1:]
    rows = []
    for threshold, clients in itertools.product(THRESHOLDS, largest):
        row: dict[str, Any] = {"threshold (ours)": f"{threshold:.0e}", "M": clients}
        for name, part in cells.loc[cells["M"] == clients].groupby("algorithm"):
            for column, suffix in columns.items():
                run = part.dropna(subset=column)
                fits = run.loc[run[column] <= threshold, "K"].tolist()
                text = "-"
                if fits:
                    text = str(num_steps // max(fits))
                elif len(run):
                    least = min(run["K"].tolist())
                    text = "none" if least == 1 else f"> {num_steps // least}"
                row[f"{LABELS[str(name)]}{suffix}"] = text
        rows.append(row)
    return pd.DataFrame(rows).fillna("-")


def figure(cells: pd.DataFrame, over: str, panels: str, chosen: list[int]) -> Any:
    """Scores against one of M and K, a panel per value of the other; dashed: the authors'."""
    columns = min(len(chosen), 3)
    lines = -(-len(chosen) // columns)
    drawn, axes = plt.subplots(
        lines, columns, figsize=(4 * columns, 3 * lines), layout="constrained", sharey=True,
        squeeze=False,
    )  # fmt: skip
    for axis, value in zip(axes.flat, chosen, strict=False):
        for i, name in enumerate(n for n in LABELS if n in set(cells["algorithm"])):
            part = cells[(cells["algorithm"] == name) & (cells[panels] == value)]
            axis.loglog(part[over], part["score"], f"C{i}o-", ms=3, label=LABELS[name])
            if "authors" in part:
                axis.loglog(part[over], part["authors"], f"C{i}--", lw=1)
        axis.set_xscale("log", base=2)
        axis.set_title(f"{panels} = {value}", fontsize=10)
        axis.set_xlabel(over)
    for axis in axes.flat[len(chosen) :]:
        axis.set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=7)
    axes[0, 0].set_ylabel("suboptimality, best rate")
    return drawn


def build(
    name: str, cells: pd.DataFrame, seconds: pd.DataFrame, facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """Text and figures of a setting."""
    edge = cells.assign(edge=cells["at edge"].astype(bool)).groupby("algorithm")["edge"]
    at_edge = edge.agg(["sum", "size"]).reset_index()
    marks = [f"{row['sum']} of {row['size']}" for row in at_edge.to_dict("records")]
    edges = pd.DataFrame({"algorithm": at_edge["algorithm"], "cells": marks})
    report = Report(
        f"{name}: FedAc and its baselines",
        "Suboptimality of the best of the evaluations every 512 of 4,096 steps, at the best rate "
        f"of the grid; {facts['rows']} rows, one seed as the authors.  F* = {facts['F*']:.16g}, "
        f"{abs(facts['F* - authors']):.1e} from the authors'.",
    )
    if "log10 ratio" in cells:
        note = f"{CLOSE} decades are our threshold."
        report.section("Beside the authors' runs", note, agreement(cells))
    report.section(
        "Rounds to a threshold",
        "none: not even with one step per round; > R: not with R rounds, and cells of more rounds "
        "were not run; -: not run.",
        rounds_needed(cells),
    )
    note = "Cells whose best rate is the least or the largest of the grid."
    report.section("Best rates at the grid's edge", note, edges)
    report.section("Time", seconds)
    figures = {
        "speed_up": ("M", "K", [k for k in (1, 8, 32, 64, 128, 256) if k in set(cells["K"])]),
        "local_steps": ("K", "M", [m for m in (256, 1024, 8192) if m in set(cells["M"])]),
    }
    drawn = {
        f"{name}-{which}": figure(cells, over, panels, chosen)
        for which, (over, panels, chosen) in figures.items()
        if chosen
    }
    return report, drawn


def save(
    folder: pathlib.Path,
    name: str,
    table: pd.DataFrame,
    authors: pd.DataFrame | None,
    seconds: pd.DataFrame,
    facts: Mapping[str, Any],
) -> None:
    """Writes cells, text and figures."""
    cells, seconds = rounded(compared(table, authors)), rounded(seconds)
    report, drawn = build(name, cells, seconds, facts)
    report.save(folder, name, cells, drawn, **facts)
    write_csv(folder / f"{name}-seconds.csv", seconds)


def redraw(folder: pathlib.Path, name: str) -> None:
    """Writes text and figures again from the kept CSV and JSON files."""
    cells, seconds = (pd.read_csv(folder / f"{name}{kind}.csv") for kind in ("", "-seconds"))
    report, drawn = build(name, cells, seconds, read_facts(folder, name))
    report.redraw(folder, name, drawn)
