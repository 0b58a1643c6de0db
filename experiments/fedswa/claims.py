"""Statements of the FedSWA paper on accuracies, and what the released program changes."""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from experiments.harness import Claim, interval_text

PROGRAM = "FedSWA-program"


class Published(NamedTuple):
    """An entry of a table: accuracy in percent, rounds to the target (None: more than were run)."""

    accuracy: float
    rounds: int | None = None


def gains(
    late: pd.DataFrame, published: Mapping[str, Published], base: str = "FedAvg"
) -> pd.DataFrame:
    """Points over a method with the 95 % interval of the differences between equal seeds.

    Args:
        late: accuracies (shares of 1) by ``method`` and ``seed`` in ``score``.
    """
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


def claims(table: pd.DataFrame) -> list[Claim]:
    """Statements of the paper on accuracies, for the methods that were run."""
    accuracy = dict(zip(table["method"], table["accuracy"].tolist(), strict=True))
    stated = [
        ("FedMoSWA", tuple(accuracy)),
        ("FedSWA", ("FedAvg", "FedSAM")),
        ("FedSWA", ("FedSAM-program",)),
    ]
    rows = []
    for method, rest in stated:
        others = {name: accuracy[name] for name in rest if name in accuracy and name != method}
        if method in accuracy and others:
            text = f"{method} is more accurate than {', '.join(others)}"
            holds = all(not accuracy[method] <= value for value in others.values())
            rows.append(Claim(text, {method: accuracy[method], **others}, holds))
    return rows
