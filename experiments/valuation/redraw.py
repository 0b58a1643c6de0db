"""Redraws the reports on valuation from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.valuation import report


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of these experiments."""
    for name in ("digits", "mnist_writers"):
        if (folder / name).exists():
            redraw_report(folder / name, name, report.build)
