"""Redraws the reports and figures of the four tasks from their kept CSV and JSON files.

python -m experiments.fco.redraw
"""

import dataclasses
import pathlib

import tyro

from experiments.fco import emnist_report, fmri_report, recovery_report
from experiments.fco.handwriting import TASKS
from experiments.fco.lasso import LASSO
from experiments.fco.lowrank import LOW_RANK


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this script."""

    output: pathlib.Path = pathlib.Path("experiments/results/fco")


def main(options: Options) -> None:
    """Redraws every report in the folder and below."""
    for path in sorted(options.output.rglob("*-scores.csv")):
        folder, name = path.parent, path.name.removesuffix("-scores.csv")
        for experiment in (LASSO, LOW_RANK):
            if folder.name.startswith(experiment.name) and name in experiment.sets:
                recovery_report.redraw(experiment, folder, name)
        if folder.name.startswith("emnist") and name in TASKS:
            emnist_report.redraw(folder, name)
        if folder.name.startswith("fmri"):
            fmri_report.redraw(folder)


if __name__ == "__main__":
    main(tyro.cli(Options))
