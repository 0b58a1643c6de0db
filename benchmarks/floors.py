"""Floors: measured rates of the machine, and the least time for a given work."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np


class Machine(NamedTuple):
    """Rates of all cores together, or of the accelerator that JAX uses."""

    flops: float  # a second, float32 matrix product
    bytes: float  # a second, read plus written, copying a large array


def measure(
    size: int | None = None, megabytes: int = 256, seconds: float = 1.5
) -> dict[str, float]:
    """Measures the machine's product of square matrices, and its copies.

    The product is XLA's, by default of 2,048 rows, on an accelerator of 8,192.  The copy is NumPy's
    with one thread per core, or the accelerator's."""
    import jax
    import jax.numpy as jnp

    from fedjax_sim.engine import num_cores

    on_cpu = jax.default_backend() == "cpu"
    size = size or (2048 if on_cpu else 8192)
    square = jax.random.normal(jax.random.key(0), (size, size), jnp.float32)
    product = jax.jit(lambda a: jnp.dot(a, a))
    source = np.ones(megabytes * 250_000, np.float32)
    if on_cpu:
        target = np.zeros_like(source)  # written once, so that its pages exist
        threads = num_cores()
        halves = np.array_split(target, threads), np.array_split(source, threads)
        parts = list(zip(*halves, strict=True))
        with ThreadPoolExecutor(threads) as pool:
            copying = best_seconds(
                lambda: list(pool.map(lambda part: np.copyto(*part), parts)), seconds
            )
    else:
        negative, on_device = jax.jit(jnp.negative), jax.device_put(source)
        copying = best_seconds(lambda: jax.block_until_ready(negative(on_device)), seconds)
    return {
        "flops": 2
        * size**3
        / best_seconds(lambda: jax.block_until_ready(product(square)), seconds),
        "bytes": 2 * source.nbytes / copying,
    }


def best_seconds(call: Callable[[], object], seconds: float) -> float:
    """Returns the least time of some calls: disturbances can only slow a machine down."""
    call()
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def floor(machine: Machine, flops: float, num_bytes: float) -> float:
    """Returns the least seconds for a given work: arithmetic and memory traffic may overlap."""
    return max(flops / machine.flops, num_bytes / machine.bytes)
