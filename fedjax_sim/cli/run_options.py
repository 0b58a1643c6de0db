"""Options of ``fedjax-sim run``: a comparison, and what to do with it."""

from typing import Annotated

from fedjax_sim.cli.watching import Watching
from fedjax_sim.engine import HEARTBEAT_TIMEOUT
from fedjax_sim.studies.setups import OPEN, Count, Run, group


@group
class Cluster:
    """Several processes of one run."""

    distributed: bool = False
    """Run as one of several processes that a cluster started (Slurm, Open MPI, Kubernetes, Cloud
    TPU); all processes need the same options."""
    coordinator: str | None = None
    """Address host:port of process 0; default: as the cluster provides it."""
    num_processes: Count | None = None
    """With --coordinator: number of processes; default: as the cluster provides it."""
    process_id: int | None = None
    """With --coordinator: number of this process, from 0; default: as the cluster provides it."""
    heartbeat_timeout: Count = HEARTBEAT_TIMEOUT
    """With several processes: seconds without a sign of life after which one counts as lost, and
    all others end."""


@group
class RunOptions:
    """Every option of ``fedjax-sim run``."""

    run: Annotated[Run, OPEN]
    watching: Annotated[Watching, OPEN] = Watching()
    cluster: Annotated[Cluster, OPEN] = Cluster()
    dry_run: bool = False
    """Print what the comparison needs (memory by part, arithmetic, time) without running it."""
    diagnose: bool = False
    """Convex problems (softmax_regression): measure the constants of FedAvg's theory, and draw its
    bounds over the suboptimality."""
