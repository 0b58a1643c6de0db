"""Tables and figures of :mod:`experiments.fedac.a9a`: best scores beside the authors'."""

import functools
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

from experiments.fedac import agreement
from experiments.fedac.cells import CELL
from experiments.harness.redrawing import read_tables, redraw_report, save_report
from experiments.harness.report import Report
from experiments.harness.tables import Claim, Spread
from fedjax_sim.reports.figures import add_caption

THRESHOLDS = (1e-2, 1e-3, 1e-4, 1e-5)  # not all the paper's
BASELINES = ("fedavg", "mb_ac_sgd", "mb_sgd")
# By setting: what FedAc-I outperforms in the thesis's text and captions, and from which K on.
OUTPERFORMED = {
    "a9a-1e-3": (BASELINES, 64), "a9a-1e-2": (BASELINES, 128), "a9a-1e-4": (("vanilla_fedac",), 2)
}  # fmt: skip
SPEED_UP = ("fedac_i", *BASELINES)  # the methods of Figures 3.1 and 3.3
SHOWN_K = (1, 8, 64)
LINEAR = -0.9  # the largest slope of linear speed-up; not the thesis's
LABELS = {
    "fedavg": "FedAvg", "fedac_i": "FedAc-I", "fedac_ii": "FedAc-II",
    "fedac_ii_code": "FedAc-II (code)", "vanilla_fedac": "vanilla FedAc", "mb_sgd": "MB-SGD",
    "mb_ac_sgd": "MB-AC-SGD",
}  # fmt: skip


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


