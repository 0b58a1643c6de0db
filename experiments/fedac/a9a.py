"""FedAc against FedAvg and minibatch SGD on logistic regression: the tables of the FedAc paper.

    python -m experiments.fedac.a9a --setting a9a-1e-3 --data-dir DATA
    python -m experiments.fedac.a9a --setting a9a-1e-4 --clients 64 1024 --local-steps 1 32

Section 5 of the paper, section 3.7 of the thesis.  M clients draw one row of the same data per
step, with replacement; 4,096 steps, K per round; the objective is evaluated every 512 steps.  The
score of a rate is the best value less the optimum, the score of an algorithm that of its best rate.
All rates of a cell are one compiled program; finished cells are kept in ``--work`` and not
repeated.

The authors' numbers are read from the ``out/<run>/summary.csv`` of their program,
saved as ``summary_<dataset>_<l2>.csv`` in the folder that FEDAC_PUBLISHED names.
"""

import dataclasses
import functools
import itertools
import os
import pathlib
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
import tyro

from experiments.fedac import a9a_report, numpy_loop, problem
from experiments.fedac.problem import EVALUATED, LOCAL, MINIBATCH
from experiments.harness.options import Folders, check_grid, check_names, settings
from experiments.harness.runs import sweep
from fedjax_sim import datasets
from fedjax_sim.execution.devices import use_all_cores

_FOUR = ("fedavg", "fedac_i", "mb_sgd", "mb_ac_sgd")
_SIX = (*_FOUR, "fedac_ii_code", "vanilla_fedac")


class Setting(NamedTuple):
    """A figure of the paper."""

    dataset: str
    l2: float  # also the estimate of the strong convexity
    lrs: tuple[float, ...]
    methods: tuple[str, ...]
    optimum: float  # F*, from the authors' program


def rates(first: float, count: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... times ``first``, which is a power of 10 or 5 times one."""
    steps = [float(f"{m}e{e}") for e in range(-4, 3) for m in (1, 2, 5)]
    return tuple(steps[steps.index(first) :][:count])


SETTINGS = {
    "a9a-1e-2": Setting("a9a", 1e-2, rates(1e-3, 13), _FOUR, 0.3727237615595949),
    "a9a-1e-3": Setting("a9a", 1e-3, rates(1e-3, 13), _SIX, 0.3333407530091771),
    "a9a-1e-4": Setting("a9a", 1e-4, rates(1e-3, 12), _SIX, 0.3245069255709821),
    "epsilon-1e-4": Setting("epsilon", 1e-4, rates(5e-3, 13), _FOUR, 0.47130400753628965),
}


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    setting: str = "a9a-1e-3"
    clients: tuple[int, ...] = tuple(2**i for i in range(2, 14))  # M
    local_steps: tuple[int, ...] = tuple(2**i for i in range(9))  # K
    few_rounds: tuple[int, ...] = ()  # further M, only for K of at least 32
    methods: tuple[str, ...] = ()  # default: the setting's
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

    @property
    def grids(self) -> list[dict[str, tuple]]:
        """The cells, as grids of a sweep."""
        lrs, few = SETTINGS[self.setting].lrs, tuple(k for k in self.local_steps if k >= 32)
        parts = [(self.clients, self.local_steps), (self.few_rounds, few)]
        return [{"lr": lrs, "clients": m, "local_steps": k} for m, k in parts if m and k]

    @property
    def chosen(self) -> tuple[str, ...]:
        """The methods that run."""
        return self.methods or SETTINGS[self.setting].methods


def measure(options: Options, data: dict[str, np.ndarray], least: float) -> pd.DataFrame:
    """A row per (algorithm, M, K, rate): its score, and in which round it diverged (0: not)."""
    setting = SETTINGS[options.setting]
    value = problem.objective(data, setting.l2)
    initial = float(value(problem.initial(data["x"].shape[1])))
    rows = []
    for grid, name in itertools.product(options.grids, options.chosen):
        runs = sweep(
            functools.partial(problem.make_algorithm, name, setting.l2),
            functools.partial(problem.make_setup, data, name),
            grid,
            jax.random.split(jax.random.key(1), 1),
            options.work / options.setting / name,
            static=("clients", "local_steps"),
        ).runs
        values = value(np.stack([run.history.metrics["model"] for run in runs]))
        for run, of_run in zip(runs, values, strict=True):
            c = run.configuration
            rows.append(
                {"algorithm": name, "M": c["clients"], "K": c["local_steps"], "lr": c["lr"]}
                | {"score": min(of_run.min(), initial) - least, "diverged_at": run.diverged_at}
            )
    return pd.DataFrame(rows)


def main(options: Options) -> None:
    """Runs the cells and writes the report, with the authors' numbers beside ours."""
    folder, setting = options.output / "a9a", SETTINGS[options.setting]
    if options.redraw:
        a9a_report.redraw(folder, options.setting)
        return
    use_all_cores()
    loaded = datasets.load(setting.dataset, options.data_dir)
    data = {"x": loaded.train["x"], "y": loaded.train["y"].astype(np.float32)}
    least = problem.minimum(data, setting.l2)
    seconds = numpy_loop.timing(data, setting.l2, setting.lrs, options.clients, options.local_steps)
    published = a9a_report.published(
        os.environ.get("FEDAC_PUBLISHED"), setting.dataset, setting.l2, setting.lrs, setting.optimum
    )
    facts = {
        "rows": len(data["y"]),
        "F*": least,
        "F* - authors": least - setting.optimum,
        "options": settings(options),
    }
    table = measure(options, data, least)
    a9a_report.save(folder, options.setting, table, published, seconds, facts)


if __name__ == "__main__":
    main(tyro.cli(Options))
