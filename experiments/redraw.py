"""Redraws all reports and figures under experiments/results from their CSV and JSON files.

    python -m experiments.redraw
    python -m experiments.redraw --papers fco fedac

A paper's folder has a module ``redraw`` with ``redraw(folder)`` for its results.  Reports that no
such function writes, because they need values that git does not keep, are listed at the end.
"""

import dataclasses
import importlib
import pathlib
import pkgutil

import tyro

import experiments
from experiments.harness import check_names

PAPERS = tuple(
    module.name
    for module in pkgutil.iter_modules(experiments.__path__)
    if module.ispkg and (pathlib.Path(experiments.__path__[0], module.name) / "redraw.py").exists()
)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of this script."""

    papers: tuple[str, ...] = PAPERS
    output: pathlib.Path = pathlib.Path("experiments/results")

    def __post_init__(self) -> None:
        check_names("papers", self.papers, PAPERS)


def main(options: Options) -> None:
    """Redraws the papers' reports."""
    for paper in options.papers:
        folder = options.output / paper
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.md")}
        importlib.import_module(f"experiments.{paper}.redraw").redraw(folder)
        kept = [path for path, time in before.items() if path.stat().st_mtime_ns == time]
        print(f"{paper}: {len(before) - len(kept)} of {len(before)} reports redrawn")
        for path in sorted(kept):
            print(f"  not redrawn: {path.relative_to(options.output).as_posix()}")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
