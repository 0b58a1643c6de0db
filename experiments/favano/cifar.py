r"""FAVANO on CIFAR-10: methods against the clock, clients per contact, networks of few bits.

    python -m experiments.favano.cifar                      # non-IID and IID, Figures 3a and 6
    python -m experiments.favano.cifar --part selected      # clients per contact, Figure 7
    python -m experiments.favano.cifar --part quantized     # FAVANO[QNN], messages of few bits

The scale ``cpu`` takes about an hour of two cores for the three parts together.  Every method at a
rate of its own, over the whole time: :mod:`experiments.favano.cifar_tuned`.

"FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5 and Appendix C;
:mod:`experiments.favano.images` says what differs.
"""

import dataclasses
from typing import Literal

import tyro

import fedjax_sim as fs
from experiments.favano import cifar_report
from experiments.favano.cifar_parts import quantised, selected
from experiments.favano.image_tables import compared
from experiments.favano.images import SPLITS, ImageOptions, Images, Runs, Scale
from experiments.harness import save_report, settings
from fedjax_sim.engine import devices

CIFAR = Images(
    "cifar10",
    {
        "ResNet-20": lambda classes, conv, dot: fs.models.resnet20(classes, conv=conv, dot=dot),
        "LeNet-5": lambda classes, conv, dot: fs.models.lenet5(classes, conv=conv, dot=dot),
    },
    fs.data.augmentation.crop_and_flip,
    fs.data.augmentation.CIFAR_MEAN,
    fs.data.augmentation.CIFAR_STD,
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

    part: Literal["methods", "selected", "quantized"] = "methods"

    images = CIFAR
    scales = SCALES


def main(options: Options) -> None:
    """Runs one part."""
    devices.use_all_cores()
    runs = Runs(options)
    parts = {
        "methods": lambda runs: compared(runs, list(SPLITS)), "selected": selected,
        "quantized": quantised,
    }  # fmt: skip
    tables = parts[options.part](runs)
    facts = {"scale": runs.describe(), "options": settings(options)}
    folder, build = options.folder("cifar"), cifar_report.REPORTS[options.part]
    save_report(folder, options.part, tables, build, **facts)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
