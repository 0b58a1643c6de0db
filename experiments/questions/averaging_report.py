"""Report, figure and page on where averages of local runs settle."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from experiments.harness import Estimate, Report
from experiments.questions.averaging_problem import moments
from experiments.questions.averaging_theory import limit, small_step_limit
from experiments.questions.page import Answer, Page, Study, together

LR, STEPS = 0.1, 16  # the centre
NEAR, PRECISE = 0.05, 0.02  # a small displacement; a relative error of a size that is known
COLOURS = {4: "C0", 16: "C1", 64: "C2"}
CELL = ["method", "lr", "num_steps", "num_clients"]
Tables = Mapping[str, pd.DataFrame]


def cells(rows: pd.DataFrame) -> Any:
    """A row per cell: predicted length, measured size over it, cosine, relative error, slope."""
    found = []
    groups: Any = rows.groupby(CELL)
    for values, own in groups:
        predicted, mean = own["predicted"].to_numpy(), own["mean"].to_numpy()
        first = own.iloc[0]
        length = np.linalg.norm(predicted)
        half = stats.t.ppf(0.975, first["seeds"] - 1)
        found.append({
            **dict(zip(CELL, values, strict=True)),
            "seeds": first["seeds"],
            "predicted": length,
            "size": first["size"],
            "low": first["size"] - half * first["error of size"],
            "high": first["size"] + half * first["error of size"],
            "error of size": first["error of size"],
            "cosine": mean @ predicted / np.linalg.norm(mean) / length,
            "slope": first["slope"],
            "slope, low": first["slope"] - half * first["error of slope"],
            "slope, high": first["slope"] + half * first["error of slope"],
        })  # fmt: skip
    return pd.DataFrame(found)


def of(table: Any, method: str, lr: float, num_steps: int, num_clients: int) -> Any:
    """The row of one cell."""
    return table.set_index(CELL).loc[(method, lr, num_steps, num_clients)]


def ratio(one: Any, other: Any) -> Estimate:
    """Length of one cell's displacement over that of another with independent draws."""
    value = one["size"] * one["predicted"] / (other["size"] * other["predicted"])
    parts = [cell["error of size"] / cell["size"] for cell in (one, other)]
    half = stats.t.ppf(0.975, min(one["seeds"], other["seeds"]) - 1) * np.hypot(*parts) * value
    return Estimate(value, value - half, value + half)


def extrapolated(rows: Any, num_clients: int) -> Estimate:
    """Displacement at half of the rate over that of 4/3 and -1/3 times the models of two rates.

    The interval is that of the extrapolated displacement's component along the predicted one.
    """
    half_rate, whole = (
        rows[
            (rows["method"] == "FedAvg")
            & (rows["lr"] == lr)
            & (rows["num_steps"] == STEPS)
            & (rows["num_clients"] == num_clients)
        ].sort_values("coordinate")
        for lr in (LR / 2, LR)
    )
    direction = half_rate["predicted"].to_numpy()
    direction = direction / np.linalg.norm(direction)
    left = direction @ (4 * half_rate["mean"].to_numpy() - whole["mean"].to_numpy()) / 3
    lengths = [np.linalg.norm(part["predicted"]) for part in (half_rate, whole)]
    errors = [
        part["error of size"].iloc[0] * length * weight
        for part, length, weight in zip((half_rate, whole), lengths, (4 / 3, 1 / 3), strict=True)
    ]
    width = stats.t.ppf(0.975, half_rate["seeds"].iloc[0] - 1) * np.hypot(*errors)
    before = half_rate["size"].iloc[0] * lengths[0]
    return Estimate(left / before, (left - width) / before, (left + width) / before)


