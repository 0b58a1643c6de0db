"""Nesterov's method is not stable: trajectories from two close starts separate geometrically.

    python -m experiments.fedac.agd_instability

Theorem 3.8 of the thesis; beside it gradient descent, and FedAc-I's steps of one client, whose main
rate is smaller.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro

from experiments.fedac.unstable_descent import (
    accelerated_descent,
    construct,
    gradient_descent,
    predicted_separation,
    separation,
)
from experiments.harness.options import settings
from experiments.harness.redrawing import redraw_report, save_report
from experiments.harness.report import Report
from experiments.harness.tables import TOLERANCES, exact


class Case(NamedTuple):
    """A function of the construction."""

    condition: float  # kappa
    num_bumps: int  # K
    half_width: float


CASES = (Case(25.0, 20, 1e-10), Case(100.0, 12, 1e-8), Case(1e4, 12, 1e-7))


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this experiment."""

    distance: float = 1e-13  # of the two starts
    local_steps: tuple[int, ...] = (4, 64)  # of FedAc-I
    output: pathlib.Path = pathlib.Path("experiments/results/fedac")


def methods(options: Options) -> dict[str, Any]:
    """Nesterov's method and those that it is compared with."""
    fedac = {
        f"FedAc-I, K = {k}": partial(accelerated_descent, local_steps=k)
        for k in options.local_steps
    }
    return {"AGD": accelerated_descent, "gradient descent": gradient_descent, **fedac}


def measured(case: Case, options: Options) -> pd.DataFrame:
    """The separation of the iterates of every method after every step."""
    bumps = construct(*case)
    parts = []
    for name, method in methods(options).items():
        result = separation(method, bumps, options.distance)
        steps = np.arange(len(result.main))
        aggregate, main = predicted_separation(case.condition, steps / 3)
        # The formula holds for every third step of one method.
        valid = (name == "AGD") & (steps > 0) & (steps % 3 == 0)
        parts.append(
            pd.DataFrame(
                case._asdict()
                | {
                    "method": name,
                    "step": steps,
                    "main": result.main,
                    "aggregate": result.aggregate,
                }
                | {"main, formula": np.where(valid, main, np.nan)}
                | {"aggregate, formula": np.where(valid, aggregate, np.nan)}
            )
        )
    return pd.concat(parts, ignore_index=True)


def figure(table: pd.DataFrame) -> Any:
    """Separation of the main iterates against the step."""
    groups = list(table.groupby("condition", sort=False))
    drawn, axes = plt.subplots(
        1, len(groups), figsize=(11, 3.4), layout="constrained", squeeze=False
    )
    for axis, (condition, group) in zip(axes[0], groups, strict=True):
        for i, (name, part) in enumerate(group.groupby("method", sort=False)):
            axis.semilogy(part["step"], part["main"], f"C{i}", label=str(name))
        formula = group.dropna()
        axis.semilogy(formula["step"], formula["main, formula"], "kx", label="formula")
        axis.set(title=f"condition number {condition:g}", xlabel="step")
    axes[0, 0].set(ylabel="|difference of main iterates| / initial")
    axes[0, 0].legend(frameon=False, fontsize=8)
    return drawn


def build(tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> tuple[Report, Any]:
    """Text and figure."""
    table = tables[""]
    last = table.take(np.flatnonzero(table["step"] == 3 * table["num_bumps"]))
    report = Report(
        "Instability of Nesterov's method",
        f"L = 1, starts 1 and 1 - {facts['options']['distance']:g}: differences of the iterates "
        "after 3 K steps, divided by that of the starts, beside the theorem's.  The function is "
        "made for AGD, not for the other methods.",
        last,
    )
    grown = last[last["method"] == "AGD"]
    apart = np.abs(grown["main"] / grown["main, formula"] - 1)
    close = TOLERANCES["formula beside a run, relative"]
    report.claims(
        exact(
            "Theorem 3.8: the difference of AGD's iterates grows by the theorem's factor",
            f"relative difference {value:.2g}", [close - value], f"condition {condition:g}",
            f"within {close:g}",
        )
        for condition, value in zip(grown["condition"], apart, strict=True)
    )  # fmt: skip
    return report, {"agd_instability": figure(table)}


def redraw(folder: pathlib.Path) -> None:
    """Writes text and figure again from the kept CSV and JSON files."""
    redraw_report(folder, "agd_instability", build)


def main(options: Options) -> None:
    """Measures and writes the report."""
    table = pd.concat([measured(case, options) for case in CASES], ignore_index=True)
    folder = options.output / "agd_instability"
    save_report(folder, "agd_instability", {"": table}, build, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options))
