"""Statements of the FedSWA paper on accuracies, and what the released program changes."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from experiments.harness import Claim, interval_text, means, paired

PROGRAM = "FedSWA-program"


class Published(NamedTuple):
    """An entry of a table: accuracy in percent, rounds to the target (None: more than were run)."""

    accuracy: float
    rounds: int | None = None


def gains(
    late: pd.DataFrame, published: Mapping[str, Published], base: str = "FedAvg"
) -> pd.DataFrame:
    """Points over a method with the 95 % interval of the differences between equal seeds."""
    by = late.pivot(index="seed", columns="method", values="score")
    if base not in by:
        return pd.DataFrame()
    rows = []
    for method in (name for name in late["method"].unique() if name != base):
        points = 100 * (by[method] - by[base]).dropna()
        row = {"method": method, f"points over {base}": f"{points.mean():+.2f}"}
        row |= {"interval": interval_text(points), "seeds": len(points), "paper": ""}
        if {method, base} <= set(published):
            printed = published[method].accuracy - published[base].accuracy
            row["paper"] = f"{printed:+.2f}"
        rows.append(row)
    return pd.DataFrame(rows)


def released_variant(accuracy: Mapping[str, float], published: Mapping[str, Published]) -> str:
    """The gains of FedSWA as printed and as released beside the printed one; else empty."""
    if not {"FedAvg", "FedSWA", PROGRAM} <= set(accuracy) or "FedSWA" not in published:
        return ""
    printed = published["FedSWA"].accuracy - published["FedAvg"].accuracy
    paper, program = (accuracy[name] - accuracy["FedAvg"] for name in ("FedSWA", PROGRAM))
    return (
        f"The printed gain of FedSWA over FedAvg is {printed:.2f} points.  Here the paper's FedSWA "
        f"gains {paper:+.2f} points and the released one {program:+.2f} points, so the step from "
        f"the paper's method to the released one is {program - paper:+.2f} points.  {PROGRAM} is "
        "FedSWA in `main_FedSWA.py`, the second of the two programs in the authors' repository: "
        "the first step of a visit has twice the rate, rho is 0 and alpha is 1; its cosine "
        "schedule over rounds is not part of the variant, all methods have the paper's decay."
    )


def claims(late: pd.DataFrame, gaps: pd.DataFrame) -> list[Claim]:
    """Statements of the paper on accuracy and generalisation, for the methods that were run.

    Variants of ours, which have a hyphen, are compared with nothing but the row for FedSAM's.
    """
    points, apart = (
        table.pivot(index="seed", columns="method", values="score") for table in (late, gaps)
    )
    points = 100 * points
    printed = tuple(name for name in late["method"].unique() if "-" not in name)
    stated = [
        ("FedMoSWA", printed),
        ("FedSWA", ("FedAvg", "FedSAM")),
        ("FedSWA", ("FedSAM-program",)),
    ]
    rows = []
    for method, rest in stated:
        others = [name for name in rest if name in points and name != method]
        if method in points and others:
            text = f"{method} is more accurate than {', '.join(others)}"
            found = means(points, [method, *others])
            ahead = [(points[method] - points[other]).dropna() for other in others]
            rows.append(paired(text, found, ahead))
    for method in ("FedSWA", "FedMoSWA"):
        if {method, "FedAvg"} <= set(apart):
            text = f"{method}'s generalisation gap is smaller than FedAvg's"
            found = means(apart, [method, "FedAvg"])
            rows.append(paired(text, found, [(apart["FedAvg"] - apart[method]).dropna()]))
    return rows
