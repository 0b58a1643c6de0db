"""Accuracy against bits: compressed FedAvg with and without memory on digits.

    python -m experiments.compression.digits

20 heterogeneous clients, all of them in every round, one local epoch per visit.  Every method is
FedAvg with another upload; its rate is the best of a grid by the validation accuracy at the end.
Bits are those of the uploads; the message is the whole model for all methods (MARINA: two models).
"""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import tyro

import fedjax_sim as fs
from experiments.compression.digits_report import build, curves, summary
from experiments.compression.methods import METHODS, upload_bits
from experiments.harness import (
    Folders,
    check_grid,
    dirichlet_uniform_prior,
    save_report,
    settings,
    swept,
)
from fedjax_sim.checks import check_at_least


@dataclasses.dataclass(frozen=True)
class Options(Folders):
    """Options of this experiment."""

    rounds: int = 150
    seeds: int = 4
    lrs: tuple[float, ...] = (0.04, 0.1, 0.25, 0.6)
    work: pathlib.Path = pathlib.Path("results/compression")  # finished runs, to continue from

    def __post_init__(self) -> None:
        check_at_least(1, rounds=self.rounds, seeds=self.seeds)
        check_grid(lrs=self.lrs)


def factory(method: str, lr: Any) -> fs.FedAlgorithm:
    """One of the methods at a client rate."""
    return METHODS[method](fs.fedavg(lr))


def problem(options: Options) -> fs.Setup:
    """Digits, Dirichlet 0.1 over 20 clients, and a perceptron with 4,810 parameters."""
    return fs.presets.quickstart(
        num_clients=20, sampling="full",
        rows=functools.partial(dirichlet_uniform_prior, num_clients=20),
        validation=0.15, model="mlp_small", local_epochs=1, batch_size=10, eval_every=5,
        rounds=options.rounds, seeds=options.seeds,
    )  # fmt: skip


def main(options: Options) -> None:
    """Runs all methods and rates, prints and writes table and figure."""
    setup = problem(options)
    history = swept(
        factory, setup, {"method": list(METHODS), "lr": list(options.lrs)},
        fs.presets.keys(options.seeds), options.work,
    )  # fmt: skip
    table = curves(history, upload_bits(jax.tree.map(lambda x: x[0], setup.params)))
    tables = {"": summary(table, 0.9), "curves": table}
    folder = options.output / "compression" / "digits"
    save_report(folder, "digits", tables, build, options=settings(options))


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
