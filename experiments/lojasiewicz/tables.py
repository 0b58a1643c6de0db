"""Tables and figures of gaps beside bounds."""

from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from experiments.lojasiewicz.runs import Case, history, measure


def histories(cases: Iterable[Case], seed: int) -> list[pd.DataFrame]:
    """The table of every case."""
    return [history(case, measure(case, seed)) for case in cases]


def looseness(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """A row per case: the final gap and bounds, and the largest ratios over all later rounds."""
    rows = []
    for table in tables:
        last, later = table.iloc[-1], table.iloc[1:]
        lowest = later["gap"] - 3 * later["standard error"]
        rows.append(
            last[["case", "alpha", "M", "K", "zeta", "gap", "standard error", "floor"]].to_dict()
            | {name: last[name] for name in ("recursion", "closed")}
            | {f"{name} / gap": last[name] / last["gap"] for name in ("recursion", "closed")}
            | {
                f"max gap / {name}": (later["gap"] / later[name]).max()
                for name in ("recursion", "closed")
            }
            | {"max drift / bound": (table["drift"] / table["drift bound"]).max()}
            | {
                "violated": bool(
                    (lowest > later["recursion"]).any()
                    or (lowest > later["closed"]).any()
                    or (table["drift"] > table["drift bound"]).any()
                )
            }
        )
    return pd.DataFrame(rows)


def rates_table(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Slopes in log-log over the last factor of 4 in R; for alpha = 1 the factor per round."""
    rows = []
    for table in tables:
        alpha, rounds = table["alpha"].iloc[0], table["round"].iloc[-1]
        early = table.iloc[rounds // 4]
        row: dict[str, Any] = {"case": table["case"].iloc[0], "alpha": alpha, "R": rounds}
        row["measure"] = "factor per round" if alpha == 1 else "slope"
        row["expected"] = np.nan if alpha == 1 else -1 / (alpha - 1)
        for name in ("gap", "recursion", "closed"):
            change = np.log(table[name].iloc[-1] / early[name])
            row[name] = (
                np.exp(change / (rounds - rounds // 4)) if alpha == 1 else change / np.log(4)
            )
        rows.append(row)
    return pd.DataFrame(rows)


def reference_table(
    tables: list[pd.DataFrame], references: Mapping[str, Mapping[str, list]]
) -> pd.DataFrame:
    """The reference numbers beside ours."""
    rows = []
    for table in tables:
        name = table["case"].iloc[0]
        known = references[name]
        for i, number in enumerate(known["round"]):
            here = table.iloc[number]
            row = {"case": name, "round": number, "gap, reference": known["gap"][i]}
            row |= {"gap": here["gap"], "standard error": here["standard error"]}
            row |= {"closed, reference": known.get("closed", [np.nan] * 4)[i]}
            rows.append(row | {"closed": here["closed"], "recursion": here["recursion"]})
    return pd.DataFrame(rows)


SHOWN = [
    "case", "alpha", "K", "round", "gap", "5 %", "95 %", "recursion", "closed", "floor", "drift",
    "drift bound",
]  # fmt: skip


def thinned(table: pd.DataFrame, points: int = 20) -> pd.DataFrame:
    """The columns of the figures after at most ``points`` rounds, evenly on a logarithmic scale."""
    last = table["round"].iloc[-1]
    return table.iloc[np.unique(np.geomspace(1, last + 1, points).astype(int) - 1)][SHOWN]


def draw(axis: Any, table: pd.DataFrame, color: str, label: str) -> None:
    """One case: mean and quantiles of the gap, and the bounds."""
    rounds = table["round"] + (table["alpha"].iloc[0] > 1)  # round 0 on a logarithmic axis
    axis.fill_between(rounds, table["5 %"].clip(lower=1e-12), table["95 %"], color=color, alpha=0.2)
    axis.plot(rounds, table["gap"], color=color, label=label)
    axis.plot(rounds, table["recursion"], color=color, ls="--")
    axis.plot(rounds, table["closed"], color=color, ls=":")
    if table["floor"].iloc[0] > 0:
        axis.axhline(table["floor"].iloc[0], color="0.6", lw=0.8)
    axis.set(yscale="log", xscale="linear" if table["alpha"].iloc[0] == 1 else "log")


def families_figure(curves: pd.DataFrame) -> Any:
    """A panel per family, one local step and several."""
    drawn, axes = plt.subplots(3, 3, figsize=(11, 8), layout="constrained")
    families = curves.loc[curves["group"] == "families"].groupby("case", sort=False)
    for axis, (name, family) in zip(axes.flat, families, strict=False):
        for i, (steps, table) in enumerate(family.groupby("K")):
            draw(axis, table, f"C{i}", f"K = {steps}")
        alpha = family["alpha"].iloc[0]
        xlabel = "round" if alpha == 1 else "round + 1"
        axis.set(title=f"{name}, alpha = {alpha:g}", xlabel=xlabel)
        axis.legend(frameon=False, fontsize=8)
    for axis in axes[:, 0]:
        axis.set(ylabel="F - F*")
    drawn.suptitle("mean, 5 to 95 %; recursion bound dashed, closed form dotted, floor grey")
    return drawn


def sweeps_figure(curves: pd.DataFrame) -> Any:
    """The sweeps, Lemma F.1, and the rates without noise."""
    drawn, axes = plt.subplots(2, 3, figsize=(11, 6.4), layout="constrained")
    groups = {str(name): group for name, group in curves.groupby("group", sort=False)}
    sweeps = [name for name in groups if name.startswith("sweep")]
    for axis, group in zip(axes.flat, sweeps, strict=False):
        for i, (name, table) in enumerate(groups[group].groupby("case", sort=False)):
            draw(axis, table, f"C{i}", str(name))
        axis.set(title=f"tilted quadratic, {group}", xlabel="round", ylabel="F - F*")
        axis.legend(frameon=False, fontsize=8)
    families = groups["families"]
    several = families.loc[families["K"] > 1].groupby("case", sort=False)
    for i, (name, table) in enumerate(list(several)[:4]):
        axes[1, 0].semilogy(table["round"], table["drift"], f"C{i}", label=name)
        axes[1, 0].semilogy(table["round"], table["drift bound"], f"C{i}", ls="--")
    axes[1, 0].set(title="Lemma F.1: drift and its bound (dashed)", xlabel="round")
    axes[1, 0].legend(frameon=False, fontsize=8)
    for i, (name, table) in enumerate(groups["exact"].groupby("case", sort=False)):
        label = f"{name}, alpha = {table['alpha'].iloc[0]:.3g}"
        axes[1, 1].loglog(table["round"] + 1, table["gap"], f"C{i}", label=label)
        axes[1, 1].loglog(table["round"] + 1, table["recursion"], f"C{i}", ls="--")
    axes[1, 1].set(title="exact gradients, K = 1", xlabel="round + 1", ylim=(1e-14, 3))
    axes[1, 2].axis("off")
    axes[1, 2].legend(*axes[1, 1].get_legend_handles_labels(), frameon=False, loc="center left")
    return drawn
