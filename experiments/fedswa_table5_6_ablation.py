"""Tables 5 and 6 of the FedSWA paper: what the decay, the server step and the controls contribute.

    python -m experiments.fedswa_table5_6_ablation                      # CIFAR-10, small LeNet-5
    python -m experiments.fedswa_table5_6_ablation --scale paper --column cifar100-resnet18

Liu et al., 2025, Table 6 (100 clients, 10 a round, 1,000 rounds) and Table 5 (10 clients, all of them in each of 300
rounds), CIFAR-100 with ResNet-18.  Table 5's skew and local steps are not stated: Dirichlet 0.6 and K = 50 are assumed.
"""  # noqa: E501

import dataclasses

import tyro

from experiments import fedswa_common as common
from experiments.fedswa_report import Published, column
from experiments.fedswa_table2 import COLUMNS

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
class Ablation(common.Options):
    """Options of this experiment."""

    column: str = "cifar10-lenet5"
    tables: tuple[int, ...] = (5, 6)

    def __post_init__(self) -> None:
        super().__post_init__()
        common.check_column(self.column, COLUMNS)
        if not set(self.tables) <= {5, 6}:
            raise ValueError(f"tables is {self.tables}; expected 5, 6 or both")


def main(options: Ablation) -> None:
    """Runs the tables and writes them; published numbers where the setting is the paper's."""
    base = common.skewed(COLUMNS[options.column])
    settings = {
        5: base._replace(name=f"full-{base.name}", rounds=300, num_clients=10, cohort=10),
        6: base,
    }
    for number in options.tables:
        published = {5: TABLE5, 6: TABLE6}[number]
        methods = options.methods or tuple(published)
        shown = published if options.column == "cifar100-resnet18" else {}
        column(f"fedswa_table{number}", settings[number], methods, shown, options)


if __name__ == "__main__":
    main(tyro.cli(Ablation))
