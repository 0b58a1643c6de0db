"""Redraws the report on language models from its CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.language import diloco_report


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of these experiments."""
    if (folder / "diloco").exists():
        redraw_report(folder / "diloco", "diloco", diloco_report.build)
