"""Figure 5 of the FedSWA paper: FedMoSWA against the server step alpha and the momentum gamma.

    python -m experiments.fedswa.alpha_gamma                     # CIFAR-10, small LeNet-5
    python -m experiments.fedswa.alpha_gamma --scale paper --column cifar100-resnet18

Liu et al., 2025, Figure 5 (CIFAR-100, ResNet-18, Dirichlet 0.6): best at alpha = 1.5, worse above;
best at gamma = 0.2, slow and low at 0.05.  The figures give no numbers.
"""

import dataclasses

import tyro

from experiments.fedswa.grids import grid_table
from experiments.fedswa.settings import COLUMNS, OneColumn, skewed


@dataclasses.dataclass(frozen=True)
class AlphaGamma(OneColumn):
    """Options of this experiment."""

    alphas: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0, 2.5)
    gammas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8)


def main(options: AlphaGamma) -> None:
    """Runs FedMoSWA over alpha and over gamma, and writes both tables."""
    setting = skewed(COLUMNS[options.column])
    for name, values in (("alpha", options.alphas), ("gamma", options.gammas)):
        grid = {"FedMoSWA": [{name: value} for value in values]}
        grid_table(name, setting, grid, name, {}, options)


if __name__ == "__main__":
    main(tyro.cli(AlphaGamma, description=__doc__))
