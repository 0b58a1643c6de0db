"""Rates beyond the paper's grid, for the cells whose best rate is the grid's least or largest.

    python -m experiments.fedac.beyond --setting a9a-1e-3 --data-dir DATA

The cells are those of :mod:`experiments.fedac.a9a`, which has to be run first.  The authors' best
scores over all rates of their files, which have some of these, are beside ours if FEDAC_PUBLISHED
names their folder.
"""

import dataclasses
import os
import pathlib

import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fedac import a9a_report, agreement, cells
from experiments.fedac.settings import EVERY_RATE, SETTINGS
from experiments.harness.options import Folders, check_names
from experiments.harness.report import write_csv


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    setting: str = "a9a-1e-3"
    work: pathlib.Path = pathlib.Path("results/fedac")
    output: pathlib.Path = pathlib.Path("experiments/results/fedac")

    def __post_init__(self) -> None:
        check_names("setting", self.setting, SETTINGS)


def measure(study: cells.Study, known: pd.DataFrame, work: pathlib.Path) -> pd.DataFrame:
    """The best of the further rates, a row per cell at the grid's edge."""
    grid, tables = study.setting.lrs, []
    for algorithm, part in known.loc[known["at edge"].astype(bool)].groupby("algorithm"):
        rates = {
            (cell["M"], cell["K"]): further_rates(cell["lr"], grid)
            for cell in part.to_dict("records")
        }
        scores = cells.run(study, str(algorithm), rates, work)
        tables.append(cells.best(scores, EVERY_RATE))
    return pd.concat(tables, ignore_index=True)


def further_rates(lr: float, grid: tuple[float, ...]) -> tuple[float, ...]:
    """The next three rates beyond the grid on the side of ``lr``, its least or largest rate.

    Example:
        >>> further_rates(0.001, (0.001, 10.0)), further_rates(5.0, (0.001, 5.0))
        ((0.0001, 0.0002, 0.0005), (10.0, 20.0, 50.0))
    """
    if lr <= min(grid):
        return tuple(rate for rate in EVERY_RATE if rate < min(grid))[-3:]
    return tuple(rate for rate in EVERY_RATE if rate > max(grid))[:3]


def main(options: Options) -> None:
    """Runs the further rates and writes the report of the setting again."""
    folder, name = options.output / "a9a", options.setting
    known = a9a_report.known_cells(folder, name)
    if not any(known["at edge"]):
        raise ValueError(f"output has no cells at the grid's edge in {folder / name}.csv")
    fs.execution.use_all_cores()
    study = cells.load(name, options.data_dir)
    table = measure(study, known, options.work)
    published = os.environ.get("FEDAC_PUBLISHED")
    table = agreement.beside(table, agreement.published(published, study.setting, beyond=True))
    write_csv(folder / f"{name}-beyond.csv", table)
    a9a_report.redraw(folder, name)


if __name__ == "__main__":
    main(tyro.cli(Options))
