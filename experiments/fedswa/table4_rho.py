"""Table 4 of the FedSWA paper: accuracy against the floor rho of the rate within a visit.

    python -m experiments.fedswa.table4_rho                      # CIFAR-10, small LeNet-5
    python -m experiments.fedswa.table4_rho --scale paper --column cifar100-resnet18

Liu et al., 2025, Table 4 (CIFAR-100, ResNet-18, Dirichlet 0.6, 1,000 rounds).  The paper's text
says that rho = 1 is FedAvg, so alpha is 1 there at least; it does not say what alpha is elsewhere.
The default, --alphas 1 1.5, runs both.
"""

import dataclasses

import tyro

from experiments.fedswa.grids import grid_table
from experiments.fedswa.methods import ALPHA
from experiments.fedswa.settings import COLUMNS, OneColumn, skewed

RHOS = (0.1, 0.2, 0.3, 0.4, 0.7, 0.8, 1.0)
PAPER = {
    "FedSWA": (59.8, 58.5, 57.9, 56.6, 55.3, 54.6, 54.2),
    "FedMoSWA": (67.9, 67.3, 67.0, 66.8, 66.5, 66.3, 65.9),
}


@dataclasses.dataclass(frozen=True)
class Table4(OneColumn):
    """Options of this experiment."""

    rhos: tuple[float, ...] = RHOS
    alphas: tuple[float, ...] = (1.0, ALPHA)


def main(options: Table4) -> None:
    """Runs both methods over rho and alpha, and writes the table."""
    grid = {
        method: [{"rho": r, "alpha": a} for a in options.alphas for r in options.rhos]
        for method in options.methods or tuple(PAPER)
    }
    paper = PAPER if options.column == "cifar100-resnet18" else {}
    published = {
        (method, rho): value
        for method, values in paper.items()
        for rho, value in zip(RHOS, values, strict=True)
    }
    grid_table("table4_rho", skewed(COLUMNS[options.column]), grid, "rho", published, options)


if __name__ == "__main__":
    main(tyro.cli(Table4, description=__doc__))
