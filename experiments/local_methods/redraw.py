"""Redraws the reports and figures of this chapter from their CSV and JSON files."""

import pathlib

from experiments.harness.redrawing import redraw_report
from experiments.local_methods import exponents, iterate_bias, lower_bound


def redraw(folder: pathlib.Path) -> None:
    """Redraws every report below ``folder``, the results of this chapter."""
    for name, build in {
        "iterate_bias": iterate_bias.build, "lower_bound": lower_bound.build,
        "exponents": exponents.build,
    }.items():  # fmt: skip
        if (folder / name).exists():
            redraw_report(folder / name, name, build)
