"""The devices of this process, and how a CPU's cores become several of them.

XLA:CPU runs the small operations of a local step on one core.  Several host devices, one a core,
run clients or configurations side by side; they have to be asked for before JAX starts its backend.
"""

import os

import jax

from fedjax_sim.types import Device


def use_all_cores(num_devices: int | None = None, *, threads: int = 1) -> int:
    """Asks JAX for one host device a core; returns how many host devices there will be.

    Call it before anything else uses JAX (importing is no use).  A number that the user has chosen
    already, by ``XLA_FLAGS`` or ``jax_num_cpu_devices``, is kept.  Devices of other platforms
    are not affected.

    Args:
        num_devices: default: the cores this process may use.
        threads: of XLA's pool, for every core.  Matrix decompositions (the nuclear norm) of several
            devices wait in that pool for each other's parts, with one thread a core for ever: give
            them 4.  The environment variable NPROC, the size of the pool, is kept if it is set.

    Raises:
        ValueError: a number below 1.
        RuntimeError: JAX has started already, with another number.

    Example:
        >>> use_all_cores(0)
        Traceback (most recent call last):
        ValueError: num_devices is 0; expected at least 1
    """
    if num_devices is not None and num_devices < 1:
        raise ValueError(f"num_devices is {num_devices}; expected at least 1")
    if threads < 1:
        raise ValueError(f"threads is {threads}; expected at least 1")
    if threads > 1:
        os.environ.setdefault("NPROC", str(threads * num_cores()))
    chosen = jax.config.values["jax_num_cpu_devices"]
    if chosen < 0 and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", num_devices or num_cores())
    return len(jax.devices("cpu"))


def num_cores() -> int:
    """The cores this process may use.

    Example:
        >>> num_cores() >= 1
        True
    """
    available = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(available(0)) if available else os.cpu_count() or 1


def workers() -> list[Device]:
    """The devices worth working side by side: all of them, on CPU no more than there are cores.

    Example:
        >>> len(workers()) >= 1
        True
    """
    devices = jax.local_devices()
    return devices[: num_cores()] if devices[0].platform == "cpu" else devices


def memory_limit(device: Device) -> int:
    """Bytes a program may use on a device: 90 % of what an accelerator reports; of the host's
    memory half, divided by the host devices in use.

    Does not depend on what else runs, so that a plan made from it can be made again.

    Raises:
        ValueError: an accelerator that does not report it.

    Example:
        >>> memory_limit(jax.devices()[0]) > 0
        True
    """
    if device.platform == "cpu":
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total // 2 // len(workers())
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is None:
        raise ValueError(
            f"device {device} does not report its memory; expected the bytes as `memory`"
        )
    return int(0.9 * limit)
