"""Tables and figures of the comparison, from its CSV file."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.harness.figures import lines
from experiments.harness.redrawing import redraw_report
from experiments.harness.report import Report
from experiments.harness.tables import (
    Claim,
    interval_text,
    means,
    ordering,
    paired,
    unfinished,
)
from experiments.personalised.methods import PUBLISHED

ACCURACY = "accuracy/weighted_mean"
COLUMNS = {
    ACCURACY: "all examples",
    "accuracy/mean": "clients",
    "accuracy/std": "std over clients",
    "accuracy/worst_decile": "worst decile",
}
TITLES = {"mnist": "MNIST", "cifar100": "CIFAR-100"}
PUBLISHED_ARE = {
    "mnist": "PFLlib, Fashion-MNIST",  # the nearest data set of its page
    "cifar100": "PFLlib",
}
DIFFERENCES = (
    "PFLlib's numbers are the best of 2,000 rounds, from its page.  There initial values are "
    "PyTorch's; here kernels are LeCun-normal and biases 0.  By the defaults there, Ditto's mu is "
    "0, which is local training (here 1), pFedMe's lambda is 1 (here 15), and APFL's alpha starts "
    "at 1 (here it stays 0.5); Per-FedAvg does its local work twice per round, and FedRep trains "
    "one epoch of the head and one of the body (here half an epoch each)."
)
PERSONAL = (
    "Ditto", "FedRep", "FedPer", "LG-FedAvg", "FedBABU", "FedAvg-FT", "pFedMe", "APFL",
    "Per-FedAvg",
)  # fmt: skip


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Returns the report and its figures of tables that were written."""
    history, options = tables[""], facts["options"]
    name, rounds = options["dataset"], options["rounds"]
    best = best_rounds(history)
    title = f"Personalised methods on {TITLES.get(name, name)}, {rounds} rounds"
    report = Report(title, facts["setting"])
    published = PUBLISHED.get(name, {})
    report.add(unfinished(history, options["methods"], options["seeds"], by="algorithm"))
    report.add(rarely_evaluated(history))
    report.add(table(best, published, PUBLISHED_ARE.get(name, "")))
    report.add(*(comparison(best, published) if published else ()))
    report.claims(claims(best))
    return report, {facts["file"]: errors_figure(history)}


def errors_figure(history: pd.DataFrame) -> Figure:
    """Returns the errors over all examples against rounds, a line per method, means over seeds."""
    accuracies = history.loc[history["metric"] == ACCURACY, :]
    means = accuracies.groupby(["algorithm", "round"], sort=False)["value"].mean().reset_index()
    errors = means.assign(error=100 * (1 - means["value"]))
    figure = lines(errors, "round", "error", ["algorithm"], "test error over all examples, %")
    values = np.asarray(errors["error"])
    if values.max() > 10 * values.min():  # less than a decade has no powers of 10 as ticks
        figure.axes[0].set_yscale("log")
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def rarely_evaluated(history: pd.DataFrame) -> str:
    """Returns a sentence on the methods that are evaluated less often than the others."""
    first: dict[str, int] = {}
    for method, done in zip(history["algorithm"], history["round"].tolist(), strict=True):
        first[method] = min(done, first.get(method, done))
    usual = min(first.values())
    rare = {method: every for method, every in first.items() if every > usual}
    listed = ", ".join(f"{method} every {every} rounds" for method, every in rare.items())
    return f"Evaluated less often than the others: {listed}." if listed else ""


def best_rounds(history: pd.DataFrame) -> pd.DataFrame:
    """Returns the metrics of every run in the round with its best accuracy over all examples."""
    accuracies = history.loc[history["metric"] == ACCURACY, :].reset_index(drop=True)
    best = accuracies.groupby(["algorithm", "seed"])["value"].idxmax()
    rows = accuracies.loc[np.asarray(best), ["algorithm", "seed", "round"]]
    return history.merge(rows, on=["algorithm", "seed", "round"])


def table(
    best: pd.DataFrame, published: Mapping[str, float], column: str = "PFLlib"
) -> pd.DataFrame:
    """Returns a row per method: accuracies in %, mean over seeds, and the published one.

    ``best round`` has the first and the last of the seeds' best rounds.

    Args:
        column: name of the published accuracies.
    """
    rows = []
    for method, part in best.groupby("algorithm", sort=False):
        values = {
            label: 100 * np.asarray(part.loc[part["metric"] == metric, "value"], float)
            for metric, label in COLUMNS.items()
        }
        row: dict[str, Any] = {"method": method}
        for label, numbers in values.items():
            row[label] = f"{numbers.mean():.1f}" + f" {interval_text(list(numbers))}" * (
                len(numbers) > 1
            )
        rounds = np.unique(np.asarray(part["round"]))
        row["best round"] = f"{rounds[0]}" + f"-{rounds[-1]}" * (len(rounds) > 1)
        if published:
            row[column] = published.get(str(method), "")
        rows.append(row)
    return pd.DataFrame(rows)


def mean_accuracies(best: pd.DataFrame) -> dict[str, float]:
    """Returns a method's accuracy over all examples, the mean over seeds."""
    accuracies = best.loc[best["metric"] == ACCURACY, :]
    return {
        str(method): float(np.mean(np.asarray(part["value"])))
        for method, part in accuracies.groupby("algorithm")
    }


def comparison(best: pd.DataFrame, published: Mapping[str, float]) -> list[str]:
    """Returns paragraphs on the order of the methods, here and there, and on the differences."""
    ours = mean_accuracies(best)
    both = [method for method in published if method in ours]
    here, there = ([ours[m] for m in both], [published[m] for m in both])
    orders = (
        ", ".join(sorted(both, key=lambda method: -values[method])) for values in (ours, published)
    )
    text = "Best first, of the methods that PFLlib's page has, here: {}; there: {}.".format(*orders)
    return [f"{text} {ordering(here, there)}".strip(), DIFFERENCES]


def claims(best: pd.DataFrame) -> list[Claim]:
    """Returns the benchmark's statement for the methods that ran: personal models beat FedAvg."""
    accuracies = best.loc[best["metric"] == ACCURACY, :]
    points = 100 * accuracies.pivot(index="seed", columns="algorithm", values="value")
    if "FedAvg" not in points:
        return []
    return [
        paired(
            f"{method} is more accurate than FedAvg",
            means(points, [method, "FedAvg"]),
            [(points[method] - points["FedAvg"]).dropna()],
        )
        for method in PERSONAL
        if method in points
    ]


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report in the folder."""
    for path in sorted(folder.glob("*.json")):
        redraw_report(folder, path.stem, build)
