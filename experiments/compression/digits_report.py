"""Selection of rates, table and figure of the comparison of compressed methods."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.compression.methods import KEEP, SHARE
from experiments.harness import Report, at_edge, counted

FAMILIES = {"top-k": "C0", "random k": "C1", "sign": "C2", "PowerSGD": "C3", "FedAvg": "black"}
STYLES = {"": ":", "EF14": "--", "EF21": "-", "DIANA": "-", "MARINA": "-."}


def selected(history: pd.DataFrame) -> pd.DataFrame:
    """The rows of every method's best rate, by the mean validation accuracy of the last round."""
    last = history["round"] == history["round"].max()
    end = history.loc[last & (history["metric"] == "valid/accuracy"), :]
    groups = end.groupby(["method", "lr"])["value"]
    score = groups.mean().where(groups.count() == groups.size())  # NaN with a seed that diverged
    best = score.groupby("method").idxmax().tolist()
    order = history["method"].unique().tolist()
    best.sort(key=lambda pair: order.index(pair[0]))
    chosen = history.set_index(["method", "lr"]).loc[best].reset_index()
    return chosen.loc[chosen["metric"] == "test/accuracy", :]


def curves(history: pd.DataFrame, bits: Mapping[str, float]) -> pd.DataFrame:
    """Test accuracies at the chosen rates against the kilobits that one client has sent."""
    chosen = selected(history)
    upload = chosen["method"].map(bits.__getitem__)
    sent = chosen["round"] * upload
    # MARINA's first round is whole.
    sent += (chosen["method"] == "random k, MARINA") * (bits["FedAvg"] - upload)
    chosen = chosen.assign(kilobits=sent / 1e3, accuracy=chosen["value"])
    return chosen.loc[:, ["method", "lr", "seed", "round", "kilobits", "accuracy"]]


def summary(table: pd.DataFrame, level: float) -> pd.DataFrame:
    """A row per method: bits per round, rate, accuracy at the end, kilobits to a level."""
    rows = []
    for method in table["method"].unique():
        part = table.loc[table["method"] == method, :]
        end = fs.analysis.mean_interval(part.loc[part["round"] == part["round"].max(), "accuracy"])
        reached = part.loc[part["accuracy"] >= level, :].groupby("seed")["kilobits"].min()
        reached = reached.reindex(part["seed"].unique(), fill_value=np.inf)
        row = {"method": method, "rate": part["lr"].iloc[0], "accuracy": end.mean}
        row |= {"low": end.low, "high": end.high}
        row |= {"kilobits per round": part["kilobits"].max() / part["round"].max()}
        rows.append({**row, f"kilobits to {level:g}": reached.median()})
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame) -> Figure:
    """Error of the mean model of the seeds against bits, both on logarithmic scales."""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for method in table["method"].unique():
        family, _, memory = method.partition(", ")
        part = table.loc[table["method"] == method, :]
        mean = part.groupby("round")[["kilobits", "accuracy"]].mean()
        style = "-" if family == "FedAvg" else STYLES[memory]
        x, error = mean["kilobits"], 100 * (1 - mean["accuracy"])
        axes.plot(x, error, label=method, linewidth=1.4, color=FAMILIES[family], linestyle=style)
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="kilobits uploaded per client", ylabel="test error in %, mean over seeds")
    axes.set_yticks(ticks := [3, 5, 10, 20, 50], labels=[f"{tick}" for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return figure


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text and figure."""
    options = facts["options"]
    table = tables[""].copy()
    edges = [at_edge(rate, options["lrs"]) for rate in table["rate"]]
    table.insert(2, "grid", edges)
    report = Report(
        f"Compressed FedAvg on digits, {counted(options['seeds'], 'seed')}",
        f"20 clients, Dirichlet 0.1, {options['rounds']} rounds of all clients, one local epoch. "
        f"Sparse codecs send {KEEP:g} of the entries of each tensor; PowerSGD has rank 1. DIANA's "
        f"rate and MARINA's probability are 1 / (1 + omega) = {SHARE:g}. Rates are the best of "
        f"{', '.join(f'{lr:g}' for lr in options['lrs'])} by the validation accuracy at the end. "
        "Kilobits are those that one client uploads, for MARINA the expected ones; inf: more than "
        "half of the seeds do not reach the level. Intervals of 95 % over seeds.",
        f"DIANA's shifts move by {SHARE:g} of a difference per round, and MARINA adds up the noise "
        "of minibatches between whole uploads, so few rounds favour error feedback.",
        table,
    )
    return report, {"digits": draw(tables["curves"])}
