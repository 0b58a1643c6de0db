"""Tables 5 and 6 of the FedSWA paper: effects of the decay, the server step and the controls.

    python -m experiments.fedswa.tables5_6                      # CIFAR-10, small LeNet-5
    python -m experiments.fedswa.tables5_6 --scale paper --column cifar100-resnet18

Liu et al., 2025, Table 6 (100 clients, 10 per round, 1,000 rounds) and Table 5 (10 clients, all of
them in each of 300 rounds), CIFAR-100 with ResNet-18.  Table 5's skew and local steps are not
stated: Dirichlet 0.6 and K = 50 are assumed.
"""

import dataclasses

import tyro

from experiments.fedswa.claims import Published
from experiments.fedswa.comparison import column
from experiments.fedswa.settings import COLUMNS, OneColumn, skewed

P = Published
TABLE5 = {
    "FedAvg": P(58.2), "SCAFFOLD": P(59.9), "FedSAM": P(48.3), "MoFedSAM": P(37.9),
    "FedLESAM": P(59.2), "FedSWA": P(60.2), "FedMo": P(62.5), "FedMoSWA": P(63.2),
}  # fmt: skip
TABLE6 = {
    "FedAvg": P(54.2), "SCAFFOLD": P(54.1), "FedSAM": P(47.8),
    "FedSWA": P(59.8), "FedMo": P(65.9), "FedMoSWA": P(67.9),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ablation(OneColumn):
    """Options of this experiment."""

    tables: tuple[int, ...] = (5, 6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not set(self.tables) <= {5, 6}:
            raise ValueError(f"tables is {self.tables}; expected 5, 6 or both")


def main(options: Ablation) -> None:
    """Runs the tables and writes them; published numbers where the setting is the paper's."""
    base = skewed(COLUMNS[options.column])
    full = base._replace(name=f"full-{base.name}", rounds=300, num_clients=10, cohort=10)
    for number in options.tables:
        setting, published = {5: (full, TABLE5), 6: (base, TABLE6)}[number]
        methods = options.methods or tuple(published)
        paper = published if options.column == "cifar100-resnet18" else {}
        column(f"table{number}", setting, methods, paper, options)


if __name__ == "__main__":
    main(tyro.cli(Ablation, description=__doc__))
