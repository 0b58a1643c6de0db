"""Redraws the report and figures from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.lojasiewicz import rates


def redraw(folder: pathlib.Path) -> None:
    """Redraws the report in ``folder``, the results of this paper."""
    redraw_report(folder, "rates", rates.build)
