"""Table 3 of the FedSWA paper: CIFAR-100 with ResNet-18, Tiny ImageNet with ViT-Base, three skews.

    python -m experiments.fedswa.table3 --scale paper --columns cifar100-resnet18-dirichlet0.6
    python -m experiments.fedswa.table3 --scale smoke --columns tiny_imagenet-vit_tiny-dirichlet0.6

Liu et al., 2025, Tables 3 and 8 (ResNet-18: 1,000 rounds, target 55 %; ViT-Base: 400 rounds, target
70 %).  The paper's ViT is pretrained on ImageNet-21k: ``--pretrained`` names a local file with its
parameters in timm's, Hugging Face's or Google's naming; images are resized to 224 on the device.
``vit_tiny`` columns train a small ViT on 64 x 64 images from scratch and have no published number.
"""

import dataclasses

import tyro

from experiments.fedswa.claims import Published
from experiments.fedswa.comparison import column
from experiments.fedswa.settings import Options, Setting
from experiments.harness import check_names

SKEWS = (0.1, 0.3, 0.6)
COLUMNS = {
    f"{dataset}-{model}-dirichlet{skew:g}": Setting(
        f"{dataset}-{model}-dirichlet{skew:g}", dataset, model, skew, rounds, target
    )
    for dataset, model, rounds, target in (
        ("cifar100", "resnet18", 1000, 55),
        ("tiny_imagenet", "vit_base16", 400, 70),
        ("tiny_imagenet", "vit_tiny", 400, 70),
    )
    for skew in SKEWS
}

# In the order of the first six columns.
P = Published
PAPER = {
    "FedAvg": (P(45.8), P(52.5), P(54.2), P(70.9, 258), P(71.8, 223), P(72.8, 208)),
    "FedDyn": (P(45.8), P(45.9), P(46.5), P(67.5), P(68.2), P(69.3)),
    "SCAFFOLD": (P(44.3), P(50.3), P(52.3), P(71.6, 202), P(72.5, 192), P(73.1, 169)),
    "FedSAM": (P(40.1), P(49.0), P(51.9), P(71.4, 212), P(72.2, 194), P(72.9, 180)),
    "MoFedSAM": (P(51.5), P(57.5, 770), P(60.1, 603), P(71.6, 229), P(72.4, 214), P(72.5, 209)),
    "FedLESAM": (P(48.7), P(53.3), P(52.1), P(71.9, 210), P(72.1, 188), P(72.5, 182)),
    "FedASAM": (P(47.7), P(46.6), P(49.8), P(69.2), P(71.3, 234), P(72.1, 196)),
    "FedACG": (P(52.2), P(57.7, 717), P(61.7, 518), P(66.2), P(68.5), P(70.2, 386)),
    "FedSWA": (P(50.3), P(55.5, 889), P(59.8, 574), P(71.9, 199), P(72.6, 179), P(73.2, 168)),
    "FedMoSWA": (
        P(61.9, 577), P(66.2, 468), P(67.9, 330), P(73.8, 161), P(74.4, 152), P(74.7, 144)
    ),
    # Table 8; it has no rounds, and no Tiny ImageNet.
    "FedSMOO": (P(46.5), P(47.8), P(49.2)),
    "FedGAMMA": (P(48.4), P(51.8), P(52.6)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Table3(Options):
    """Options of this experiment."""

    columns: tuple[str, ...] = ("cifar100-resnet18-dirichlet0.6",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names("columns", self.columns, COLUMNS)


def main(options: Table3) -> None:
    """Runs the columns and writes their tables."""
    for name in options.columns:
        place = list(COLUMNS).index(name)
        published = {method: row[place] for method, row in PAPER.items() if place < len(row)}
        column("table3", COLUMNS[name], options.methods or tuple(PAPER), published, options)


if __name__ == "__main__":
    main(tyro.cli(Table3, description=__doc__))
