"""Redraws the reports on the questions from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.questions.page import studies


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of these experiments."""
    for study in studies():
        if (folder / study.name).exists():
            redraw_report(folder / study.name, study.name, study.build)
