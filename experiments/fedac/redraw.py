"""Redraws the reports and figures of FedAc's experiments from their kept CSV and JSON files."""

import pathlib

from experiments.fedac import a9a_report, agd_instability
from experiments.fedac.settings import SETTINGS


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of this paper."""
    for name in SETTINGS:
        if (folder / "a9a" / f"{name}.csv").exists():
            a9a_report.redraw(folder / "a9a", name)
    if (folder / "agd_instability").exists():
        agd_instability.redraw(folder / "agd_instability")
