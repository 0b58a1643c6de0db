"""Redraws the reports and figures of this paper from their CSV and JSON files.

Two reports need values that git does not keep: nothing is redrawn of the first kept
``loss_surface``, only the figure of ``stability``.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.fedswa import (
    averages,
    comparison,
    digits,
    drift,
    factorial,
    grids,
    stability_tables,
    surface_tables,
)
from experiments.fedswa.stability_runs import Options
from experiments.harness import read_facts, redraw_report
from experiments.harness.figures import save

BUILDS = {"digits": digits.build, "drift": drift.build, "factorial": factorial.build}


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of this paper."""
    for path in sorted(folder.rglob("*.json")):
        name, facts = path.stem, read_facts(path.parent, path.stem)
        if name in BUILDS:
            redraw_report(path.parent, name, BUILDS[name])
        elif "setting" in facts:
            kinds = {"surfaces": surface_tables, "over": grids, "means": averages}
            kind = next((kinds[fact] for fact in kinds if fact in facts), comparison)
            redraw_report(path.parent, name, kind.build)
        elif name == "stability":
            table = pd.read_csv(path.with_suffix(".csv"))
            save(stability_tables.figure(table, _stability(facts)), path.with_suffix(".png"))


def _stability(facts: Mapping[str, Any]) -> Options:
    """Options from the file, where infinity is null."""
    known: dict[str, Any] = dict(facts["options"])
    known["skews"] = tuple(math.inf if skew is None else skew for skew in known["skews"])
    return Options(**known)
