# ruff: noqa: F403
"""Federated algorithms, one per file; each file's ``__all__`` names its factories."""

import inspect

from fedjax_sim.algorithms.agd import *
from fedjax_sim.algorithms.async_sgd import *
from fedjax_sim.algorithms.averaged_fedavg import *
from fedjax_sim.algorithms.averaged_feddualavg import *
from fedjax_sim.algorithms.favano import *
from fedjax_sim.algorithms.fedac import *
from fedjax_sim.algorithms.fedacg import *
from fedjax_sim.algorithms.fedasam import *
from fedjax_sim.algorithms.fedasync import *
from fedjax_sim.algorithms.fedavg import *
from fedjax_sim.algorithms.fedavg_subgradient import *
from fedjax_sim.algorithms.fedbuff import *
from fedjax_sim.algorithms.feddualavg import *
from fedjax_sim.algorithms.feddyn import *
from fedjax_sim.algorithms.fedgamma import *
from fedjax_sim.algorithms.fedlesam import *
from fedjax_sim.algorithms.fedmid import *
from fedjax_sim.algorithms.fedopt import *
from fedjax_sim.algorithms.fedprox import *
from fedjax_sim.algorithms.fedsam import *
from fedjax_sim.algorithms.fedsmoo import *
from fedjax_sim.algorithms.fedswa import *
from fedjax_sim.algorithms.mb_ac_sgd import *
from fedjax_sim.algorithms.mb_sgd import *
from fedjax_sim.algorithms.mofedsam import *
from fedjax_sim.algorithms.quafl import *
from fedjax_sim.algorithms.scaffold import *

# The factories, without the modules of the same names.
__all__ = [name for name, value in vars().items() if inspect.isfunction(value)]  # pyright: ignore[reportUnsupportedDunderAll]
