"""Several processes that run one program: which one writes, and how they agree.

JAX connects the processes (``jax.distributed``).  In one process these functions do nothing.
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from fedjax_sim.checks import check_at_least
from fedjax_sim.engine.execution.lost_process import report_lost_process

HEARTBEAT_TIMEOUT = 20  # seconds
_REFUSAL = "fedjax_sim/refusal"
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
    TPU.  The only process of a node has all GPUs that it sees; of several on one node, each has the
    GPU with its number on the node.  Process 0 prints how many processes and devices are connected,
    and how many GPUs are idle.  If a process is killed or frozen, all others end with the exit code
    134 and one line that names it.

    JAX starts here: :func:`~fedjax_sim.engine.execution.devices.use_all_cores` and flags come
        before.

    Args:
        coordinator: address ``host:port`` on which process 0 listens.
        num_processes: number of processes.
        process_id: number of this process, from 0.
        heartbeat_timeout: seconds without a sign of life after which a process counts as lost.

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
        check_at_least(1, num_processes=num_processes)
        if not 0 <= process_id < num_processes:
            raise ValueError(
                f"process_id is {process_id}; expected 0 .. num_processes - 1 = {num_processes - 1}"
            )
    if coordinator is not None:
        _, _, port = coordinator.rpartition(":")
        if not re.fullmatch(r"[^:]+:\d+|\[.+\]:\d+", coordinator) or not 1 <= int(port) < 2**16:
            raise ValueError(f"coordinator is {coordinator!r}; expected host:port")
    check_at_least(1, heartbeat_timeout=heartbeat_timeout)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            local_device_ids=local_device_ids(),
            heartbeat_timeout_seconds=heartbeat_timeout,
        )
    except ValueError as error:
        if coordinator is not None:
            raise
        raise ValueError(
            "coordinator is None and the environment is that of no cluster (Slurm, Open MPI, "
            f"Kubernetes, Cloud TPU); expected {', '.join(given)} ({error})"
        ) from error
    count = jax.process_count()
    if count > 1:
        report_lost_process(count, heartbeat_timeout)
    per_process = np.bincount([device.process_index for device in jax.devices()], minlength=count)
    platform = jax.devices()[0].platform
    idle = gathered(idle_gpus(len(jax.local_devices()), platform))
    if is_first():
        print(connection(platform, per_process.tolist(), idle.tolist()), flush=True)


def local_device_ids(environ: Mapping[str, str] = os.environ) -> list[int] | None:
    """Returns ``[]``, all GPUs that are visible, in the only process of a node; else None.

    None leaves the choice to JAX.  Where a cluster numbers the processes of a node, JAX takes the
    GPU with that number, which is one GPU of many if there is one process.
    """
    chosen = "JAX_LOCAL_DEVICE_IDS" in environ
    return [] if not chosen and _processes_of_node(environ) == 1 else None


def idle_gpus(num_devices: int, platform: str, environ: Mapping[str, str] = os.environ) -> int:
    """Returns this process's share of its node's visible GPUs that no process uses.

    Only the environment that a cluster or a user has set is known; without it the result is 0.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        visible = len([name for name in listed.split(",") if name not in ("", "-1", "NoDevFiles")])
    else:
        visible = int(environ.get("SLURM_GPUS_ON_NODE", 0))
    used = num_devices if platform == "gpu" else 0
    first = environ.get("SLURM_LOCALID", environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0")) == "0"
    return max(visible - used * (_processes_of_node(environ) or 1), 0) if first else 0


def _processes_of_node(environ: Mapping[str, str]) -> int | None:
    """Returns the number of this run's processes on this node; None if the cluster does not say."""
    text = environ.get(
        "SLURM_STEP_TASKS_PER_NODE"
    )  # as 2(x3),1: two on three nodes, one on another
    if text is not None:
        groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
        counts = [int(count) for count, nodes in groups for _ in range(int(nodes or 1))]
        node = int(environ.get("SLURM_NODEID", 0))
        return counts[node] if node < len(counts) else None
    text = environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    return None if text is None else int(text)


def connection(platform: str, per_process: list[int], idle: list[int]) -> str:
    """Returns a line about the connected processes, their devices and idle GPUs."""
    one, several = min(per_process), " ".join(map(str, per_process))
    each = f"{one} per process" if one == max(per_process) else f"by process {several}"
    processes = "process" if len(per_process) == 1 else "processes"
    line = f"{len(per_process)} {processes}, {sum(per_process)} devices ({platform}, {each})"
    unused = f"; idle: {sum(idle)} GPUs (by process {' '.join(map(str, idle))})"
    return line + (unused if any(idle) else "")


def wait_if_lost(error: Exception) -> None:
    """Waits, if an error of a collective may mean that another process is lost.

    JAX then ends this process within the heartbeat timeout, with the line that names the other one.
    Otherwise the call returns after a minute, in one process at once.
    """
    if jax.process_count() > 1 and re.search(_LOST_CONNECTION, str(error)):
        time.sleep(60)


def is_first() -> bool:
    """Returns True in the process that writes files and prints."""
    return jax.process_index() == 0


def on_first(work: Callable[[], object]) -> None:
    """Calls a function in process 0 while the others wait; all processes must call this."""
    error: BaseException | None = None
    if is_first():
        try:
            work()
        except BaseException as caught:
            error = caught
    if any_of(error is not None):
        raise error or RuntimeError("process 0 failed; its message has the reason")


def any_of(flag: bool) -> bool:
    """Returns True if the flag is set in any process; all processes must call this."""
    return bool(gathered(flag).any())


def gathered(value: float) -> np.ndarray:
    """Returns every process's number; all processes must call this."""
    if jax.process_count() == 1:
        return np.array([value])
    from jax.experimental import multihost_utils

    return np.ravel(multihost_utils.process_allgather(np.array(value)))


def first_says(message: str) -> bool:
    """Returns True if process 0 ends with this message, so that this process need not print it.

    Process 0 passes its message on, and the others wait ten seconds for it.  No collective is used,
    since some of the processes may be well.
    """
    if not jax.distributed.is_initialized() or jax.process_count() == 1:
        return False
    # JAX's public functions have no access to the store of the coordination service.
    from jax._src.distributed import global_state

    client: Any = global_state.client
    if is_first():
        client.key_value_set(_REFUSAL, message, allow_overwrite=True)
        return False
    try:
        return client.blocking_key_value_get(_REFUSAL, 10_000) == message
    except RuntimeError:  # process 0 has no message
        return False


def wait(name: str) -> None:
    """Waits until all processes have called this with the same name."""
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
