"""Redraws the curves of ports from their CSV files."""

import pathlib

import pandas as pd

from experiments.porting.ours import draw


def redraw(folder: pathlib.Path) -> None:
    """Redraws the figure of every port below ``folder``."""
    for path in sorted(folder.glob("*.csv")):
        draw(pd.read_csv(path), path.with_suffix(".png"))
