"""The answers on networks in l1 balls that were expected before the run, beside the results."""

from typing import Any

import numpy as np
import pandas as pd

from experiments.harness import Estimate
from experiments.questions.feddualavg_networks_tables import over, points, scores, started
from experiments.questions.page import Answer, together

MODELS = ("softmax", "network")
DUAL, DUAL_OSP, MID, MID_OSP = "FedDualAvg", "FedDualAvg-OSP", "FedMiD", "FedMiD-OSP"
AVERAGED = "FedDualAvg, averaged"
FEWER = 1 / 160  # of the share of 16 units: less than a unit in one of five seeds
Cells = list[dict[str, Any]]


def answers(table: pd.DataFrame) -> list[Answer]:
    """All answers in the order of the module that runs the study."""
    smallest, skewed = table["radius"].min(), table["alpha"].min()
    long, short = table["num_steps"].max(), table["num_steps"].min()
    corner = {"radius": smallest, "num_steps": long}
    of = {model: points(table, model=model, alpha=skewed, **corner)[0] for model in MODELS}

    def each(metric: str, left: str, right: str, cells: Cells) -> list[Estimate]:
        return [over(table, metric, left, right, **cell) for cell in cells]

    def corners(left: str, right: str) -> dict[str, Estimate]:
        return {m: over(table, "train loss", left, right, **cell) for m, cell in of.items()}

    sparse = each("density", DUAL, MID, points(table, alpha=skewed, num_steps=long))
    lower = corners(DUAL, MID)
    lag = {
        model: each("train loss", DUAL, MID,
                    points(table, model=model, radius=smallest, num_steps=short))
        for model in MODELS
    }  # fmt: skip
    units = [
        Estimate.of(np.subtract(*(
            scores(table, "live units", method=name, **cell) for name in (DUAL, MID)
        )))
        for cell in points(table, model="network", radius=smallest)
    ]  # fmt: skip
    failing, near = corners(DUAL_OSP, DUAL), corners(MID_OSP, MID)
    late = points(table, model="network", num_steps=long)
    averages = each("train loss", AVERAGED, DUAL, late)
    far = [scores(table, "distance", method=AVERAGED, **cell).mean() for cell in late]
    begun = _starts(table)
    return [
        Answer(
            f"With Dirichlet {skewed:g} and K = {long} FedDualAvg's density is at most 0.8 of "
            "FedMiD's in both models and all balls.",
            _range(sparse),
            together(*(one.between(0, 0.8) for one in sparse)),
        ),
        Answer(
            f"There its training loss is below FedMiD's at radius {smallest:g}, in both models.",
            _named(lower),
            together(*(one.between(0, 1) for one in lower.values())),
        ),
        Answer(
            f"At K = {short} and radius {smallest:g} its training loss is above FedMiD's in the "
            "network and within 5 % in softmax regression, for both kinds of clients.",
            "; ".join(f"{model} {_range(found)}" for model, found in lag.items()),
            together(
                *(one.between(1, np.inf) for one in lag["network"]),
                *(one.between(0.95, 1.05) for one in lag["softmax"]),
            ),
        ),
        Answer(
            f"At radius {smallest:g} it has fewer live hidden units, in all {len(units)} cells.",
            f"difference of the shares {_range(units, '.2f')}",
            together(*(one.between(-1, -FEWER) for one in units)),
        ),
        Answer(
            "In the corner of the second row FedDualAvg-OSP has at least 1.1 times FedDualAvg's "
            "training loss; FedMiD-OSP is within 5 % of FedMiD.",
            f"{_named(failing)}; FedMiD-OSP {_named(near)}",
            together(
                *(one.between(1.1, np.inf) for one in failing.values()),
                *(one.between(0.95, 1.05) for one in near.values()),
            ),
        ),
        Answer(
            "The averaged model has at least 1.1 times the last one's training loss in all cells "
            f"of the network with K = {long}.",
            f"{_range(averages)}; at {min(far):.2f} to {max(far):.2f} of the last model's norm "
            "from the last model of its run",
            together(*(one.between(1.1, np.inf) for one in averages)),
        ),
        Answer(
            "Scaled and near-0 starts change FedDualAvg's training loss by less than 10 %; a dual "
            "outside of the ball raises it.",
            "; ".join(f"{name} {one[DUAL]}, FedMiD {one[MID]}" for name, one in begun.items()),
            together(
                begun["scaled"][DUAL].between(0.9, 1.1),
                begun["near 0"][DUAL].between(0.9, 1.1),
                begun["outside"][DUAL].between(1, np.inf),
            ),
        ),
    ]  # fmt: skip


def _starts(table: pd.DataFrame) -> dict[str, dict[str, Estimate]]:
    """The training loss of the other starts over the projected one's, by start and method."""
    rows: Any = table[table["start"] != "projected"]
    found: dict[str, dict[str, Estimate]] = {}
    for row in rows.to_dict("records"):
        point = {name: row[name] for name in ("model", "radius", "alpha", "num_steps", "method")}
        ratio = started(table, "train loss", row["start"], **point)
        found.setdefault(row["start"], {})[row["method"]] = ratio
    return found


def _range(found: list[Estimate], spec: str = "") -> str:
    """The smallest and the largest of several estimates."""
    ordered = sorted(found)
    return f"{ordered[0]:{spec}} to {ordered[-1]:{spec}}"


def _named(found: dict[str, Estimate]) -> str:
    return ", ".join(f"{model} {value}" for model, value in found.items())
