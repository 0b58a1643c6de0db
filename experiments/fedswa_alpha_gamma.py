"""Figure 5 of the FedSWA paper: FedMoSWA against the server step alpha and the momentum gamma.

    python -m experiments.fedswa_alpha_gamma                     # CIFAR-10, small LeNet-5
    python -m experiments.fedswa_alpha_gamma --scale paper --column cifar100-resnet18

Liu et al., 2025, Figure 5 (CIFAR-100, ResNet-18, Dirichlet 0.6): best at alpha = 1.5, worse above; best at
gamma = 0.2, slow and low at 0.05.  The figures give no numbers.
"""  # noqa: E501

import dataclasses

import tyro

from experiments import fedswa_common as common
from experiments.fedswa_report import grid_table
from experiments.fedswa_table2 import COLUMNS


@dataclasses.dataclass(frozen=True)
class AlphaGamma(common.Options):
    """Options of this experiment."""

    column: str = "cifar10-lenet5"
    alphas: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 2.5)
    gammas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8)

    def __post_init__(self) -> None:
        super().__post_init__()
        common.check_column(self.column, COLUMNS)


def main(options: AlphaGamma) -> None:
    """Runs FedMoSWA over alpha and over gamma, and writes both tables."""
    setting = common.skewed(COLUMNS[options.column])
    for name, values in (("alpha", options.alphas), ("gamma", options.gammas)):
        grid = {"FedMoSWA": [{name: value} for value in values]}
        grid_table(f"fedswa_{name}", setting, grid, name, {}, options)


if __name__ == "__main__":
    main(tyro.cli(AlphaGamma))
