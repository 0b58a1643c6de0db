"""Report, figure and page on FedAc's schedules without strong convexity."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.harness import Estimate, Report, counted
from experiments.questions.page import Answer, Page, Study, together

COLOURS = {
    "FedAvg": "C0", "FedAvg, learned": "C9", "augmented": "C1", "constant": "C2", "direct": "C3",
    "learned": "k",
}  # fmt: skip
TOLERANCE = 0.15  # of two powers that count as equal
Tables = Mapping[str, pd.DataFrame]


def of(gaps: pd.DataFrame, method: str, batch: int, rounds: int) -> np.ndarray:
    """The gaps of one cell, ``[seeds]``."""
    mine = (gaps["method"] == method) & (gaps["batch"] == batch) & (gaps["rounds"] == rounds)
    row = gaps.loc[mine].iloc[0]
    return row[[name for name in gaps if name.startswith("seed ")]].to_numpy(dtype=float)


def ratio(gaps: pd.DataFrame, one: str, other: str, batch: int, rounds: int) -> Estimate:
    """The geometric mean of the quotients of two methods' gaps over seeds."""
    logs = np.log(of(gaps, one, batch, rounds) / of(gaps, other, batch, rounds))
    return Estimate(*np.exp(Estimate.of(logs)).tolist())


def powers(gaps: pd.DataFrame, method: str, batch: int) -> np.ndarray:
    """The slope of log gap against log R of every seed, ``[seeds]``."""
    rounds = sorted(gaps["rounds"].unique().tolist())
    logs = np.log([of(gaps, method, batch, number) for number in rounds])
    return np.polyfit(np.log(rounds), logs, 1)[0]


