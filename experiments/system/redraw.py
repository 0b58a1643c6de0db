"""Redraws the reports on the simulator itself from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.system import million_clients, precision


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of these experiments."""
    if (folder / "million_clients").exists():
        redraw_report(folder / "million_clients", "million_clients", million_clients.build)
    for path in sorted((folder / "precision").glob("*.json")):
        redraw_report(folder / "precision", path.stem, precision.build)
