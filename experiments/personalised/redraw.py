"""Redraws the reports of the personalised methods from their kept CSV and JSON files."""

import pathlib

from experiments.personalised import report


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of this benchmark."""
    report.redraw(folder / "pfllib")
