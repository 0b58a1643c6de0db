"""Tables of the FedSWA experiments: ours beside the paper's."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

from experiments.fedswa_common import (
    ACCURACY,
    TEST_LOSS,
    TRAIN_LOSS,
    Options,
    Setting,
    compared,
    describe,
    run_label,
)
from experiments.output import write
from fedjax_sim import plotting
from fedjax_sim.analysis.intervals import mean_interval
from fedjax_sim.analysis.selection import rounds_to_target, scores
from fedjax_sim.analysis.tables import markdown


class Published(NamedTuple):
    """An entry of a table: accuracy in percent, rounds to the target (None: more than were run)."""

    accuracy: float
    rounds: int | None = None


def comparison(
    history: pd.DataFrame,
    methods: Sequence[str],
    lrs: Mapping[str, float],
    published: Mapping[str, Published],
    target: float,
) -> pd.DataFrame:
    """A row per method: accuracy in percent (95 % interval over seeds), rounds, ranks, the paper's.

    ``rounds to FedAvg`` counts the rounds to FedAvg's final mean accuracy, since a shorter run or
    a smaller model may never see the paper's target.
    """
    final = scores(history, ACCURACY, mode="max").set_index("method")["score"]
    top = scores(history, ACCURACY, reduce="best", mode="max").set_index("method")["score"]
    gap = (
        scores(history, TEST_LOSS, mode="min").set_index("method")["score"]
        - scores(history, TRAIN_LOSS, mode="min").set_index("method")["score"]
    )
    reference = float(final.loc[["FedAvg"]].mean()) if "FedAvg" in methods else math.nan
    to_target = _rounds(history, target / 100)
    to_fedavg = _rounds(history, reference) if math.isfinite(reference) else {}
    rows = []
    for method in methods:
        accuracy = mean_interval(100 * final.loc[[method]].to_numpy())
        half = (accuracy.high - accuracy.low) / 2
        paper = published.get(method)
        rows.append(
            {
                "method": method,
                "lr": lrs[method],
                "accuracy": accuracy.mean,
                "interval": "" if math.isnan(half) else f"± {half:.2f}",
                "best": 100 * top.loc[[method]].mean(),
                "test - train loss": gap.loc[[method]].mean(),
                f"rounds to {target:g} %": to_target[method],
                "rounds to FedAvg": to_fedavg.get(method, ""),
                "paper": math.nan if paper is None else paper.accuracy,
                "paper's rounds": "" if paper is None else str(paper.rounds or "not reached"),
            }
        )
    table = pd.DataFrame(rows)
    table.insert(5, "rank", table["accuracy"].rank(ascending=False, na_option="bottom"))
    table["paper's rank"] = table["paper"].rank(ascending=False)
    return table


def agreement(table: pd.DataFrame) -> str:
    """How far our ordering of the methods is the paper's: Kendall's tau."""
    both = table.dropna(subset=["accuracy", "paper"])
    if len(both) < 3:
        return ""
    tau, p = stats.kendalltau(both["accuracy"], both["paper"])
    return (
        f"Ordering by accuracy against the paper's, {len(both)} methods: Kendall's tau "
        f"{tau:.2f} (p = {p:.2g}; 1 is the same order, 0 none)."
    )


def as_text(table: pd.DataFrame) -> str:
    """The table in Markdown, percentages with two decimals."""
    shown = table.copy()
    for name in ("accuracy", "best"):
        shown[name] = shown[name].map(lambda v: "diverged" if math.isnan(v) else f"{v:.2f}")
    return markdown(shown)


def column(
    experiment: str,
    setting: Setting,
    methods: Sequence[str],
    published: Mapping[str, Published],
    options: Options,
) -> pd.DataFrame:
    """Runs all methods on a setting; prints and writes table, history and curves."""
    print(describe(setting, options), flush=True)
    history, lrs = compared(setting, {method: [{}] for method in methods}, options)
    table = comparison(history, methods, lrs, published, setting.target)
    parts = [f"# {setting.name}", describe(setting, options), as_text(table), agreement(table)]
    text = "\n\n".join(part for part in parts if part)
    print(text, flush=True)
    folder = options.output / f"{experiment}-{run_label(options)}"
    write(folder, setting.name, history, text, options=options)
    by_method = history.rename(columns={"method": "algorithm"})
    figure = plotting.curves(by_method, [ACCURACY, TEST_LOSS, TRAIN_LOSS], band="minmax")
    figure.savefig(folder / f"{setting.name}.png", dpi=100)
    return table


def grid_table(
    experiment: str,
    setting: Setting,
    grid: Mapping[str, Sequence[Mapping[str, float]]],
    over: str,
    published: Mapping[tuple[str, float], float],
    options: Options,
) -> pd.DataFrame:
    """Runs methods over a hyper-parameter; prints and writes table, history and a plot."""
    print(describe(setting, options), flush=True)
    history, lrs = compared(setting, grid, options)
    final = scores(history, ACCURACY, mode="max")
    names = list(dict.fromkeys(n for points in grid.values() for point in points for n in point))
    rows = []
    for method, points in grid.items():
        for point in points:
            mine = final[final["method"] == method]
            for name, value in point.items():
                mine = mine[mine[name] == value]
            accuracy = mean_interval(100 * np.asarray(mine["score"]))
            half = (accuracy.high - accuracy.low) / 2
            rows.append(
                {
                    "method": method,
                    "lr": lrs[method],
                    **point,
                    "accuracy": accuracy.mean,
                    "interval": "" if math.isnan(half) else f"± {half:.2f}",
                    "paper": published.get((method, point[over]), math.nan),
                }
            )
    table = pd.DataFrame(rows)
    shown = table.assign(
        accuracy=[f"{v:.2f}" if math.isfinite(v) else "diverged" for v in table["accuracy"]]
    )
    text = "\n\n".join(
        [f"# {experiment}: {setting.name}", describe(setting, options), markdown(shown)]
    )
    print(text, flush=True)
    folder = options.output / f"{experiment}-{run_label(options)}"
    write(folder, setting.name, history, text, options=options)
    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    lines = ["method", *(name for name in names if name != over)]
    for _, part in table.groupby(lines):
        label = " ".join(f"{part[name].iloc[0]}" for name in lines)
        axes.plot(part[over], part["accuracy"], marker="o", label=label)
    axes.set(xlabel=over, ylabel="test accuracy, %")
    axes.legend(frameon=False)
    figure.savefig(folder / f"{setting.name}.png", dpi=100)
    plt.close(figure)
    return table


def _rounds(history: pd.DataFrame, level: float) -> dict[str, str]:
    """Per method the median over seeds of the rounds to an accuracy."""
    found = rounds_to_target(history, ACCURACY, level, mode="max")
    medians = found.groupby("method")["score"].median()
    return {
        str(method): f"{value:.0f}" if math.isfinite(value) else "not reached"
        for method, value in zip(medians.index, medians.to_numpy(), strict=True)
    }
