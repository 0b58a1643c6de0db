"""FedSWA's two parts apart: the decay within a round and the server step.

    python -m experiments.fedswa.parts                     # CIFAR-10, small LeNet-5
    python -m experiments.fedswa.parts --scale paper --column cifar100-resnet18

Liu et al., 2025, have no such table; Tables 5 and 6 always change both.  FedSWA with rho = 1 and
alpha = 1 is FedAvg.
"""

import tyro

from experiments.fedswa.grids import grid_table
from experiments.fedswa.methods import ALPHA, RHO
from experiments.fedswa.settings import COLUMNS, OneColumn, skewed

PARTS = [{"rho": rho, "alpha": alpha} for alpha in (1.0, ALPHA) for rho in (1.0, RHO)]


def main(options: OneColumn) -> None:
    """Runs FedSWA with both parts, one, and none, and writes the table."""
    grid_table("parts", skewed(COLUMNS[options.column]), {"FedSWA": PARTS}, "rho", {}, options)


if __name__ == "__main__":
    main(tyro.cli(OneColumn, description=__doc__))
