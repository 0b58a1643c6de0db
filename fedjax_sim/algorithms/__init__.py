"""Federated algorithms, one family a file."""

from fedjax_sim.algorithms.fedavg import (
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedprox,
    fedsgd,
    fedyogi,
)
from fedjax_sim.algorithms.scaffold import scaffold

__all__ = [
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedprox",
    "fedsgd",
    "fedyogi",
    "scaffold",
]