def figure(cells: pd.DataFrame) -> Any:
    """Scores against M at several K, and against K at several M; dashed: the authors'."""
    panels = [("M", "K", k) for k in (1, 8, 32, 64, 128, 256) if k in set(cells["K"])]
    panels += [("K", "M", m) for m in (256, 1024, 8192) if m in set(cells["M"])]
    lines = max(-(-len(panels) // 3), 1)
    drawn, axes = plt.subplots(
        lines, 3, figsize=(11, 2.8 * lines), layout="constrained", sharey=True, squeeze=False
    )
    for axis, (over, fixed, value) in zip(axes.flat, panels, strict=False):
        for i, name in enumerate(n for n in LABELS if n in set(cells["algorithm"])):
            part = cells[(cells["algorithm"] == name) & (cells[fixed] == value)]
            axis.loglog(part[over], part["score"], f"C{i}o-", ms=3, label=LABELS[name])
            if "authors" in part:
                axis.loglog(part[over], part["authors"], f"C{i}--", lw=1)
        axis.set_xscale("log", base=2)
        axis.set_title(f"{fixed} = {value}", fontsize=10)
        axis.set_xlabel(over)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=7)
    axes[0, 0].set_ylabel("suboptimality, best rate")
    if "authors" in cells:
        add_caption(drawn, "Dashed: the authors' runs.")
    return drawn


def edges(cells: pd.DataFrame) -> pd.DataFrame:
    """Per algorithm the number of cells whose best rate is the least or the largest."""
    sums = cells.assign(edge=cells["at edge"].astype(bool)).groupby("algorithm")["edge"]
    counts = sums.agg(["sum", "size"]).reset_index()
    marks = [f"{row['sum']} of {row['size']}" for row in counts.to_dict("records")]
    return pd.DataFrame({"algorithm": counts["algorithm"], "cells": marks})


def gains(cells: pd.DataFrame, beyond: pd.DataFrame) -> pd.DataFrame:
    """Per algorithm the cells that further rates improve, and by how much; also the authors'."""
    at_edge = cells.loc[cells["at edge"].astype(bool), :]
    counts = at_edge["algorithm"].value_counts()
    both = beyond.merge(at_edge, on=CELL, suffixes=(" beyond", ""))
    rows = []
    for name, part in both.groupby("algorithm"):
        row: dict[str, Any] = {"algorithm": name, "cells": f"{len(part)} of {counts[name]}"}
        for column, suffix in (("score", ""), ("authors", " (authors)")):
            if f"{column} beyond" in part:
                gain = np.log10(part[column] / part[f"{column} beyond"])
                row[f"improved{suffix}"] = int((gain > 0).sum())
                row[f"median gain, decades{suffix}"] = np.median(np.maximum(gain, 0))
                row[f"largest{suffix}"] = gain.max()
        rows.append(row)
    return pd.DataFrame(rows)


def incomplete(cells: pd.DataFrame) -> str:
    """A sentence on the numbers of clients at which methods are missing; "" if there are none."""
    all_methods, parts = set(cells["algorithm"]), []
    for clients, part in cells.groupby("M"):
        ran = [label for name, label in LABELS.items() if name in set(part["algorithm"])]
        if len(ran) < len(all_methods):
            parts.append(f"M = {clients:,}: {', '.join(ran)} alone")
    return f"Cells of fewer methods: {'; '.join(parts)}." if parts else ""


def contrast(cells: pd.DataFrame) -> pd.DataFrame:
    """Vanilla FedAc over FedAc-I by M and K: the quotient of their scores, ours and the authors'.

    Above 1 vanilla FedAc is the worse one, as the paper's instability argument has it.
    """
    names, rows = ("vanilla_fedac", "fedac_i"), {}
    if not set(names) <= set(cells["algorithm"]):
        return pd.DataFrame()
    for column, suffix in (("score", ""), ("authors", " (authors)")):
        if column in cells:
            scores = cells.pivot_table(index=["M", "K"], columns="algorithm", values=column)
            if set(names) <= set(scores):
                quotient = (scores[names[0]] / scores[names[1]]).unstack("M")
                shown = [m for m in (16, 64, 256, 1024, 8192) if m in quotient]
                rows |= {f"M = {m}{suffix}": quotient[m] for m in shown}
    return pd.DataFrame(rows).reset_index()


def slopes(cells: pd.DataFrame) -> pd.DataFrame:
    """Slopes of log score against log M by algorithm and K, with 95 % intervals of the fit."""
    rows, groups = [], cells.groupby(["algorithm", "K"])
    part: Any
    for (name, K), part in groups:  # pyright: ignore[reportGeneralTypeIssues]
        if name not in SPEED_UP or K not in SHOWN_K or len(part) < 3:
            continue
        row: dict[str, Any] = {"algorithm": name, "K": K, "clients": len(part)}
        for column, suffix in (("score", ""), ("authors", " (authors)")):
            known = part.dropna(subset=[column]) if column in part else part.iloc[:0]
            if len(known) >= 3:
                fit: Any = stats.linregress(np.log(known["M"]), np.log(known[column]))
                width = stats.t.ppf(0.975, len(known) - 2) * fit.stderr
                row |= {f"slope{suffix}": fit.slope, f"+-{suffix}": width}
        rows.append(row)
    return pd.DataFrame(rows)


def difference(spread: pd.DataFrame, first: tuple, second: tuple, scale: float = 1) -> Spread:
    """The first cell's log score minus the second's, times a factor, over seeds."""
    rows: Any = spread.set_index(["algorithm", "M", "K"])
    a, b = rows.loc[first], rows.loc[second]
    std = abs(scale) * float(np.hypot(a["std"], b["std"]))
    return Spread(scale * float(a["mean"] - b["mean"]), std, int(min(a["seeds"], b["seeds"])))


def speed_up_claims(
    name: str, table: pd.DataFrame, spread: pd.DataFrame | None = None
) -> list[Claim]:
    """The statements of Figure 3.1, by slopes; the authors' are beside ours.

    Margins are those of the slopes between the least and the largest M of the cells with seeds.
    """
    columns = [column for column in ("slope", "slope (authors)") if column in table]
    ran = set(table["algorithm"].tolist()) if len(table) else set()
    if name != "a9a-1e-3" or ran != set(SPEED_UP):
        return []
    at: Any = table.set_index(["K", "algorithm"])[columns]

    def slope(K: int, n: str, sign: int, offset: float) -> list[Spread]:
        """``sign`` times the slope over seeds, plus an offset; nothing without seeds."""
        if spread is None:
            return []
        low, high = spread["M"].min(), spread["M"].max()
        scale = sign / float(np.log10(high / low))
        apart = difference(spread, (n, high, K), (n, low, K), scale)
        return [apart._replace(mean=apart.mean + offset)]

    def claim(
        text: str, K: int, names: tuple[str, ...], holds: bool, margins: list[Spread], ours: str
    ) -> Claim:
        found = "; ".join(
            f"{'authors: ' if 'authors' in column else ''}"
            + ", ".join(f"{LABELS[n]} {at[column][K, n]:.2f}" for n in names)
            for column in columns
        )
        return Claim(text, found, holds, "", ours, margins)

    def linear(K: int, n: str) -> bool:
        return bool(at["slope"][K, n] <= LINEAR)

    def not_linear(text: str, K: int, names: tuple[str, ...]) -> Claim:
        margins = [margin for n in names for margin in slope(K, n, 1, -LINEAR)]
        return claim(text, K, names, not any(linear(K, n) for n in names), margins, close)

    close = f"slope of at most {LINEAR:g}"
    rest = [n for n in SPEED_UP if n != "fedac_i"]
    least = all(at["slope"][64, "fedac_i"] < at["slope"][64, n] for n in rest)
    all_linear = [margin for n in SPEED_UP for margin in slope(1, n, -1, LINEAR)]
    steeper = []
    for n in rest:
        for own, other in zip(slope(64, "fedac_i", -1, 0), slope(64, n, -1, 0), strict=True):
            std = float(np.hypot(own.std, other.std))
            steeper.append(Spread(own.mean - other.mean, std, min(own.seeds, other.seeds)))
    return [
        claim(
            "all four methods attain linear speed-up at K = 1", 1, SPEED_UP,
            all(linear(1, n) for n in SPEED_UP), all_linear, close,
        ),
        not_linear("FedAvg and MB-SGD lose linear speed-up at K = 8", 8, ("fedavg", "mb_sgd")),
        not_linear("MB-AC-SGD deteriorates at K = 64", 64, ("mb_ac_sgd",)),
        claim(
            "FedAc-I has the largest speed-up at K = 64", 64, SPEED_UP, least, steeper,
            "the least slope",
        ),
    ]  # fmt: skip


def claims(name: str, cells: pd.DataFrame, spread: pd.DataFrame | None = None) -> list[Claim]:
    """The thesis's statement about its figures of a setting, by the cells in which it holds.

    Margins are differences of decimal logarithms of the scores, a part per cell that has seeds.
    """
    others, least = OUTPERFORMED.get(name, ((), 0))
    chosen = cells.loc[(cells["K"] >= least) & cells["algorithm"].isin(["fedac_i", *others])]
    found, shares = [], []
    for column, whose in (("score", "ours"), ("authors", "authors'")):
        if column in chosen and len(set(chosen["algorithm"])) == len(others) + 1 > 1:
            scores = chosen.pivot_table(index=["M", "K"], columns="algorithm", values=column)
            lower = (scores.dropna().idxmin(axis=1) == "fedac_i").tolist()
            found.append(f"{whose}: {sum(lower)} of {len(lower)} cells")
            shares.append(float(np.mean(lower)))
    if not found:
        return []
    text = (
        f"FedAc-I is better than {', '.join(LABELS[n] for n in others)} for K of at least {least}"
    )
    margins = []
    if spread is not None:
        own = spread[(spread["algorithm"] == "fedac_i") & (spread["K"] >= least)]
        margins = [
            difference(spread, (n, M, K), ("fedac_i", M, K))
            for M, K in zip(own["M"], own["K"], strict=True)
            for n in others
        ]
    ours = "decided by the cells with seeds" if margins else ""
    return [Claim(text, "; ".join(found), shares[0] == 1, "", ours, margins)]


def build(
    name: str, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """Text and figures of a setting."""
    cells, spread = tables[""], tables.get("spread")
    report = Report(
        f"{name}: FedAc and its baselines",
        "Suboptimality of the best of the evaluations every 512 of 4,096 steps, at the best rate "
        f"of the grid; {facts['rows']} rows, one seed as the authors.  F* = {facts['F*']:.16g}, "
        f"{abs(facts['F* - authors']):.1e} from the authors'.",
        incomplete(cells),
    )
    if "authors" in cells:
        note = f"{agreement.CLOSE} decades are our threshold."
        if spread is not None:
            seeds = min(spread["seeds"].tolist())
            note += "  The range contains a run of another seed with probability "
            note += f"{agreement.LEVEL:g}, by the spread of {seeds} seeds below."
        report.section("Beside the authors' runs", note, agreement.agreement(cells, spread))
    if spread is not None:
        report.section(
            "Spread of one seed",
            "Standard deviation over seeds of the decimal logarithm of the score, each seed at its "
            f"own best rate.  `python -m experiments.fedac.spread --setting {name}`",
            agreement.spread_table(spread),
        )
    report.section(
        "Rounds to a threshold",
        "none: not even with one step per round; > R: not with R rounds, and cells of more rounds "
        "were not run; -: not run.",
        rounds_needed(cells),
    )
    report.section(
        "Vanilla FedAc over FedAc-I",
        "Quotient of the scores; above 1 vanilla FedAc is worse.",
        contrast(cells),
    )
    note = "Cells whose best rate is the least or the largest of the grid."
    report.section("Best rates at the grid's edge", note, edges(cells))
    if "beyond" in tables:
        report.section(
            "Beyond the grid",
            "Those of these cells that ran at three rates beyond that edge.  "
            f"`python -m experiments.fedac.beyond --setting {name}`",
            gains(cells, tables["beyond"]),
        )
    fits = slopes(cells)
    report.section(
        "Speed-up by clients",
        "Slope of log score against log M, with the 95 % interval of the fit; -1 is linear.",
        fits,
    )
    report.claims([*claims(name, cells, spread), *speed_up_claims(name, fits, spread)])
    report.section("Time", tables.get("seconds", ""))
    return report, {name: figure(cells)}


def known_cells(folder: pathlib.Path, name: str) -> pd.DataFrame:
    """The cells in the folder; empty if there are none."""
    if (folder / f"{name}.csv").exists():
        return read_tables(folder, name)[""]
    return pd.DataFrame(columns=[*CELL, "score", "lr", "at edge"])


def save(
    folder: pathlib.Path,
    name: str,
    tables: Mapping[str, pd.DataFrame],
    facts: Mapping[str, Any],
) -> None:
    """Writes cells, text and figures."""
    save_report(folder, name, tables, functools.partial(build, name), **facts)


def redraw(folder: pathlib.Path, name: str) -> None:
    """Writes text and figures again from the kept CSV and JSON files."""
    redraw_report(folder, name, functools.partial(build, name))