def build(tables: Tables, facts: Mapping[str, Any]) -> tuple[Report, dict[str, Figure]]:
    """The report and its figure."""
    rows = tables[""]
    table = cells(rows)
    report = Report(
        "What does averaging over clients not remove?",
        f"{facts['steps']} local steps of every client. Size is the measured displacement along "
        "the predicted one, over its length; the interval is Student's over seeds. The slope is "
        "the change of the trace of covariance times Hessian, to first order.",
        table.drop(columns="error of size"),
    )
    return report, {"averaging": figure(table)}


def figure(table: Any) -> Figure:
    """Displacement against clients, and against the length of a visit for two methods."""
    drawn, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    known = moments()
    largest = int(table["num_clients"].max())
    clients = np.geomspace(1, largest, 25)
    for steps, colour in COLOURS.items():
        own = table[
            (table["method"] == "FedAvg") & (table["lr"] == LR) & (table["num_steps"] == steps)
        ]
        _points(left, own["num_clients"], own, colour, "o")
        line = [np.linalg.norm(limit(known, LR, steps, number)) for number in clients]
        left.plot(clients, line, color=colour, label=f"K = {steps}")
        floor = np.linalg.norm(limit(known, LR, steps, np.inf))
        left.axhline(floor, color=colour, linestyle=":", linewidth=1)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="clients M",
        ylabel="distance of the limit from the optimum",
    )
    left.legend(title=f"FedAvg, rate {LR:g}")
    lengths = np.array([2, 4, 8, 16, 32, 64, 128])
    for method, colour, marker in (("FedAvg", "C3", "o"), ("SCAFFOLD", "C4", "s")):
        own = table[
            (table["method"] == method) & (table["lr"] == LR) & (table["num_clients"] == largest)
        ]
        _points(right, own["num_steps"], own, colour, marker)
        line = [
            np.linalg.norm(limit(known, LR, int(k), largest, scaffold=method == "SCAFFOLD"))
            for k in lengths
        ]
        right.plot(lengths, line, color=colour, label=method)
    law = [np.linalg.norm(small_step_limit(known, LR, int(k))) for k in lengths]
    right.plot(lengths, law, color="0.5", linestyle="--", label="small steps, FedAvg")
    alone = np.linalg.norm(limit(known, LR, STEPS, 1))
    right.axhline(alone, color="0.5", linestyle=":", label="one client")
    right.set(xscale="log", xlabel="local steps K", ylim=(0.004, 0.3))
    right.set_xticks(lengths, [str(k) for k in lengths])
    right.minorticks_off()
    right.legend(title=f"{largest:,} clients, rate {LR:g}")
    drawn.tight_layout()
    return drawn


def _points(axes: Any, x: Any, own: Any, colour: str, marker: str) -> None:
    sizes = own["size"] * own["predicted"]
    errors = [
        (own["size"] - own["low"]) * own["predicted"],
        (own["high"] - own["size"]) * own["predicted"],
    ]
    axes.errorbar(x, sizes, errors, fmt=marker, color=colour, markersize=5, capsize=2)


