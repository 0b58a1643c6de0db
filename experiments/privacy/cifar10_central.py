"""Central privacy on CIFAR-10 IID in pfl-research's setting, shortened for a CPU.

    python -m experiments.privacy.cifar10_central
    python -m experiments.privacy.cifar10_central --network pfl --rounds 1500    # as published

The default has 300 instead of 1,500 rounds and a network with a quarter of the cost: a second
pooling and more hidden units, so that the noise over the clip is similar.
"""

import dataclasses
from typing import Literal

import tyro

import fedjax_sim as fs
from experiments.harness import check_choice, save_report, settings
from experiments.privacy.central import CentralOptions, make_setup, tables
from experiments.privacy.central_report import build
from fedjax_sim.data import CIFAR_MEAN, CIFAR_STD

Network = Literal["small", "pfl"]
SHAPE, CLASSES = (32, 32, 3), 10


@dataclasses.dataclass(frozen=True)
class Options(CentralOptions):
    """Options of this experiment."""

    epsilons: tuple[float, ...] = (8.0, 2.0, 0.5)
    eval_every: int = 20
    network: Network = "small"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(network=(self.network, Network))


def build_model(network: Network) -> fs.models.Model:
    """Convolutions 3x3 with 32 and 64 channels; pfl-research's network without its dropout."""
    pools, hidden = ((True, True), 512) if network == "small" else ((False, True), 128)
    cnn = fs.models.cnn(
        SHAPE, CLASSES, channels=(32, 64), kernel_size=3, hidden=(hidden,), pool_after=pools
    )
    return fs.data.augmentation.normalized(cnn, CIFAR_MEAN, CIFAR_STD)


def main(options: Options) -> None:
    """Runs what is not finished, and writes table and figure."""
    name = f"cifar10-{options.network}"
    options = options.with_reported(name)
    dataset = fs.datasets.load("cifar10", data_dir=options.data_dir)
    setup = make_setup(dataset, build_model(options.network), options)
    save_report(
        options.folder(name),
        name,
        tables(name, setup, options),
        build,
        title="CIFAR-10",
        file=name,
        model="A convolutional network",
        deviation="pfl-research: 1,500 rounds, a network of 1.6 million parameters with dropout, "
        "epsilon 2.",
        options=settings(options),
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
