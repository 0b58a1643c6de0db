"""Federated algorithms, one family a file."""

from fedjax_sim.algorithms.asynchronous import async_sgd, favano, fedasync, fedbuff, quafl
from fedjax_sim.algorithms.composite import (
    fedavg_subgradient,
    feddualavg,
    feddualavg_osp,
    fedmid,
    fedmid_osp,
)
from fedjax_sim.algorithms.composite_averaging import averaged_feddualavg
from fedjax_sim.algorithms.fedac import fedac
from fedjax_sim.algorithms.fedacg import fedacg
from fedjax_sim.algorithms.fedavg import (
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedprox,
    fedsgd,
    fedyogi,
)
from fedjax_sim.algorithms.feddyn import feddyn
from fedjax_sim.algorithms.fedsmoo import fedsmoo
from fedjax_sim.algorithms.fedswa import fedmo, fedmoswa, fedswa
from fedjax_sim.algorithms.minibatch import agd, mb_ac_sgd, mb_sgd
from fedjax_sim.algorithms.output_averaging import average_rounds, averaged_fedavg
from fedjax_sim.algorithms.sam import fedasam, fedgamma, fedlesam, fedsam, mofedsam
from fedjax_sim.algorithms.scaffold import gradient_controls, scaffold

__all__ = [
    "agd",
    "async_sgd",
    "average_rounds",
    "averaged_fedavg",
    "averaged_feddualavg",
    "favano",
    "fedac",
    "fedacg",
    "fedadagrad",
    "fedadam",
    "fedasam",
    "fedasync",
    "fedavg",
    "fedavg_subgradient",
    "fedavgm",
    "fedbuff",
    "feddualavg",
    "feddualavg_osp",
    "feddyn",
    "fedgamma",
    "fedlesam",
    "fedmid",
    "fedmid_osp",
    "fedmo",
    "fedmoswa",
    "fedprox",
    "fedsam",
    "fedsgd",
    "fedsmoo",
    "fedswa",
    "fedyogi",
    "gradient_controls",
    "mb_ac_sgd",
    "mb_sgd",
    "mofedsam",
    "quafl",
    "scaffold",
]
