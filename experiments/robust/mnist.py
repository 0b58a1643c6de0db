"""Robust rules under attacks, with IID data and two labels per client, on MNIST.

    python -m experiments.robust.mnist
    python -m experiments.robust.mnist --attacks ALIE --attackers 5 --rounds 60 --seeds 1

One heat map per attack: a rule per row, heterogeneity and share of attackers per column.  Finished
runs are kept in the work folder, and an interrupted command continues.
"""

import dataclasses
import pathlib

import tyro

from experiments.harness import (
    Folders,
    check_names,
    save_report,
    seed_keys,
    settings,
    subsample,
    swept,
)
from experiments.robust.problem import ATTACKS, CLIENTS, RULES, SPLITS, factory, setup_maker
from experiments.robust.report import build, final_accuracies
from fedjax_sim import datasets
from fedjax_sim.checks import check_at_least, check_at_most


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    attacks: tuple[str, ...] = tuple(ATTACKS)
    attackers: tuple[int, ...] = (2, 5)  # of 25 clients
    rounds: int = 200
    seeds: int = 3
    examples: int = 10_000  # for training
    test_examples: int = 2_000
    work: pathlib.Path = pathlib.Path("results/robust")

    def __post_init__(self) -> None:
        check_names("attacks", self.attacks, ATTACKS)
        check_at_least(1, rounds=self.rounds, seeds=self.seeds, test_examples=self.test_examples)
        check_at_least(2 * CLIENTS, examples=self.examples)  # one for each shard of two labels
        check_at_least(0, attackers=min(self.attackers))
        check_at_most((CLIENTS - 3) // 4, attackers=max(self.attackers))  # Bulyan's condition


def main(options: Options) -> None:
    """Runs what is not finished, and writes the report."""
    dataset = datasets.load("mnist", data_dir=options.data_dir)
    train = subsample(dataset.train, options.examples)
    test = subsample(dataset.test, options.test_examples)
    history = swept(
        factory,
        setup_maker(train, test, options.rounds, evaluations=5),
        {
            "attack": list(options.attacks),
            "attackers": list(options.attackers),
            "split": list(SPLITS),
            "rule": list(RULES),
        },
        seed_keys(options.seeds),
        options.work / f"mnist-{options.rounds}-{options.examples}",
    )
    save_report(
        options.output / "robust" / "mnist",
        "mnist",
        {"": final_accuracies(history)},
        build,
        options=settings(options),
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
