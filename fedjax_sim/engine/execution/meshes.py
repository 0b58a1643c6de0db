"""Meshes of devices over which clients, configurations or coalitions are divided."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from fedjax_sim.types import Device


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