def page(tables: Tables, facts: Mapping[str, Any]) -> Page:
    """The sentences of the page."""
    rows = tables[""]
    table = cells(rows)
    most = int(table["num_clients"].max())
    middle = int(sorted(table["num_clients"].unique())[-3])
    centre = of(table, "FedAvg", LR, STEPS, most)
    alone, some = (of(table, "FedAvg", LR, STEPS, number) for number in (1, middle))
    longest = max(COLOURS)
    long_alone, long = (of(table, "FedAvg", LR, longest, number) for number in (1, most))
    scaffold, long_scaffold = (of(table, "SCAFFOLD", LR, k, most) for k in (STEPS, longest))
    precise = table[table["error of size"] < PRECISE]
    near, far = table[table["predicted"] < NEAR], table[table["predicted"] >= NEAR]
    gain, more, at_length = ratio(alone, centre), ratio(some, centre), ratio(long_alone, long)
    control, against_one = ratio(scaffold, centre), ratio(long_scaffold, long_alone)
    left = extrapolated(rows, most)
    rates = sorted(table["lr"].unique(), reverse=True)
    sizes = [of(table, "FedAvg", lr, STEPS, most)[["size", "low", "high"]] for lr in rates]
    by_rate = ", ".join(
        f"{Estimate(*size)} at {lr:g}" for size, lr in zip(sizes, rates, strict=True)
    )
    inside = [_within(part, width) for part, width in ((near, 0.03), (far, 0.15))]
    slopes = (table["slope, high"] < 0).sum()
    answers = [
        Answer(
            "The displacement points where the third derivative says: a cosine of at least 0.99.",
            f"least {precise['cosine'].min():.4f} of the {len(precise)} cells whose size is known "
            f"to {PRECISE:.0%}",
            bool((precise["cosine"] >= 0.99).all()),
        ),
        Answer(
            f"Its size is predicted within 3 % below {NEAR:g}, within 15 % elsewhere.",
            f"{near['size'].min():.3f} to {near['size'].max():.3f} of the prediction, and "
            f"{far['size'].min():.3f} to {far['size'].max():.3f}",
            together(*inside),
        ),
        Answer(
            f"{most:,} clients are nearer than one by 2.5 times, than {middle} by less than 5 %; "
            f"with K = {longest} than one by less than 1.3 times.",
            f"{gain}; {more}; {at_length}",
            together(
                gain.between(2.375, 2.625), more.between(0, 1.05), at_length.between(0, 1.3)
            ),
        ),
        Answer(
            f"SCAFFOLD settles 1.41 times as far away, and with K = {longest} no nearer than one "
            "client of FedAvg.",
            f"{control}; {against_one} of one client",
            together(control.between(1.34, 1.48), against_one.between(1, np.inf)),
        ),
        Answer(
            "Two rates, weighted 4/3 and -1/3, leave at most a third of the smaller rate's "
            "displacement.",
            f"{left} of it",
            left.between(-1 / 3, 1 / 3),
        ),
        Answer(
            "The displacement lowers the trace of covariance times Hessian in every cell.",
            f"{slopes} of {len(table)} with an interval below 0",
            bool(slopes == len(table)) or (None if (table["slope, low"] < 0).all() else False),
        ),
    ]  # fmt: skip
    return Page(
        found=f"With equal clients, {STEPS} local steps and rate {LR:g}, {most:,} clients settle "
        f"at 1 / {gain} of one client's distance from the optimum, {middle} clients at {more} "
        f"times that, and SCAFFOLD at {control} times: averaging removes the server's noise, not "
        "the clients' spread within a visit.",
        refuted_by="A smooth convex problem with equal clients and full participation whose "
        "displacement over the predicted one (`experiments/questions/averaging_theory.py`) does "
        f"not tend to 1 as the rate falls; here it is {by_rate}.",
        caption="Points: measured, with 95 % intervals. Lines: predicted from moments at the "
        "optimum, nothing fitted; dotted on the left: infinitely many clients. Right: the law of "
        "small steps grows with K without bound, the limit stops at about that of one client.",
        answers=answers,
        setting=f"Logistic regression on 1,797 digits with eight features; {facts['steps']:,} "
        f"local steps per client, {facts['seeds']} seeds of {most:,} clients and up to "
        f"{int(table['seeds'].max()):,} of one; one problem, one example per step.",
    )


def _within(part: Any, width: float) -> bool | None:
    """True if all sizes are within the width of 1, False if an interval lies outside."""
    if ((part["size"] - 1).abs() <= width).all():
        return True
    outside = (part["low"] > 1 + width) | (part["high"] < 1 - width)
    return False if outside.any() else None


STUDY = Study(
    "averaging",
    "What does averaging over clients not remove?",
    "Clients with equal data take local steps with noisy gradients. Where does the average settle, "
    "how does that depend on the number of clients, and do control variates help?",
    build,
    page,
)
