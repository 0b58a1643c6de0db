"""Federated learning as one compiled program: every client is a slice of a batched pytree."""

from fedjax_sim import (
    algorithms,
    compression,
    data,
    diagnostics,
    execution,
    problems,
    prox,
    theory,
    timelines,
    transforms,
)
from fedjax_sim.algorithms import *  # noqa: F403
from fedjax_sim.compression import compressed
from fedjax_sim.data.batches import epochs, full_batch, stream, with_replacement
from fedjax_sim.data.federated import FederatedData, from_assignment, from_clients
from fedjax_sim.data.task import empirical_task, shared_task
from fedjax_sim.engine import (
    History,
    Probes,
    RunState,
    Update,
    Visit,
    advance,
    init,
    run,
)
from fedjax_sim.simulation.simulate import simulate
from fedjax_sim.sweeps.sweep import Sweep, sweep
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Round,
    Setup,
    Task,
    Timeline,
    Work,
    uniform_weights,
    weight_by_examples,
)
from fedjax_sim.wrappers import average_rounds, skip_nonfinite

__all__ = [
    "FedAlgorithm",
    "FederatedData",
    "History",
    "Oracle",
    "Probes",
    "Round",
    "RunState",
    "Setup",
    "Sweep",
    "Task",
    "Timeline",
    "Update",
    "Visit",
    "Work",
    "advance",
    "algorithms",
    "average_rounds",
    "compressed",
    "compression",
    "data",
    "diagnostics",
    "empirical_task",
    "epochs",
    "execution",
    "from_assignment",
    "from_clients",
    "full_batch",
    "init",
    "problems",
    "prox",
    "run",
    "shared_task",
    "simulate",
    "skip_nonfinite",
    "stream",
    "sweep",
    "theory",
    "timelines",
    "transforms",
    "uniform_weights",
    "weight_by_examples",
    "with_replacement",
]
__all__ += algorithms.__all__
