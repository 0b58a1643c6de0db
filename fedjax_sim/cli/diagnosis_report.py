"""What ``fedjax-sim run --diagnose`` leaves behind: files, and tables for the terminal."""

import math
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from fedjax_sim.cli import report
from fedjax_sim.diagnostics.constants import Constants
from fedjax_sim.diagnostics.optimum import Optimum
from fedjax_sim.theory.overlays import FEDAVG, SHADOW, Overlay

if TYPE_CHECKING:
    from rich.table import Table

SUBOPTIMALITY = "training suboptimality"
# What is known everywhere of softmax regression, rather than at visited models only.
EVERYWHERE = ("L", "mu", "Q")


class Diagnosis(NamedTuple):
    """What was measured and which bounds apply; the same is in ``diagnosis.json`` and ``.csv``."""

    constants: Constants
    prescribed_lr: float  # of fedavg.convex_lr
    overlay: Overlay
    measured: pd.DataFrame  # columns quantity, seed, round, metric, value
    unmet: tuple[str, ...]


def write(output: pathlib.Path, run: Mapping[str, Any], best: Optimum, found: Diagnosis) -> None:
    """Writes ``diagnosis.json``, ``diagnosis.csv`` and ``diagnosis.png``.

    Args:
        output: the folder.
        run: rate, clients and local steps.
        best: the optimum that suboptimalities are measured from.
        found: the diagnosis.
    """
    constants = {
        name: {"value": value, "kind": _kind(name)} for name, value in found.constants.known.items()
    }
    applied = {bound.name: bound.of for bound in (*FEDAVG, SHADOW)}
    drawn = {row.bound for row in found.overlay.rows if row.valid}
    values = {
        "run": run,
        "constants": constants,
        "optimum": {
            "value": best.value,
            "gradient_norm": best.gradient_norm,
            "newton_steps": best.steps,
        },
        "prescribed_lr": found.prescribed_lr,
        "bounds": {name: of for name, of in applied.items() if name in drawn},
        "bounds_left_out": found.overlay.skipped,
        "assumptions_not_met": found.unmet,
    }
    report.write_json(output / "diagnosis.json", values)
    bounds = pd.DataFrame(
        [
            (f"bound: {row.bound}", row.round, SUBOPTIMALITY, row.value)
            for row in found.overlay.rows
            if row.valid
        ],
        columns=["quantity", "round", "metric", "value"],
    )
    frame = found.measured
    if len(bounds):  # which have no seed
        frame = pd.concat([frame.astype({"seed": "Int64"}), bounds])
    frame.to_csv(output / "diagnosis.csv", index=False)
    figure = bounds.bound_curves(found.measured, SUBOPTIMALITY, found.overlay, by="quantity")
    figure.savefig(output / "diagnosis.png", dpi=110)


def tables(found: Diagnosis) -> "list[Table]":
    """What the command prints: the constants, and which bounds apply.

    Example:
        >>> nothing = pd.DataFrame()
        >>> found = Diagnosis(Constants(L=2.0), 0.1, Overlay([], {"convex": "why"}), nothing, ())
        >>> [table.row_count for table in tables(found)]
        [2, 1]
    """
    from rich.table import Table

    constants = Table("constant", "value", "what it is", title="diagnosis of fedavg")
    for name, value in found.constants.known.items():
        constants.add_row(name, f"{value:.4g}", _kind(name))
    if not math.isnan(found.prescribed_lr):
        constants.add_row("prescribed lr", f"{found.prescribed_lr:.4g}", "Proposition 2.1's")
    bounds = Table("bound", "last value", "drawn")
    drawn = {row.bound: row for row in found.overlay.rows if row.valid}
    for row in drawn.values():
        bounds.add_row(row.bound, f"{row.value:.4g}", "yes")
    for name, reason in found.overlay.skipped.items():
        bounds.add_row(name, "", f"no: {reason}")
    return [constants, bounds]


def _kind(name: str) -> str:
    if name in EVERYWHERE:
        return "bound that holds at every model"
    if name in ("B", "Delta", "zeta_star"):
        return "of the initial model or the optimum"
    return "largest at visited models: a lower estimate"
