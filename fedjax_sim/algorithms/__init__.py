# ruff: noqa: F403, F405
"""Federated algorithms, one per file; each file's ``__all__`` names its factories.

Every factory raises ValueError for numbers outside of their ranges, for example a negative rate, a
decay of 1 or more, or 2.5 steps.  Traced numbers and schedules are not checked.
"""

from fedjax_sim.algorithms.afl import *
from fedjax_sim.algorithms.agd import *
from fedjax_sim.algorithms.apfl import *
from fedjax_sim.algorithms.async_sgd import *
from fedjax_sim.algorithms.averaged_fedavg import *
from fedjax_sim.algorithms.averaged_feddualavg import *
from fedjax_sim.algorithms.diloco import *
from fedjax_sim.algorithms.ditto import *
from fedjax_sim.algorithms.favano import *
from fedjax_sim.algorithms.fedac import *
from fedjax_sim.algorithms.fedacg import *
from fedjax_sim.algorithms.fedadamw import *
from fedjax_sim.algorithms.fedala import *
from fedjax_sim.algorithms.fedasam import *
from fedjax_sim.algorithms.fedasync import *
from fedjax_sim.algorithms.fedavg import *
from fedjax_sim.algorithms.fedavg_ft import *
from fedjax_sim.algorithms.fedavg_subgradient import *
from fedjax_sim.algorithms.fedbabu import *
from fedjax_sim.algorithms.fedbn import *
from fedjax_sim.algorithms.fedbuff import *
from fedjax_sim.algorithms.fedcm import *
from fedjax_sim.algorithms.feddf import *
from fedjax_sim.algorithms.feddualavg import *
from fedjax_sim.algorithms.feddyn import *
from fedjax_sim.algorithms.fedexp import *
from fedjax_sim.algorithms.fedgamma import *
from fedjax_sim.algorithms.fedgloss import *
from fedjax_sim.algorithms.fedinit import *
from fedjax_sim.algorithms.fedlesam import *
from fedjax_sim.algorithms.fedlin import *
from fedjax_sim.algorithms.fedmid import *
from fedjax_sim.algorithms.fedmuon import *
from fedjax_sim.algorithms.fednova import *
from fedjax_sim.algorithms.fedntd import *
from fedjax_sim.algorithms.fedopt import *
from fedjax_sim.algorithms.fedper import *
from fedjax_sim.algorithms.fedproto import *
from fedjax_sim.algorithms.fedprox import *
from fedjax_sim.algorithms.fedrep import *
from fedjax_sim.algorithms.fedsam import *
from fedjax_sim.algorithms.fedsmoo import *
from fedjax_sim.algorithms.fedspeed import *
from fedjax_sim.algorithms.fedswa import *
from fedjax_sim.algorithms.fedvarp import *
from fedjax_sim.algorithms.ifca import *
from fedjax_sim.algorithms.lg_fedavg import *
from fedjax_sim.algorithms.mb_ac_sgd import *
from fedjax_sim.algorithms.mb_sgd import *
from fedjax_sim.algorithms.mime import *
from fedjax_sim.algorithms.mofedsam import *
from fedjax_sim.algorithms.moon import *
from fedjax_sim.algorithms.perfedavg import *
from fedjax_sim.algorithms.pfedme import *
from fedjax_sim.algorithms.q_fedavg import *
from fedjax_sim.algorithms.quafl import *
from fedjax_sim.algorithms.scaffnew import *
from fedjax_sim.algorithms.scaffold import *
from fedjax_sim.algorithms.scaffold_m import *
from fedjax_sim.algorithms.streaming_diloco import *
from fedjax_sim.algorithms.term import *

# Written out for type checkers of users' programs; tests/test_public_names.py compares it with the
# files.
__all__ = [
    "afl",
    "agd",
    "apfl",
    "async_sgd",
    "averaged_fedavg",
    "averaged_feddualavg",
    "diloco",
    "ditto",
    "favano",
    "fedac",
    "fedacg",
    "fedadagrad",
    "fedadam",
    "fedadamw",
    "fedala",
    "fedasam",
    "fedasync",
    "fedavg",
    "fedavg_ft",
    "fedavg_subgradient",
    "fedavgm",
    "fedbabu",
    "fedbn",
    "fedbuff",
    "fedcm",
    "feddf",
    "feddualavg",
    "feddualavg_osp",
    "feddyn",
    "fedexp",
    "fedgamma",
    "fedgloss",
    "fedinit",
    "fedlesam",
    "fedlin",
    "fedmid",
    "fedmid_osp",
    "fedmo",
    "fedmoswa",
    "fedmuon",
    "fednova",
    "fedntd",
    "fedper",
    "fedproto",
    "fedprox",
    "fedrep",
    "fedsam",
    "fedsgd",
    "fedsmoo",
    "fedspeed",
    "fedswa",
    "fedvarp",
    "fedyogi",
    "gradient_controls",
    "ifca",
    "lg_fedavg",
    "mb_ac_sgd",
    "mb_sgd",
    "mime",
    "mimelite",
    "mofedsam",
    "moon",
    "perfedavg",
    "pfedme",
    "q_fedavg",
    "quafl",
    "scaffnew",
    "scaffold",
    "scaffold_m",
    "streaming_diloco",
    "term",
]
