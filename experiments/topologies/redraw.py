"""Redraws the reports on networks from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.topologies import gap_report


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of these experiments."""
    if (folder / "gap").exists():
        redraw_report(folder / "gap", "gap", gap_report.build)
