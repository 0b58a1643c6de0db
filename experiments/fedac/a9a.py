"""FedAc against FedAvg and minibatch SGD on logistic regression: the tables of the FedAc paper.

    python -m experiments.fedac.a9a --setting a9a-1e-3 --data-dir DATA
    python -m experiments.fedac.a9a --setting a9a-1e-4 --clients 64 1024 --local-steps 1 32

Section 5 of the paper, section 3.7 of the thesis.  M clients draw one row of the same data per
step, with replacement; 4,096 steps, K per round; the objective is evaluated every 512 steps.  The
score of a rate is the best value less the optimum, the score of an algorithm that of its best rate.
All rates of a cell are one compiled program; finished cells are kept in ``--work`` and not
repeated, and the report contains the cells of earlier commands.

The authors' numbers are read from the ``out/<run>/summary.csv`` of their program,
saved as ``summary_<dataset>_<l2>.csv`` in the folder that FEDAC_PUBLISHED names.
"""

import dataclasses
import functools
import os
import pathlib

import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.fedac import a9a_report, agreement, cells, numpy_loop
from experiments.fedac.problem import EVALUATED, LOCAL, MINIBATCH
from experiments.fedac.settings import SETTINGS
from experiments.harness.options import Folders, check_grid, check_names, settings
from experiments.harness.report import earlier_commands
from fedjax_sim.checks import check_at_least


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    setting: str = "a9a-1e-3"
    clients: tuple[int, ...] = tuple(2**i for i in range(2, 14))  # M
    local_steps: tuple[int, ...] = tuple(2**i for i in range(9))  # K
    few_rounds: tuple[int, ...] = ()  # further M, only for K of at least 32
    methods: tuple[str, ...] = ()  # default: the setting's
    # With more clients: rates around the best one of fewer clients, until the best is among them.
    every_rate_up_to: int = 1024
    timing: bool = False  # also measures the seconds of a run beside those of a NumPy loop
    redraw: bool = False  # writes the report of the kept files again and runs nothing
    work: pathlib.Path = pathlib.Path("results/fedac")
    output: pathlib.Path = pathlib.Path("experiments/results/fedac")

    def __post_init__(self) -> None:
        check_names("setting", self.setting, SETTINGS)
        for steps in self.local_steps:
            if steps < 1 or EVALUATED % steps:
                expected = f"divisors of {EVALUATED}, the steps between evaluations"
                raise ValueError(f"local_steps has {steps}; expected {expected}")
        check_grid(clients=self.clients)
        if self.few_rounds:
            check_grid(few_rounds=self.few_rounds)
        check_names("methods", self.methods, LOCAL | MINIBATCH, empty=True)
        check_at_least(1, every_rate_up_to=self.every_rate_up_to)

    @property
    def cells(self) -> dict[int, tuple[int, ...]]:
        """The local steps K for every number of clients M, few clients first."""
        few = tuple(k for k in self.local_steps if k >= 32)
        steps = dict.fromkeys(self.few_rounds, few) | dict.fromkeys(self.clients, self.local_steps)
        return {m: steps[m] for m in sorted(steps) if steps[m]}

    @property
    def chosen(self) -> tuple[str, ...]:
        """The methods that run."""
        return self.methods or SETTINGS[self.setting].methods


def expected_rate(known: pd.DataFrame, algorithm: str, clients: int, steps: int) -> float | None:
    """The best rate of the known cell with the most but fewer clients; None without such a cell."""
    similar = known.loc[(known["algorithm"] == algorithm) & (known["K"] == steps)]
    fewer = similar.loc[similar["M"] < clients].sort_values(by="M")
    return fewer["lr"].tolist()[-1] if len(fewer) else None


def measure(options: Options, study: cells.Study, known: pd.DataFrame) -> pd.DataFrame:
    """The best rates of all cells; ``known`` are cells of earlier commands."""
    grid = study.setting.lrs
    measured: list[pd.DataFrame] = []
    for clients, local_steps in options.cells.items():
        so_far = pd.concat([known, *measured])
        for name in options.chosen:
            rates = {}
            for steps in local_steps:
                many = clients > options.every_rate_up_to
                lr = expected_rate(so_far, name, clients, steps) if many else None
                rates[clients, steps] = cells.near(grid, lr)
            score = functools.partial(cells.run, study, name, work=options.work)
            measured.append(cells.best(cells.search(score, rates, grid), grid))
    return pd.concat(measured, ignore_index=True)


def main(options: Options) -> None:
    """Runs the cells and writes the report, with the authors' numbers beside ours."""
    folder, name = options.output / "a9a", options.setting
    if options.redraw:
        a9a_report.redraw(folder, name)
        return
    fs.execution.use_all_cores()
    study = cells.load(name, options.data_dir)
    known = a9a_report.known_cells(folder, name)
    new = measure(options, study, known)
    measured = agreement.merged(new, known)
    authors = agreement.published(os.environ.get("FEDAC_PUBLISHED"), study.setting)
    tables = {"": agreement.beside(measured, authors)}
    if options.timing:
        tables["seconds"] = numpy_loop.timing(
            study.data, study.setting.l2, study.setting.lrs, options.clients, options.local_steps
        )
    facts = {
        "rows": len(study.data["y"]),
        "F*": study.minimum,
        "F* - authors": study.minimum - study.setting.optimum,
        "options": settings(options),
    }
    if len(measured) > len(new):
        facts |= earlier_commands(folder, name)
    a9a_report.save(folder, name, tables, facts)


if __name__ == "__main__":
    main(tyro.cli(Options))
