"""The spread of a cell's score over seeds, for the comparison with the authors' single seed.

    python -m experiments.fedac.spread --setting a9a-1e-3 --data-dir DATA

Each seed has its own draws of rows and chooses its own rate, as the authors' single seed did; the
initial model is theirs.  The rates are those around the best one of :mod:`experiments.fedac.a9a`,
which has to be run first, and further ones until every seed's best is inside.  The cells of
earlier commands stay in the table.
"""

import dataclasses
import functools
import pathlib

import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fedac import a9a_report, agreement, cells
from experiments.fedac.settings import SETTINGS
from experiments.harness.options import Folders, check_grid, check_names
from experiments.harness.redrawing import read_tables
from experiments.harness.report import write_csv
from fedjax_sim.checks import check_at_least


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    setting: str = "a9a-1e-3"
    clients: tuple[int, ...] = (4, 32, 256)  # M
    local_steps: tuple[int, ...] = (1, 8, 64, 256)  # K
    seeds: int = 10
    work: pathlib.Path = pathlib.Path("results/fedac-spread")
    output: pathlib.Path = pathlib.Path("experiments/results/fedac")

    def __post_init__(self) -> None:
        check_names("setting", self.setting, SETTINGS)
        check_grid(clients=self.clients, local_steps=self.local_steps)
        check_at_least(2, seeds=self.seeds)


def measure(options: Options, study: cells.Study, known: pd.DataFrame) -> pd.DataFrame:
    """The spread of every known cell that the options choose."""
    grid, work = study.setting.lrs, options.work / f"{options.seeds}-seeds"
    chosen = known.loc[known["M"].isin(options.clients) & known["K"].isin(options.local_steps)]
    tables = []
    for _, part in chosen.groupby(["M", "algorithm"]):
        algorithm = str(part["algorithm"].iloc[0])
        score = functools.partial(cells.run, study, algorithm, work=work, num_seeds=options.seeds)
        rates = {
            (cell["M"], cell["K"]): cells.near(grid, cell["lr"]) for cell in part.to_dict("records")
        }
        tables.append(cells.best(cells.search(score, rates, grid), grid, [*cells.CELL, "seed"]))
    return agreement.seed_spread(pd.concat(tables))


def main(options: Options) -> None:
    """Runs the seeds and writes the report of the setting again."""
    folder, name = options.output / "a9a", options.setting
    known = a9a_report.known_cells(folder, name)
    if not len(known):
        raise ValueError(f"output has no {folder / name}.csv; expected cells of fedac.a9a")
    fs.execution.use_all_cores()
    spread = measure(options, cells.load(name, options.data_dir), known)
    earlier = read_tables(folder, name).get("spread")
    if earlier is not None:
        spread = agreement.merged(spread, earlier)
    write_csv(folder / f"{name}-spread.csv", spread)
    a9a_report.redraw(folder, name)


if __name__ == "__main__":
    main(tyro.cli(Options))
