r"""Which schedules does FedAc want without strong convexity?

    python -m experiments.questions.fedac_schedules

For convex functions the thesis (section 3.3.3) runs FedAc on :math:`F + \frac{\lambda}{2} \|x -
x_0\|^2` and conjectures that a direct version reaches the same rates.  Here are two direct ones:
constant numbers, and the polynomials of accelerated descent with the rounds for its steps
(:func:`experiments.questions.fedac_schedules_problem.polynomial`).  And the schedules that
are best: lr, gamma and beta of every round, learned by Adam on derivatives of whole runs.

Logistic regression with flat directions, 8 clients with equal data, 16 local steps, minibatches
of 1 or 32, 8 to 64 rounds.  Every method but FedAvg has two numbers from a grid, chosen by the mean
loss of 8 seeds; schedules are learned three times, from 8 seeds each.  All scores are those of 32
other seeds, the same for all methods.

Cost, stated before the run: 40 minutes of one core.

Expected answers, written before the run, when only the grids of 8 rounds had been tried.

1. *The direct method needs no augmentation*: its gap is at most that of the augmented one in all
   eight cells.  Reason: lambda biases the optimum, and a fixed lambda fits one number of rounds.
2. *The rates are the same*: between 8 and 64 rounds the powers of R of both differ by at most 0.15.
   Reason: the conjecture; lambda follows the rounds when it is tuned for each of them.
3. *The polynomials are nearly the best*: learned schedules have at least 0.5 of their gap where
   noise is small (batch 32) and R is 8 or 16.  With more rounds and noise less is left, since a
   rate that falls at the end removes noise.
4. *The learned gamma rises with the rounds*, at batch 32 and 64 rounds as r^p, p from 0.5 to 1.5 in
   the first half; *the learned rate falls* in the last quarter, to less than half of its median.
5. *Acceleration pays where noise is small*: at batch 32 the power of R of the direct method is
   steeper than FedAvg's by at least 0.5, at batch 1 by less.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro

import fedjax_sim as fs
from experiments.harness import Folders, check_grid, save_report, seed_keys, settings
from experiments.questions import fedac_schedules_problem as problem
from experiments.questions.fedac_schedules_problem import Hyper
from experiments.questions.fedac_schedules_report import build
from experiments.questions.fedac_schedules_search import METHODS, descend, tuned
from fedjax_sim.checks import check_at_least


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    batches: tuple[int, ...] = (1, 32)
    rounds: tuple[int, ...] = (8, 16, 32, 64)
    seeds: int = 32  # of the scores
    tuning_seeds: int = 8
    repeats: int = 3  # of the learning, with other tuning seeds
    updates: int = 150  # of the learned schedules

    def __post_init__(self) -> None:
        check_grid(batches=self.batches, rounds=self.rounds)
        check_at_least(2, seeds=self.seeds, repeats=self.repeats)
        check_at_least(1, tuning_seeds=self.tuning_seeds, updates=self.updates)


def measure(batch: int, rounds: int, options: Options) -> tuple[list[dict], list[dict]]:
    """Rows of gaps and of schedules of one cell."""
    setup = problem.make_setup(batch, rounds)
    count, cell = options.tuning_seeds, {"batch": batch, "rounds": rounds}
    tuning, fresh = seed_keys(options.repeats * count), seed_keys(options.seeds, root=1)
    chosen = {name: tuned(method, setup, tuning[:count]) for name, method in METHODS.items()}
    gaps = [
        {**cell, "method": name, **numbers} | _scores(METHODS[name].build, setup, [numbers], fresh)
        for name, numbers in chosen.items()
    ]
    start = problem.logarithms(chosen["direct"]["lr"], chosen["direct"]["second"], rounds)
    schedules = _rows({**cell, "method": "direct", "repeat": 0}, start)
    for name, make, first in (
        ("FedAvg, learned", problem.learned_fedavg, {"lr": jnp.full_like(
            start["lr"], np.log(chosen["FedAvg"]["lr"]))}),
        ("learned", problem.learned, start),
    ):  # fmt: skip
        found = [
            descend(make, setup, tuning[i * count : (i + 1) * count], first, options.updates)
            for i in range(options.repeats)
        ]
        gaps.append({**cell, "method": name} | _scores(make, setup, found, fresh))
        for i, hyper in enumerate(found):
            schedules += _rows({**cell, "method": name, "repeat": i}, hyper)
    return gaps, schedules


def _scores(
    make: Callable[[Hyper], fs.FedAlgorithm], setup: fs.Setup, found: list[Hyper], keys: jax.Array
) -> dict[str, float]:
    """The gaps of all seeds, means over repeated learning."""
    stacked = jax.tree.map(lambda *x: jnp.asarray(np.stack(x), jnp.float32), *found)
    gaps = problem.gaps(problem.final_models(make, setup, stacked, keys)).mean(0)
    return {f"seed {i}": gap for i, gap in enumerate(gaps.tolist())}


def _rows(cell: dict[str, Any], schedules: Hyper) -> list[dict[str, Any]]:
    """A row per round of schedules that are kept as logarithms."""
    values = {name: np.exp(np.asarray(value, np.float64)) for name, value in schedules.items()}
    rounds = len(values["lr"])
    return [
        {**cell, "round": r} | {name: float(value[r]) for name, value in values.items()}
        for r in range(rounds)
    ]


def main(options: Options) -> None:
    """Runs all cells and writes the report."""
    gaps, schedules = [], []
    for batch in options.batches:
        for rounds in options.rounds:
            scored, found = measure(batch, rounds, options)
            gaps += scored
            schedules += found
            print(batch, rounds, {row["method"]: row["seed 0"] for row in scored}, flush=True)
    tables = {"": pd.DataFrame(gaps), "schedules": pd.DataFrame(schedules)}
    folder = options.output / "questions" / "fedac_schedules"
    save_report(folder, "fedac_schedules", tables, build, **settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
