"""Several processes that run one program: which one writes, and how they agree.

JAX connects the processes (``jax.distributed``).  In one process these functions do nothing.
"""

import re
import time
from collections.abc import Callable

import jax
import numpy as np

from fedjax_sim.checks import check_at_least
from fedjax_sim.execution.lost_process import report_lost_process

HEARTBEAT_TIMEOUT = 20  # seconds
_LOST_CONNECTION = r"Gloo|NCCL|UNAVAILABLE|DEADLINE_EXCEEDED|[Cc]onnection|[Hh]eartbeat"


def connect(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_timeout: int = HEARTBEAT_TIMEOUT,
) -> None:
    """Connects this process with the others of its run; call it before anything else uses JAX.

    Without arguments JAX reads the environment of the cluster: Slurm, Open MPI, Kubernetes, Cloud
    TPU.  If a process is killed or frozen, all others end with the exit code 134 and one line that
    names it.

    Args:
        coordinator: address ``host:port`` on which process 0 listens.
        num_processes: number of processes.
        process_id: number of this process, from 0.
        heartbeat_timeout: seconds without a sign of life after which a process counts as lost.

    Raises:
        ValueError: only some of the three are given, or a number is out of range.

    Example:
        >>> connect("localhost:1234", num_processes=2, process_id=2)
        Traceback (most recent call last):
        ValueError: process_id is 2; expected 0 .. num_processes - 1 = 1
    """
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        raise ValueError(f"{missing[0]} is None; expected all of {', '.join(given)}, or none")
    if num_processes is not None and process_id is not None:
        if num_processes < 1:
            raise ValueError(f"num_processes is {num_processes}; expected at least 1")
        if not 0 <= process_id < num_processes:
            raise ValueError(
                f"process_id is {process_id}; expected 0 .. num_processes - 1 = {num_processes - 1}"
            )
    check_at_least(1, heartbeat_timeout=heartbeat_timeout)
    jax.distributed.initialize(
        coordinator, num_processes, process_id, heartbeat_timeout_seconds=heartbeat_timeout
    )
    if jax.process_count() > 1:
        report_lost_process(jax.process_count(), heartbeat_timeout)


def wait_if_lost(error: Exception) -> None:
    """Waits, if an error of a collective may mean that another process is lost.

    JAX then ends this process within the heartbeat timeout, with the line that names the other one.
    Otherwise the call returns after a minute, in one process at once.

    Example:
        >>> wait_if_lost(ValueError("Gloo AllGather failed: Connection reset by peer"))
    """
    if jax.process_count() > 1 and re.search(_LOST_CONNECTION, str(error)):
        time.sleep(60)


def is_first() -> bool:
    """Returns True in the process that writes files and prints.

    Example:
        >>> is_first()
        True
    """
    return jax.process_index() == 0


def on_first(work: Callable[[], object]) -> None:
    """Calls a function in process 0 while the others wait; all processes must call this.

    Raises:
        RuntimeError: in the other processes, if the function raised in process 0.

    Example:
        >>> on_first(lambda: print("written"))
        written
    """
    error: BaseException | None = None
    if is_first():
        try:
            work()
        except BaseException as caught:
            error = caught
    if any_of(error is not None):
        raise error or RuntimeError("process 0 failed; its message has the reason")


def any_of(flag: bool) -> bool:
    """Returns True if the flag is set in any process; all processes must call this.

    Example:
        >>> any_of(True)
        True
    """
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(multihost_utils.process_allgather(np.array(flag)).any())


def wait(name: str) -> None:
    """Waits until all processes have called this with the same name.

    Example:
        >>> wait("history created")
    """
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
