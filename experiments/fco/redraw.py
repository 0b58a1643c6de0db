"""Redraws all reports and figures from their kept CSV and JSON files.

python -m experiments.fco.redraw
python -m experiments.fco.redraw --grids      # heat maps of all pairs of rates, too
"""

import dataclasses
import pathlib

import tyro

from experiments.fco import (
    emnist_report,
    fmri_report,
    primal_averaging_report,
    recovery_report,
    theory_report,
)
from experiments.fco.handwriting import TASKS
from experiments.fco.lasso import LASSO
from experiments.fco.lowrank import LOW_RANK


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this script."""

    output: pathlib.Path = pathlib.Path("experiments/results/fco")
    grids: bool = False  # heat maps of all pairs of rates, which git does not keep


def redraw(output: pathlib.Path, grids: bool = False) -> None:
    """Redraws every report below ``output``, the results of this paper."""
    for path in sorted(output.rglob("*-scores.csv")):
        folder, name = path.parent, path.name.removesuffix("-scores.csv")
        for experiment in (LASSO, LOW_RANK):
            if folder.name.startswith(experiment.name) and name in experiment.sets:
                recovery_report.redraw(experiment, folder, name, grids)
        if folder.name.startswith("emnist") and name in TASKS:
            emnist_report.redraw(folder, name, grids)
        if folder.name.startswith("fmri"):
            fmri_report.redraw(folder, grids)
    if (output / "primal_averaging").exists():
        primal_averaging_report.redraw(output / "primal_averaging")
    if (output / "theory").exists():
        theory_report.redraw(output / "theory")


def main(options: Options) -> None:
    """Redraws every report of the folder."""
    redraw(options.output, options.grids)


if __name__ == "__main__":
    main(tyro.cli(Options))
