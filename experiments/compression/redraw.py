"""Redraws the reports on compression from their CSV and JSON files."""

import pathlib

from experiments.compression import digits
from experiments.harness.redrawing import redraw_report


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of these experiments."""
    if (folder / "digits").exists():
        redraw_report(folder / "digits", "digits", digits.build)
