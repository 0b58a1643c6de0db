"""Central privacy on MNIST in pfl-research's setting for CIFAR-10, with a small perceptron.

    python -m experiments.privacy.mnist_central

A network with few parameters gets little noise at a given epsilon, since the noise has the same
standard deviation in every coordinate.  The cohort and the population whose noise is added are
therefore smaller: the noise is that of the simulated cohort, drawn from 10,000 users.
"""

import dataclasses

import tyro

import fedjax_sim as fs
from experiments.harness import save_report, settings
from experiments.privacy.central import CentralOptions, make_setup, tables
from experiments.privacy.central_report import build
from fedjax_sim import datasets

HIDDEN = 32


@dataclasses.dataclass(frozen=True)
class Options(CentralOptions):
    """Options of this experiment."""

    rounds: int = 150
    noise_cohort: int = 50
    population: int = 10_000


def main(options: Options) -> None:
    """Runs what is not finished, and writes table and figure."""
    options = options.with_reported("mnist")
    dataset = datasets.load("mnist", data_dir=options.data_dir)
    setup = make_setup(dataset, fs.models.mlp((28, 28, 1), (HIDDEN,), 10), options)
    save_report(
        options.folder("mnist"),
        "mnist",
        tables("mnist", setup, options),
        build,
        title="MNIST",
        file="mnist",
        model=f"A perceptron of {HIDDEN} units",
        deviation="The setting is that of pfl-research's benchmark CIFAR-10 IID, apart from the "
        "network, the rounds, and the cohort and population whose noise is added.",
        options=settings(options),
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
