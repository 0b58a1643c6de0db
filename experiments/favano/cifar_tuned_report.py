"""Report of the tuned methods on CIFAR-10, built from its two CSV files."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.favano.image_tables import best_two, by_setting, larger, variances
from experiments.favano.outcomes import accuracy, late, panels
from experiments.harness import Claim, Report, at_edge, interval_text

NAME = "methods"
COLUMNS = [
    "setting", "algorithm", "lr", "seed", "round", "time", "local_steps", "accuracy", "loss",
    "variance", "diverged_at",
]  # fmt: skip


def results(history: pd.DataFrame, tuning: pd.DataFrame) -> pd.DataFrame:
    """A row per setting and method: accuracy, its interval over seeds, work, variance."""
    rows = []
    groups: Any = history.groupby(["setting", "algorithm"], sort=False)
    for (setting, name), frame in groups:
        grid = tuning.query("setting == @setting and method == @name")["lr"].tolist()
        lr = frame["lr"].iloc[0]
        end: Any = late(frame)
        scores = end.groupby("seed")["accuracy"].mean()
        mean, deviation = accuracy(frame)
        last = frame.groupby("seed").last()
        rows.append(
            {
                "setting": setting, "method": name, "lr": lr, "lr in its grid": at_edge(lr, grid),
                "accuracy": mean, "+-": deviation, "late accuracy": 100 * scores.mean(),
                "late +-": 100 * scores.std(), "95 %": interval_text(100 * scores),
                "server updates": last["round"].mean(),
                "local steps": last["local_steps"].mean(),
                "variance": end["variance"].mean(),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def claims(history: pd.DataFrame, table: pd.DataFrame) -> list[Claim]:
    """The paper's statements about Figures 3a and 6."""
    ends: Any = late(history).groupby(["setting", "algorithm", "seed"], sort=False)
    scores = (100 * ends["accuracy"].mean()).reset_index()
    rows = best_two(scores, "late accuracy, the mean over the last fifth of the time")
    rows += larger("FedBuff's clients' variance is larger", variances(history), "variance")
    for setting, spread in by_setting(table, "late +-").items():
        text, pair = "FedBuff's accuracy varies more over seeds", ("FedBuff", "FAVANO")
        found = {name: spread[name] for name in pair}
        rows.append(Claim(text, found, found["FedBuff"] > found["FAVANO"], setting))
    return rows


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """The report and its figure, from the histories and the accuracies of all rates."""
    history, tuning = tables[""], tables["rates"]
    table = results(history, tuning)
    report = Report(
        "CIFAR-10 over the paper's time, every method at its own rate (Figures 3a and 6 of FAVANO)",
        facts["scale"],
        "Accuracy on test images, percent, at the end and over the last fifth of the time. "
        "`+-`, `late +-`: their deviations over seeds; `95 %`: interval of the mean of the late "
        "accuracy. `variance`: the sum over the clients of the squared distance of their models "
        "from the server's, over the last fifth of the time.",
        table,
    )
    tried: Any = tuning.assign(accuracy=100 * tuning["accuracy"])
    tried = tried.pivot_table(
        index=["setting", "variant"], columns="lr", values="accuracy", sort=False
    )
    tried = tried[sorted(tried.columns)].rename_axis(columns=None)
    tried = tried.rename(columns=lambda lr: f"lr = {lr:g}").reset_index()
    report.section("Late accuracies on the seed that the rates are chosen on", tried)
    report.claims(claims(history, table))
    return report, {NAME: panels(history, [("accuracy", "time"), ("variance", "time")])}
