"""Comparison of the partitions: final accuracies, rounds to a target."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.harness.report import Report
from experiments.harness.tables import Claim, paired, rounds_text

ACCURACY, LOSS = "test/accuracy", "test/loss"
PARTITIONS = ("iid", "by writer")
TARGET = 0.79
PAPER = {"iid": 142, "by writer": 220}  # rounds to the target


class Comparison(NamedTuple):
    """The two partitions with one seed."""

    final: dict[str, float]  # accuracy
    reached: dict[str, float]  # rounds to the report's target, infinity if not reached
    level: float  # the equivalent of the target
    rounds: dict[str, float]  # to that level

    @property
    def slow_down(self) -> float:
        """Rounds by writer per round of IID, to the equivalent target; 0: IID misses it."""
        return self.rounds["by writer"] / self.rounds["iid"]


def compared(history: pd.DataFrame, seed: int, target: float) -> Comparison:
    """Final accuracies and rounds to two targets: the report's, and the final one by writer.

    Final accuracies are means over the last tenth of the evaluations, at least one.
    """
    runs = history.loc[history["seed"] == seed]
    final = {}
    for name in PARTITIONS:
        values = runs.loc[(runs["partition"] == name) & (runs["metric"] == ACCURACY)]
        values = np.asarray(values.sort_values("round")["value"])
        final[name] = float(values[-max(1, len(values) // 10) :].mean())
    level = final["by writer"]

    def rounds(target: float) -> dict[str, float]:
        scores = fs.analysis.rounds_to_target(runs, ACCURACY, target, ["partition"], mode="max")
        return dict(zip(scores["partition"], scores["score"].tolist(), strict=True))

    return Comparison(final, rounds(target), level, rounds(level))


def table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """A row per seed and partition, with the report's rounds to the target."""
    return pd.DataFrame(
        {
            "seed": seed,
            "partition": name,
            "final accuracy, %": 100 * runs.final[name],
            f"rounds to {100 * TARGET:g} %": rounds_text(runs.reached[name]),
            "report": PAPER[name],
            "equivalent target, %": 100 * runs.level,
            "rounds to it": rounds_text(runs.rounds[name]),
        }
        for seed, runs in enumerate(comparisons)
        for name in PARTITIONS
    )


def claims(comparisons: Sequence[Comparison], last: int) -> list[Claim]:
    """The report's statements about Figure 4, over all seeds.

    A run that misses the target counts as one round more than the last evaluated one.
    """

    def by(name: str) -> tuple[np.ndarray, np.ndarray]:
        reached = np.array([runs.reached[name] for runs in comparisons])
        final = np.array([100 * runs.final[name] for runs in comparisons])
        return np.minimum(reached, last + 1), final

    (slow, low), (fast, high) = by("by writer"), by("iid")
    return [
        paired(
            f"Experiment 3: by writer more rounds to {100 * TARGET:g} %",
            {"iid": fast.mean(), "by writer": slow.mean()}, [slow - fast],
        ),
        paired(
            "Experiment 3: by writer a lower final accuracy",
            {"iid": high.mean(), "by writer": low.mean()}, [high - low],
        ),
    ]  # fmt: skip


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text and figure of all seeds."""
    history = tables[""]
    seeds = sorted(set(history["seed"]))
    comparisons = [compared(history, seed, TARGET) for seed in seeds]
    slow = ", ".join(f"{runs.slow_down:.2f}" for runs in comparisons)
    report = Report(
        "FedAvg by writer and IID",
        facts["described"][:1].upper() + facts["described"][1:],
        table(comparisons),
        f"Rounds by writer over rounds IID to the equivalent target, one number per seed: {slow}.  "
        f"Report, to {100 * TARGET:g} %: {PAPER['by writer'] / PAPER['iid']:.2f}.",
    )
    report.claims(claims(comparisons, max(history["round"].tolist())))
    figure = fs.plotting.curves(history, [ACCURACY, LOSS], by="partition", band="minmax")
    figure.axes[0].axhline(TARGET, color="0.6", lw=0.8, ls=":")
    options = facts["options"]
    return report, {f"{options['dataset']}-{options['iid']}": figure}
