"""Platforms that programs are lowered for, and the platform that values are on.

What depends on the platform inside a program is decided when the program is lowered
(``jax.lax.platform_dependent``, lowering rules).  ``platform_of`` is for decisions before tracing.
"""

from typing import Literal, get_args

import jax
from jax.core import Tracer

from fedjax_sim.types import PyTree

Platform = Literal["cpu", "tpu", "gpu"]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)


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
