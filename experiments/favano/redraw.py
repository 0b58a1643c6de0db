"""All reports and figures of this paper again, from their kept CSV and JSON files.

python -m experiments.favano.redraw
"""

import dataclasses
import pathlib
from collections.abc import Mapping

import tyro

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


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this command."""

    output: pathlib.Path = pathlib.Path("experiments/results")


def redraw(results: pathlib.Path) -> None:
    """Redraws every report below ``results``, those of this paper."""
    for folder in sorted(results.iterdir()):
        fitting = (builds for start, builds in REPORTS.items() if folder.name.startswith(start))
        for name, build in next(fitting, {}).items():
            if (folder / f"{name}.json").exists():
                print(folder / f"{name}.md", flush=True)
                redraw_report(folder, name, build)


def main(options: Options) -> None:
    """Writes the text and the figures of every report that is there."""
    redraw(options.output / "favano")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
