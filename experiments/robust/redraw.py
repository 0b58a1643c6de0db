"""Redraws the reports on robust rules from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.robust import report


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of these experiments."""
    if (folder / "mnist").exists():
        redraw_report(folder / "mnist", "mnist", report.build)
