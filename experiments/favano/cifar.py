r"""FAVANO on CIFAR-10: methods against the clock, clients per contact, networks of few bits.

    python -m experiments.favano.cifar                      # non-IID and IID, Figures 3a and 6
    python -m experiments.favano.cifar --part selected      # clients per contact, Figure 7
    python -m experiments.favano.cifar --part quantized     # FAVANO[QNN], messages of few bits
    python -m experiments.favano.cifar --part rates         # every method at its best of some rates

The scale ``cpu`` takes about an hour of two cores for the three parts together.

"FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5 and Appendix C;
:mod:`experiments.favano.images` says what differs.
"""

import dataclasses
import pathlib
from typing import Literal

import tyro

from experiments.favano.cifar_parts import quantised, rates, selected
from experiments.favano.image_tables import best_two, by_setting, compared, save
from experiments.favano.images import SPLITS, ImageOptions, Images, Runs, Scale
from experiments.favano.outcomes import curves
from experiments.harness import Claim
from fedjax_sim import models
from fedjax_sim.data import augmentation
from fedjax_sim.execution import devices

CIFAR = Images(
    "cifar10",
    {
        "ResNet-20": lambda classes, conv, dot: models.resnet20(classes, conv=conv, dot=dot),
        "LeNet-5": lambda classes, conv, dot: models.lenet5(classes, conv=conv, dot=dot),
    },
    augmentation.crop_and_flip,
    augmentation.CIFAR_MEAN,
    augmentation.CIFAR_STD,
    lr=0.005,
)
SCALES = {
    "paper": Scale(10_000.0, 100, "ResNet-20", 3, 100),
    "cpu": Scale(2500.0, 20, "LeNet-5", 2, 25, batch_size=64, examples=500, test_examples=2000),
    "smoke": Scale(
        200.0, 10, "LeNet-5", 1, 2, max_steps=3, batch_size=8, examples=20, test_examples=50,
        compressed=False,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Options(ImageOptions):
    """Options of this experiment."""

    part: Literal["methods", "rates", "selected", "quantized"] = "methods"
    lrs: tuple[float, ...] = (0.0625, 0.2)  # of the part rates; the first is the paper's at 800

    images = CIFAR
    scales = SCALES


def four_methods(runs: Runs, folder: pathlib.Path) -> None:
    """Figures 3a and 6: the four methods, and the distances of their clients' models."""
    table, history, tuning = compared(runs, list(SPLITS))
    claims = best_two(table)
    for setting, apart in by_setting(table, "variance").items():
        apart = {name: apart[name] for name in ("FedBuff", "FAVANO")}
        larger = apart["FedBuff"] > apart["FAVANO"]
        claims.append(Claim("FedBuff's variance is larger", apart, larger, setting))
    explained = (
        "Accuracy on test images, percent. `variance`: the sum over the clients of the squared "
        "distance of their models from the server's, mean over the last fifth of the time."
    )
    title = "CIFAR-10 against the clock (Figures 3a and 6 of FAVANO)"
    figures = {}
    for metric in ("accuracy", "variance"):
        figures |= curves(history, list(SPLITS), metric, "time")
    save(runs, folder, "methods", title, history, [explained, table], tuning, claims, figures)


def main(options: Options) -> None:
    """Runs one part."""
    devices.use_all_cores()
    folder = options.folder("cifar")
    if options.part == "rates":
        return rates(options, options.lrs, folder)
    part = {"methods": four_methods, "selected": selected, "quantized": quantised}[options.part]
    return part(Runs(options), folder)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
