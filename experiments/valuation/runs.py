"""Options of the experiments on valuation, and the loop that values the clients of every seed."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import pandas as pd

import fedjax_sim as fs
from experiments.harness import Folders, check_grid, save_report, seed_keys, settings
from experiments.valuation import methods, report
from experiments.valuation.problem import Problem
from fedjax_sim.checks import check_at_least, check_at_most


@dataclasses.dataclass(frozen=True)
class ValuationOptions(Folders):
    """Options of every experiment."""

    rounds: int = 20
    false_labels: float = 0.3  # share of a mislabelled client's labels
    seeds: int = 5
    permutations: tuple[int, ...] = (4, 16, 64)
    work: pathlib.Path = pathlib.Path("results/valuation")  # finished coalitions, to continue from

    def __post_init__(self) -> None:
        check_at_least(1, rounds=self.rounds, seeds=self.seeds)
        check_at_least(0, false_labels=self.false_labels)
        check_at_most(1, false_labels=self.false_labels)
        check_grid(permutations=self.permutations)


def value_seeds(
    name: str,
    data: str,
    algorithm: fs.FedAlgorithm,
    problem: Callable[[int, jax.Array], Problem],
    cohort: int,
    options: ValuationOptions,
    **how: Any,
) -> None:
    """Values the clients of all seeds, prints and writes table and figure.

    Args:
        name: of the folder, the files and the figure.
        data: in words.
        algorithm: that trains every coalition.
        problem: function of the seed and its key.
        cohort: clients per round.
        options: of the experiment.
        how: further arguments of :func:`~experiments.valuation.methods.methods`.
    """
    folder = options.work / name / f"{options.false_labels:g}"
    frames = []
    for seed, key in enumerate(seed_keys(options.seeds)):
        keys = jax.random.split(key)
        one = problem(seed, keys[0])
        every = methods.methods(
            algorithm, one, keys[1], folder / str(seed), permutations=options.permutations, **how
        )
        frames.append(methods.valued(every, one, seed))
    values = pd.concat(frames, ignore_index=True)
    save_report(
        options.output / "valuation" / name, name,
        {"": report.scores(values), "values": values}, report.build, options=settings(options),
        data=data, figure=name, cohort=cohort,
    )  # fmt: skip