def growth(schedules: pd.DataFrame, batch: int, rounds: int) -> Estimate:
    """The power of the learned gamma over the first half of the rounds, over repeated learning."""
    fits = []
    for _, part in _learned(schedules, batch, rounds).groupby("repeat"):
        first = part.loc[part["round"] < rounds // 2]
        fits.append(np.polyfit(np.log(first["round"] + 1), np.log(first["gamma"]), 1)[0])
    return Estimate.of(fits)


def fall(schedules: pd.DataFrame, batch: int, rounds: int) -> Estimate:
    """The learned rate's median in the last quarter of the rounds over its median in all."""
    quotients = []
    for _, part in _learned(schedules, batch, rounds).groupby("repeat"):
        last = part.loc[part["round"] >= rounds - rounds // 4, "lr"]
        quotients.append(last.median() / part["lr"].median())
    return Estimate.of(quotients)


def _learned(schedules: pd.DataFrame, batch: int, rounds: int) -> pd.DataFrame:
    mine = (schedules["batch"] == batch) & (schedules["rounds"] == rounds)
    return schedules.loc[mine & (schedules["method"] == "learned")]


def build(tables: Tables, facts: Mapping[str, Any]) -> tuple[Report, dict[str, Figure]]:
    """The report and its figure."""
    gaps, rows = tables[""], []
    for row in gaps.to_dict("records"):
        values = of(gaps, row["method"], row["batch"], row["rounds"])
        against = ratio(gaps, row["method"], "augmented", row["batch"], row["rounds"])
        rows.append(
            {name: row[name] for name in ("batch", "rounds", "method", "lr", "second")}
            | {"gap": f"{Estimate.of(values)}", "over augmented": f"{against}"}
        )
    slopes = [
        {"batch": batch, "method": method, "power of R": f"{Estimate.of(found)}"}
        for batch in sorted(gaps["batch"].unique().tolist())
        for method in gaps["method"].unique().tolist()
        for found in [powers(gaps, method, batch)]
    ]
    report = Report(
        "Which schedules does FedAc want without strong convexity?",
        f"Gaps F - F* over {facts['seeds']} seeds, with Student's 95 % intervals; the second "
        "number is lambda (augmented), the number for the strong convexity (constant) or the slope "
        "of gamma over the rounds (direct).  Over augmented: geometric means over seeds.",
        pd.DataFrame(rows),
    )
    report.section("Powers of the number of rounds", pd.DataFrame(slopes))
    return report, {"fedac_schedules": figure(tables)}


def figure(tables: Tables) -> Figure:
    """Gaps against rounds, and the schedules of the longest runs with the least noise."""
    gaps, schedules = tables[""], tables["schedules"]
    batches = sorted(gaps["batch"].unique().tolist())
    rounds = sorted(gaps["rounds"].unique().tolist())
    drawn, axes = plt.subplots(1, 3, figsize=(11, 3.8), layout="constrained")
    axes[1].sharey(axes[0])
    for axis, batch in zip(axes, (batches[0], batches[-1]), strict=False):
        for method, colour in COLOURS.items():
            found = [Estimate.of(of(gaps, method, batch, number)) for number in rounds]
            means = np.array([x.mean for x in found])
            errors = [means - [x.low for x in found], [x.high for x in found] - means]
            style = "--" if "learned" in method else "-"
            axis.errorbar(rounds, means, errors, color=colour, ls=style, capsize=2, label=method)
        title = f"{counted(batch, 'example')} per step"
        axis.set(xscale="log", yscale="log", xlabel="rounds R", title=title)
        axis.set_xticks(rounds, [str(number) for number in rounds])
        axis.minorticks_off()
    axes[0].set_ylabel("F - F*")
    axes[0].legend(fontsize=8)
    mine = (schedules["batch"] == batches[-1]) & (schedules["rounds"] == rounds[-1])
    for name, colour, label in (
        ("lr", "C0", "eta"),
        ("gamma", "C1", "gamma"),
        ("beta", "C2", "beta - 1"),
    ):
        given = schedules.loc[mine & (schedules["method"] == "direct")]
        axes[2].plot(given["round"] + 1, given[name], color=colour, ls="--")
        found = schedules.loc[mine & (schedules["method"] == "learned")]
        for repeat, part in found.groupby("repeat"):
            axes[2].plot(
                part["round"] + 1,
                part[name],
                color=colour,
                lw=1,
                label=label if not repeat else None,
            )
    axes[2].set(
        xscale="log", yscale="log", xlabel="round",
        title=f"schedules, R = {rounds[-1]}, {batches[-1]} examples",
    )  # fmt: skip
    axes[2].legend(fontsize=8)
    return drawn


def page(tables: Tables, facts: Mapping[str, Any]) -> Page:
    """The sentences of the page."""
    gaps, schedules = tables[""], tables["schedules"]
    batches = sorted(gaps["batch"].unique().tolist())
    rounds = sorted(gaps["rounds"].unique().tolist())
    cells = [(batch, number) for batch in batches for number in rounds]
    noisy, quiet, most = batches[0], batches[-1], rounds[-1]
    against = {cell: ratio(gaps, "direct", "augmented", *cell) for cell in cells}
    behind = [cell for cell in cells if against[cell].low > 1]
    differences = {
        batch: Estimate.of(powers(gaps, "direct", batch) - powers(gaps, "augmented", batch))
        for batch in batches
    }
    left = {cell: ratio(gaps, "learned", "direct", *cell) for cell in cells}
    early = [(quiet, number) for number in rounds[:2]]
    more = [left[batch, most].high < left[batch, rounds[0]].low for batch in batches]
    faster = {
        batch: Estimate.of(powers(gaps, "FedAvg", batch) - powers(gaps, "direct", batch))
        for batch in batches
    }
    power, falling = growth(schedules, quiet, most), fall(schedules, quiet, most)
    constant = ratio(gaps, "constant", "augmented", quiet, most)
    learned, plain = (
        {batch: ratio(gaps, method, "augmented", batch, most) for batch in batches}
        for method in ("learned", "FedAvg, learned")
    )
    answers = [
        Answer(
            f"1. The direct method's gap is at most the augmented one's in all {len(cells)} cells.",
            f"quotients {_range(against.values())}; behind in {len(behind)}",
            together(*(value.between(0, 1) for value in against.values())),
        ),
        Answer(
            f"2. The powers of R of both differ by at most {TOLERANCE:g}.",
            "; ".join(f"batch {batch}: {value}" for batch, value in differences.items()),
            together(*(value.between(-TOLERANCE, TOLERANCE) for value in differences.values())),
        ),
        Answer(
            f"3. Learned schedules have at least 0.5 of the direct method's gap at batch {quiet} "
            f"and {rounds[0]} or {rounds[1]} rounds; less is left with {most} rounds.",
            "; ".join(f"{left[cell]}" for cell in early)
            + f"; with {most} rounds "
            + ", ".join(f"{left[batch, most]} (batch {batch})" for batch in batches),
            together(*(left[cell].between(0.5, np.inf) for cell in early), *more),
        ),
        Answer(
            "4. The learned gamma rises as r^p, p from 0.5 to 1.5, and the learned rate falls to "
            "less than half of its median in the last quarter.",
            f"p = {power}; {falling} of the median",
            together(power.between(0.5, 1.5), falling.between(0, 0.5)),
        ),
        Answer(
            f"5. Batch {quiet}: the direct method's power of R is steeper than FedAvg's by at "
            f"least 0.5; batch {noisy}: by less.",
            "; ".join(f"batch {batch}: {value}" for batch, value in faster.items()),
            together(
                faster[quiet].between(0.5, np.inf), faster[noisy].between(-np.inf, 0.5)
            ),
        ),
    ]  # fmt: skip
    return Page(
        found=f"After {most} rounds FedAc with polynomial schedules has {against[quiet, most]} "
        f"(batch {quiet}) and {against[noisy, most]} (batch {noisy}) times the gap of FedAc on the "
        f"augmented objective, with learned schedules {learned[quiet]} and {learned[noisy]}, and "
        f"FedAvg with learned rates {plain[quiet]} and {plain[noisy]}.",
        refuted_by="A smooth convex problem with equal clients whose direct method, with two tuned "
        "numbers, needs a higher power of R than the augmented one.",
        caption="Left and middle: gaps after R rounds, each point tuned for its R, with 95 % "
        "intervals. Right: the schedules that Adam learned on derivatives of whole runs, three "
        "times with other seeds; dashed: the polynomials where it began.",
        answers=answers,
        setting=f"Logistic regression, 48 features of variances 1 / i^2, 8 clients with equal "
        f"data, K = 16, {facts['seeds']} seeds for the scores, {facts['tuning_seeds']} other ones "
        f"for every choice, {facts['updates']} updates of Adam; the learned schedules fit this one "
        f"problem. A constant number for the strong "
        f"convexity, without augmentation, has {constant} times the augmented gap (batch {quiet}, "
        f"{most} rounds).",
    )


def _range(values: Any) -> str:
    """The least and the largest estimate."""
    ordered = sorted(values, key=lambda value: value.mean)
    return f"{ordered[0]} to {ordered[-1]}"


STUDY = Study(
    "fedac_schedules",
    "Which schedules does FedAc want without strong convexity?",
    "FedAc's numbers follow from the strong convexity. Without any, the thesis adds a quadratic "
    "to the objective and conjectures that this is not needed. Is it, and which schedules are "
    "best?",
    build,
    page,
)
