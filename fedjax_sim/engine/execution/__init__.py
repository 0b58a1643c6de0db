"""Execution of rounds: strategies over clients, and where data and states are stored."""

from fedjax_sim.engine.execution.devices import (
    make_mesh,
    memory_limit,
    num_cores,
    use_all_cores,
    use_command_buffers,
    workers,
)
from fedjax_sim.engine.execution.offload import on_host
from fedjax_sim.engine.execution.placement import by_client
from fedjax_sim.engine.execution.strategies import (
    Execution,
    Gathered,
    Local,
    auto,
    chunked,
    gathered,
    sequential,
    sharded,
    vmapped,
)

__all__ = [
    "Execution",
    "Gathered",
    "Local",
    "auto",
    "by_client",
    "chunked",
    "gathered",
    "make_mesh",
    "memory_limit",
    "num_cores",
    "on_host",
    "sequential",
    "sharded",
    "use_all_cores",
    "use_command_buffers",
    "vmapped",
    "workers",
]
