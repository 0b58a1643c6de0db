"""Federated learning as one compiled program: every client is a slice of a batched pytree."""

from fedjax_sim import algorithms, cohort, data, gradients, participation
from fedjax_sim.algorithms import (
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedprox,
    fedsgd,
    fedyogi,
    scaffold,
)
from fedjax_sim.data.batches import epochs, full_batch, with_replacement
from fedjax_sim.data.federated import FederatedData, from_assignment, from_clients
from fedjax_sim.data.task import empirical_task, shared_task
from fedjax_sim.engine import (
    History,
    Probes,
    RunState,
    Update,
    Visit,
    advance,
    by_examples,
    run,
    start,
    uniform_weights,
)
from fedjax_sim.simulation import simulate
from fedjax_sim.sweep_program import Setup
from fedjax_sim.sweeps import Sweep, sweep
from fedjax_sim.typing import FedAlgorithm, Oracle, Round, Task, Timeline, Work

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
    "by_examples",
    "cohort",
    "data",
    "empirical_task",
    "epochs",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavgm",
    "fedprox",
    "fedsgd",
    "fedyogi",
    "from_assignment",
    "from_clients",
    "full_batch",
    "gradients",
    "participation",
    "run",
    "scaffold",
    "shared_task",
    "simulate",
    "start",
    "sweep",
    "uniform_weights",
    "with_replacement",
]
