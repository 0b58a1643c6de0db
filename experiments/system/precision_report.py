"""The table of ``experiments.system.precision`` from histories, and its text."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.harness import Report, counted

EXACT = "float64"
METRICS = ("test/accuracy", "train/loss")


def effect(history: pd.DataFrame) -> pd.DataFrame:
    """A row per algorithm, metric and precision: its mean at the end, the paired difference from
    float64 there, the seeds' standard deviation, and the largest absolute difference of a seed's
    curve at any evaluation."""
    rows = []
    for algorithm, metric in itertools.product(history["algorithm"].unique(), METRICS):
        part = history.query("algorithm == @algorithm and metric == @metric")
        curves = {
            name: part.query("precision == @name")
            .pivot_table(index="seed", columns="round", values="value")
            .to_numpy()
            for name in history["precision"].unique()
        }
        exact = curves.pop(EXACT)
        end = fs.analysis.mean_interval(exact[:, -1])
        spread = float(exact[:, -1].std(ddof=1))
        row = {"algorithm": algorithm, "metric": metric}
        rows.append({**row, "precision": EXACT, "mean": end.mean, "low": end.low, "high": end.high})
        for precision, values in curves.items():
            end, off = (
                fs.analysis.mean_interval(values[:, -1]),
                fs.analysis.mean_interval(values[:, -1] - exact[:, -1]),
            )
            columns: dict[str, Any] = {"mean": end.mean, "low": end.low, "high": end.high}
            columns |= {"difference": off.mean, "from": off.low, "to": off.high}
            columns["spread"] = spread
            largest = float(np.abs(values - exact).max())
            rows.append({**row, "precision": precision, **columns, "largest": largest})
    return pd.DataFrame(rows)


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Any]]:
    """Text; there is no figure."""
    options = facts["options"]
    name = "-".join(filter(None, (options["dataset"], options["model"])))
    rounds, seeds = options["rounds"], counted(options["seeds"], "seed")
    report = Report(
        f"Precision: {name}, {rounds} rounds, {seeds}",
        "Means at the end with intervals of 95 % (low, high), differences from float64 per seed "
        "with their intervals (from, to), the standard deviation of float64 over the seeds "
        "(spread), and the largest difference of a seed at any evaluation.",
        tables[""],
    )
    return report, {}
