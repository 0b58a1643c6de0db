"""Redraws the reports on the questions from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.questions.page import studies


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of these experiments."""
    for study in studies():
        for name in (study.name, f"{study.name}-full"):  # a study's other size, where there is one
            if (folder / name).exists():
                redraw_report(folder / name, name, study.build)
