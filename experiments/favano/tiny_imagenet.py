r"""FAVANO on Tiny ImageNet: four methods against the clock, IID clients, Figure 3b.

    python -m experiments.favano.tiny_imagenet --scale paper
    python -m experiments.favano.tiny_imagenet               # a part of it, for CPUs

"FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv 2305.16099), Section 5.  The official
folder ``tiny-imagenet-200`` has to lie in ``FEDJAX_SIM_DATA`` or ``--data-dir``; its validation
images are the test images.  ResNet-18 takes images of 64 x 64 and has group normalisation.
"""

import dataclasses

import pandas as pd
import tyro
from jax import Array

import fedjax_sim as fs
from experiments.favano.image_tables import compared, methods_report
from experiments.favano.images import ImageOptions, Images, Runs, Scale
from experiments.favano.outcomes import by_seed
from experiments.harness import Claim, means, paired, save_report, settings
from fedjax_sim.engine import devices
from fedjax_sim.types import Params

_SMALL = "ResNet-10 of 8 to 64 channels at 32 x 32"


def halved(model: fs.models.Model) -> fs.models.Model:
    """The model on images of half the side: means of four pixels."""

    def apply(params: Params, x: Array) -> Array:
        b, h, w, c = x.shape
        return model.apply(params, x.reshape(b, h // 2, 2, w // 2, 2, c).mean(axis=(2, 4)))

    return model._replace(apply=apply)


TINY_IMAGENET = Images(
    "tiny_imagenet",
    {
        "ResNet-18": lambda classes, conv, dot: fs.models.resnet18(classes, conv=conv, dot=dot),
        _SMALL: lambda classes, conv, dot: halved(
            fs.models.resnet(
                classes, channels=(8, 16, 32, 64), blocks=(1, 1, 1, 1), conv=conv, dot=dot
            )
        ),
    },
    fs.data.augmentation.random_flip,
    # Of CIFAR: the paper gives none, and photographs differ little in these.
    fs.data.augmentation.CIFAR_MEAN,
    fs.data.augmentation.CIFAR_STD,
    lr=0.1,
)
SCALES = {
    "paper": Scale(10_000.0, 100, "ResNet-18", 3, 100),
    "cpu": Scale(
        2500.0, 20, _SMALL, 2, 25, max_steps=5, batch_size=32, examples=1000, test_examples=1000,
        compressed=False,
    ),
    "smoke": Scale(
        200.0, 10, _SMALL, 1, 2, max_steps=2, batch_size=4, examples=3, test_examples=10,
        compressed=False,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Options(ImageOptions):
    """Options of this experiment."""

    images = TINY_IMAGENET
    scales = SCALES


def claims(history: pd.DataFrame) -> list[Claim]:
    """The paper's statement about Figure 3b."""
    by = by_seed(history).pivot(index="seed", columns="algorithm", values="accuracy")
    ahead = [by["FAVANO"] - by[other] for other in by if other != "FAVANO"]
    return [paired("FAVANO is best", means(by), ahead, "IID")]


build = methods_report(
    "Tiny ImageNet against the clock (Figure 3b of FAVANO)",
    "IID clients, horizontal flips; accuracy on validation images, percent.",
    claims,
)


def main(options: Options) -> None:
    """Runs the comparison."""
    devices.use_all_cores()
    runs = Runs(options)
    tables = compared(runs, ["IID"])
    facts = {"scale": runs.describe(), "options": settings(options)}
    save_report(options.folder("tiny_imagenet"), "methods", tables, build, **facts)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
