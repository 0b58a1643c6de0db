"""Redraws the reports on central privacy from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.privacy.central_report import build


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of these experiments."""
    for facts in sorted(folder.glob("*/*.json")):
        redraw_report(facts.parent, facts.stem, build)
