"""Redraws the reports and figures of the report's experiments from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.heterogeneity import femnist_report, perceptron


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of this paper."""
    if (folder / "perceptron").exists():
        perceptron.redraw(folder / "perceptron")
    for path in sorted((folder / "femnist").glob("*.json")):
        redraw_report(folder / "femnist", path.stem, femnist_report.build)
