"""Devices of this process, meshes of them, and cores of a CPU as several devices.

XLA:CPU runs the small operations of a local step on one core.  Several host devices, one per core,
run clients or configurations side by side.  They must be requested before JAX starts its backend.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import MutableMapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh

from fedjax_sim.checks import check_at_least, host_memory
from fedjax_sim.types import Device, PyTree
from fedjax_sim.types.platforms import Platform


def make_mesh(devices: Sequence[Device], axis: str = "clients") -> Mesh:
    """Returns a mesh of the devices with one axis.

    Example:
        >>> dict(make_mesh(jax.devices()[:1]).shape)
        {'clients': 1}
    """
    return Mesh(np.array(devices), (axis,), axis_types=(AxisType.Auto,))


def automatic(mesh: Mesh, axis: str) -> Mesh:
    """Returns a mesh with axes of type Auto: shardings are then no part of the arrays' types."""
    if axis not in mesh.shape:
        raise ValueError(f"axis is {axis!r}; expected one of the mesh's {tuple(mesh.shape)}")
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def check_no_explicit_mesh() -> None:
    """Refuses a context of ``jax.set_mesh`` whose axes have the type Explicit."""
    if axes := jax.sharding.get_abstract_mesh().explicit_axes:
        raise ValueError(
            f"jax.set_mesh has the axes {axes} of type Explicit; expected no such context, or axes "
            "of type AxisType.Auto, around clients that are divided over devices"
        )


# What depends on the platform inside a program is decided when the program is lowered
# (`by_platform`, lowering rules). `platform_of` is for decisions before tracing.
def platform_of(values: PyTree) -> Platform | None:
    """Returns the platform of the program that takes these arguments; None if lowering decides.

    It is that of the devices that the arrays are on, and of JAX's default device for NumPy arrays.
    Lowering decides for tracers and for shapes without a sharding.
    """
    for leaf in jax.tree.leaves(values):
        sharding = None if isinstance(leaf, Tracer) else getattr(leaf, "sharding", None)
        if sharding is not None:
            return platform_named(next(iter(sharding.device_set)).platform)
        if isinstance(leaf, Tracer | jax.ShapeDtypeStruct):
            return None
    default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(default, str):
        return platform_named(default)
    return platform_named((default or jax.local_devices()[0]).platform)


def platform_named(name: str) -> Platform:
    """Returns the platform with one of JAX's names; all but CPUs and TPUs count as GPUs."""
    return "cpu" if name == "cpu" else "tpu" if name == "tpu" else "gpu"


# With these, XLA:GPU turns a whole run into one command buffer (a CUDA graph), see
# docs/performance.md. The pass that is turned off makes copies of slices that no graph can hold.
COMMAND_BUFFER_FLAGS = {
    "xla_gpu_enable_command_buffer": "+WHILE",
    "xla_gpu_graph_min_graph_size": "1",
    "xla_disable_hlo_passes": "fusion-dynamic-memcpy-rewriter",
}


def use_all_cores(num_devices: int | None = None, *, threads: int = 1) -> int:
    """Requests one host device per core from JAX; returns the number of host devices.

    Call it before anything else uses JAX (importing JAX is allowed), also before
    :func:`fedjax_sim.engine.execution.distributed.connect`.  It does not start JAX.  A number that
    the user has already chosen, by ``XLA_FLAGS`` or ``jax_num_cpu_devices``, is kept.  Devices of
    other platforms are not affected.

    Args:
        num_devices: default: the cores that this process may use.
        threads: threads of XLA's pool per core.  Matrix decompositions (the nuclear norm) of
            several devices wait in that pool for each other, with one thread per core forever: use
            4.  The environment variable NPROC, the size of the pool, is kept if it is set.

    Raises:
        ValueError: a number below 1.
        RuntimeError: JAX has already started with another number.

    Example:
        >>> use_all_cores(0)
        Traceback (most recent call last):
        ValueError: num_devices is 0; expected at least 1
    """
    check_at_least(1, num_devices=num_devices, threads=threads)
    if threads > 1:
        os.environ.setdefault("NPROC", str(threads * num_cores()))
    chosen = jax.config.values["jax_num_cpu_devices"]
    flags = os.environ.get("XLA_FLAGS", "")
    forced = re.findall(r"--xla_force_host_platform_device_count=(\d+)", flags)
    if chosen < 0 and not forced:
        chosen = num_devices or num_cores()
        jax.config.update("jax_num_cpu_devices", chosen)
    return chosen if chosen >= 0 else int(forced[-1])


def use_command_buffers(environ: MutableMapping[str, str] | None = None) -> bool:
    """Sets XLA flags with which a GPU runs loops by itself; returns True if it set any.

    Without them, the host starts every iteration of a loop and reads its predicate back: once per
    local step and per round.  Call it before anything else uses JAX (importing JAX is allowed).  It
    sets nothing without JAX's CUDA plugin, or if JAX_PLATFORMS excludes CUDA, and never a flag that
    ``XLA_FLAGS`` already has.

    Args:
        environ: variables that are read and set; default: those of the process.

    Example:
        >>> use_command_buffers({"JAX_PLATFORMS": "cpu"})
        False
    """
    environ = os.environ if environ is None else environ
    platforms = environ.get("JAX_PLATFORMS", "") or "cuda"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    if not {"cuda", "gpu"} & set(platforms.split(",")):
        return False
    if not any(plugin.name.startswith("xla_cuda") for plugin in plugins):
        return False
    chosen = environ.get("XLA_FLAGS", "")
    missing = [f"--{k}={v}" for k, v in COMMAND_BUFFER_FLAGS.items() if f"--{k}" not in chosen]
    environ["XLA_FLAGS"] = " ".join(filter(None, [chosen, *missing]))
    return bool(missing)


def num_cores() -> int:
    """Returns the number of cores that this process may use.

    Example:
        >>> num_cores() >= 1
        True
    """
    available = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(available(0)) if available else os.cpu_count() or 1


def workers() -> list[Device]:
    """Returns the devices that can work side by side: all, but at most one per core on a CPU.

    Inside ``jax.default_device`` it is that one alone.

    Example:
        >>> len(workers()) >= 1
        True
    """
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if default is not None:
        return jax.local_devices(backend=default)[:1] if isinstance(default, str) else [default]
    devices = jax.local_devices()
    return devices[: num_cores()] if devices[0].platform == "cpu" else devices


def memory_limit(device: Device) -> int:
    """Returns the bytes that a program may use on a device.

    90 % of the memory that an accelerator reports; half of the host's memory, divided by the host
    devices in use.  Independent of other programs, so that plans are reproducible.

    Raises:
        ValueError: the accelerator does not report its memory.

    Example:
        >>> memory_limit(jax.devices()[0]) > 0
        True
    """
    if device.platform == "cpu":
        return host_memory() // 2 // len(workers())
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is None:
        raise ValueError(
            f"device {device} does not report its memory; expected the bytes as `memory`"
        )
    return int(0.9 * limit)


def program_bytes(compiled: Any, *, arguments: bool = True) -> int:
    """Returns the bytes that a compiled program needs on a device.

    Arguments (optional), results and temporaries; a donated argument and the result written to it
    count once.  0 if the backend reports no sizes.
    """
    sizes = compiled.memory_analysis()
    if sizes is None:
        return 0
    results = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return arguments * sizes.argument_size_in_bytes + results + sizes.temp_size_in_bytes
