"""Redraws all reports and figures of this paper from their kept CSV and JSON files."""

import pathlib
from collections.abc import Mapping

from experiments.favano import (
    cifar_report,
    cifar_tuned_report,
    mnist_report,
    theory_report,
    tiny_imagenet,
)
from experiments.harness import Build, redraw_report

# Reports by the start of their folder's name; the first that fits.
REPORTS: dict[str, Mapping[str, Build]] = {
    "mnist": mnist_report.REPORTS,
    "cifar-tuned": {cifar_tuned_report.NAME: cifar_tuned_report.build},
    "cifar": cifar_report.REPORTS,
    "theory": theory_report.REPORTS,
    "tiny_imagenet": {"methods": tiny_imagenet.build},
}


def redraw(results: pathlib.Path) -> None:
    """Redraws every report below ``results``, those of this paper."""
    for folder in sorted(results.iterdir()):
        fitting = (builds for start, builds in REPORTS.items() if folder.name.startswith(start))
        for name, build in next(fitting, {}).items():
            if (folder / f"{name}.json").exists():
                print(folder / f"{name}.md", flush=True)
                redraw_report(folder, name, build)
