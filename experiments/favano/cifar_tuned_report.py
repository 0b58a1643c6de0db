"""Report of the tuned methods on CIFAR-10, built from its two CSV files."""

import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.favano.image_tables import best_two, by_setting
from experiments.favano.outcomes import accuracy
from experiments.harness import Claim, Report, at_edge, interval_text, legends
from experiments.harness.report import read_facts, rounded, write_csv
from fedjax_sim.plotting.style import line_look

NAME = "methods"
COLUMNS = [
    "setting", "algorithm", "lr", "seed", "round", "time", "local_steps", "accuracy", "loss",
    "variance", "diverged_at",
]  # fmt: skip


def late(frame: pd.DataFrame) -> pd.DataFrame:
    """The evaluations of the last fifth of the time."""
    return frame.loc[frame["time"] >= 0.8 * frame["time"].max(), :]


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
                "95 %": interval_text(100 * scores), "server updates": last["round"].mean(),
                "local steps": last["local_steps"].mean(),
                "variance": end["variance"].mean(),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def claims(table: pd.DataFrame) -> list[Claim]:
    """The paper's statements about Figures 3a and 6."""
    rows = best_two(table.assign(accuracy=table["late accuracy"]))
    spread = by_setting(table.assign(spread=table["+-"]), "spread")
    for setting, variances in by_setting(table, "variance").items():
        for text, values in [
            ("FedBuff's clients' variance is larger", variances),
            ("FedBuff's accuracy varies more over seeds", spread[setting]),
        ]:
            pair = {name: values[name] for name in ("FedBuff", "FAVANO")}
            rows.append(Claim(text, pair, pair["FedBuff"] > pair["FAVANO"], setting))
    return rows


def figure(history: pd.DataFrame) -> Figure:
    """Accuracy and variance against time, a column per setting; bands are one deviation."""
    drawn = Figure(figsize=(8.5, 6), layout="constrained")
    settings = list(history["setting"].unique())
    panels = drawn.subplots(2, len(settings), squeeze=False, sharex=True)
    for column, setting in enumerate(settings):
        part = history[history["setting"] == setting]
        for i, (name, frame) in enumerate(part.groupby("algorithm", sort=False)):
            # Schedules of different seeds differ: means over evaluations of the same number.
            numbered: Any = frame.assign(number=frame.groupby("seed").cumcount())
            for row, metric in enumerate(("accuracy", "variance")):
                known = numbered.dropna(subset=[metric]).groupby("number")
                if not len(known):
                    continue
                time, mean = known["time"].mean(), known[metric].mean()
                deviation = known[metric].std().fillna(0)
                axes, look = panels[row, column], line_look(i)
                axes.plot(time, mean, **look, label=name)
                low = mean - deviation if row == 0 else (mean - deviation).clip(lower=mean / 10)
                axes.fill_between(
                    time, low, mean + deviation, color=look["color"], alpha=0.18, lw=0
                )
        panels[0, column].set(title=setting, ylabel="accuracy")
        panels[1, column].set(xlabel="time", ylabel="variance of the clients", yscale="log")
    legends([panels[0, 0]])
    return drawn


def build(
    history: pd.DataFrame, tuning: pd.DataFrame, facts: Mapping[str, Any]
) -> tuple[Report, dict[str, Figure]]:
    """The report and its figure."""
    table = results(history, tuning)
    report = Report(
        "CIFAR-10 over the paper's time, every method at its own rate (Figures 3a and 6 of FAVANO)",
        facts["scale"],
        "Accuracy on test images, percent, at the end and over the last fifth of the time. "
        "`+-`: deviation over seeds; `95 %`: interval of the mean of the late accuracy. "
        "`variance`: the sum over the clients of the squared distance of their models from the "
        "server's, over the last fifth of the time.",
        table,
    )
    tried: Any = tuning.assign(accuracy=100 * tuning["accuracy"])
    tried = tried.pivot_table(
        index=["setting", "variant"], columns="lr", values="accuracy", sort=False
    )
    tried = tried[sorted(tried.columns)].rename(columns=lambda lr: f"lr = {lr:g}").reset_index()
    report.section("Late accuracies on the seed that the rates are chosen on", tried)
    report.claims(claims(table))
    return report, {NAME: figure(history)}


def save(
    folder: pathlib.Path, history: pd.DataFrame, tuning: pd.DataFrame, facts: Mapping[str, Any]
) -> None:
    """Writes report, tables and figure."""
    history, tuning = rounded(history.filter(COLUMNS)), rounded(tuning)
    report, drawn = build(history, tuning, facts)
    report.save(folder, NAME, history, drawn, **facts)
    write_csv(folder / "rates.csv", tuning)


def redraw(folder: pathlib.Path) -> None:
    """Writes report and figure of the kept files again."""
    history, tuning = (pd.read_csv(folder / f"{name}.csv") for name in (NAME, "rates"))
    report, drawn = build(history, tuning, read_facts(folder, NAME))
    report.redraw(folder, NAME, drawn)
