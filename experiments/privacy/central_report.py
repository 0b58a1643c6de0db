"""Table and figure of the experiments on central privacy: accuracy against epsilon."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import fedjax_sim as fs
from experiments.harness import Report, counted, interval_text
from experiments.privacy.central import CLIP, CLIPPED, COHORT, DELTA, PLAIN

LATE = 0.1  # share of the rounds whose evaluations are averaged


def late_accuracies(history: pd.DataFrame) -> dict[str, np.ndarray]:
    """The accuracies of every run's seeds, means over the last tenth of the rounds."""
    late = history.loc[history["round"] > (1 - LATE) * history["round"].max(), :]
    means = late.pivot_table(index="seed", columns="run", values="value", aggfunc="mean")
    return {str(run): means[run].to_numpy(np.float64) for run in means.columns}


def summary(history: pd.DataFrame, noise: pd.DataFrame) -> pd.DataFrame:
    """A row per run: the noise and the accuracy over seeds in %."""
    scores = late_accuracies(history)
    rows = []
    for run in [PLAIN, CLIPPED, *noise["run"]]:
        values = 100 * scores[run]
        rows.append(
            {"run": run, "accuracy in %": f"{values.mean():.2f} {interval_text(values)}".strip()}
        )
    columns = ["run", "z", "std of the mean", "noise / clip", "own epsilon"]
    table = pd.DataFrame(rows).merge(noise.loc[:, columns], on="run", how="left")
    for column in columns[1:]:
        table[column] = [f"{x:.3g}" if np.isfinite(x) else "" for x in table[column]]
    return table


def draw(history: pd.DataFrame, noise: pd.DataFrame) -> Figure:
    """Accuracy against epsilon, and accuracy by round."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4), layout="constrained")
    scores = late_accuracies(history)
    bands = [fs.analysis.mean_interval(scores[run], bounds=(0, 1)) for run in noise["run"]]
    means = np.array([float(band.mean) for band in bands])
    ends = np.array([[m - band.low, band.high - m] for m, band in zip(means, bands, strict=True)])
    left.errorbar(noise["epsilon"], means, ends.T, marker="o", color="black", capsize=3)
    for run, style in ((PLAIN, ":"), (CLIPPED, "--")):
        left.axhline(scores[run].mean(), color="black", linestyle=style, linewidth=1, label=run)
    left.set(xscale="log", xlabel="epsilon (forecast)", ylabel="test accuracy")
    left.set_xticks(noise["epsilon"], labels=[f"{epsilon:g}" for epsilon in noise["epsilon"]])
    left.minorticks_off()
    left.legend(frameon=False)
    runs = [PLAIN, CLIPPED, *noise["run"]]
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(runs)))
    for run, colour in zip(runs, colours, strict=True):
        mean = history.loc[history["run"] == run, :].groupby("round")["value"].mean()
        right.plot(mean.index, mean, label=run, color=colour, linewidth=1.4)
    right.set(xlabel="round", ylabel="test accuracy, mean over seeds")
    right.legend(frameon=False, fontsize=8)
    return figure


def build(
    tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """Text and figure."""
    options, noise = facts["options"], tables["noise"]
    report = Report(
        f"Central privacy on {facts['title']}, {counted(options['seeds'], 'seed')}",
        f"{facts['model']} of {noise['parameters'].iloc[0]:,} parameters; {options['users']:,} "
        f"users with equally many examples, {COHORT} per round, one epoch in batches of 10, client "
        f"rate 0.1, {options['rounds']} rounds. Uploads are clipped to {CLIP:g}; the noise is that "
        f"of {options['noise_cohort']:,} of {options['population']:,} users (Poisson sampling, "
        f"delta {DELTA:g}, privacy loss distributions), as pfl-research adds it. Epsilon is a "
        "forecast of that run: the simulated run is not private at that epsilon, and has the last "
        f"column's itself ({COHORT} of {options['users']:,} users without replacement, "
        "privacy loss distributions). Accuracies are means over the last tenth of the rounds, with "
        "95 % intervals over seeds.",
        facts["deviation"],
        summary(tables[""], noise),
    )
    return report, {facts["file"]: draw(tables[""], noise)}
