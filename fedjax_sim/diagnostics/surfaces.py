"""Loss surfaces: a loss on a plane through a model.

Module :mod:`fedjax_sim.diagnostics.planes` computes the directions of planes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.checks import check_count
from fedjax_sim.diagnostics.planes import Interval
from fedjax_sim.engine import chunked, make_mesh, sharded, workers
from fedjax_sim.types import Params, PyTree, shown


@shown
class Surface(NamedTuple):
    """Values on a grid: ``values[i, j]`` is the loss of ``params + a[i] d1 + b[j] d2``."""

    a: Array  # [P]
    b: Array  # [P]
    values: PyTree  # [P, P] for every output of the loss


def surface(
    loss: Callable[[Params], PyTree],
    params: Params,
    d1: Params,
    d2: Params,
    extent: float | tuple[Interval, Interval] = 1.0,
    points: int = 51,
    chunk: int = 8,
) -> Surface:
    """``loss(params + a d1 + b d2)`` on a grid of ``points x points``, as one compiled program.

    The points are divided among the host devices (:mod:`fedjax_sim.engine.execution.devices`). For
    LeNet-5 on 10,000 CIFAR images, chunks of 1, 2, 4 and 8 points take 1.08, 0.72, 0.60 and 0.39
    seconds per point on one x86 core with batches of 500 images; 8 points take 0.27 with batches of
    250.

    Args:
        loss: ``params -> scalar``, or to a pytree of scalars, which then have one surface each.
            Pass a loss with data as a ``jax.tree_util.Partial``, such as an evaluator
            (:func:`fedjax_sim.engine.evaluation.evaluator`): its data are arguments of the program.
        params: the model at the origin.
        d1: first direction, a pytree like the model.
        d2: second direction.
        extent: both coordinates run from ``-extent`` to ``extent``; or ``((a0, a1), (b0, b1))``,
            for instance :meth:`fedjax_sim.diagnostics.planes.Plane.window`.
        points: grid points in each direction.
        chunk: points evaluated at once on one device. They have different weights and share the
            examples, and the patches that a first convolution extracts from them.

    Raises:
        ValueError: points below 2, chunk below 1, an empty range, a loss that is no scalar.

    Example:
        >>> d1, d2 = jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0])
        >>> result = surface(lambda x: jnp.sum(x**2), jnp.zeros(2), d1, d2, points=3)
        >>> result.a.tolist(), result.values.tolist()
        ([-1.0, 0.0, 1.0], [[5.0, 1.0, 5.0], [4.0, 0.0, 4.0], [5.0, 1.0, 5.0]])
    """
    check_count(2, points=points)
    check_count(1, chunk=chunk)
    ranges = np.asarray(extent, float)
    if not ranges.ndim:
        ranges = np.array([[-1.0, 1.0]] * 2) * ranges
    if ranges.shape != (2, 2) or not (np.diff(ranges) > 0).all() or np.isinf(ranges).any():
        raise ValueError(f"extent is {extent}; expected a positive number or two (low, high)")
    a, b = (np.linspace(low, high, points) for low, high in ranges)
    loss = loss if isinstance(loss, Partial) else Partial(loss)
    dtype = jnp.result_type(float)
    a, b = jnp.asarray(a, dtype), jnp.asarray(b, dtype)
    return Surface(a, b, _values(loss, params, d1, d2, a, b, min(chunk, points**2)))


def scalars(loss: Callable[[Params], PyTree], params: Params) -> PyTree:
    """Returns the values of a loss, which are scalars and not losses of examples.

    Raises:
        ValueError: a value that is no scalar.

    Example:
        >>> scalars(lambda x: {"loss": x**2}, 3.0)
        {'loss': 9.0}
    """
    values = loss(params)
    for path, value in jax.tree_util.tree_leaves_with_path(values):
        if jnp.shape(value) != ():
            raise ValueError(
                f"loss{jax.tree_util.keystr(path)} has shape {jnp.shape(value)}; expected a scalar"
            )
    return values


@functools.partial(jax.jit, static_argnames="chunk")
def _values(
    loss: Partial, params: Params, d1: Params, d2: Params, a: Array, b: Array, chunk: int
) -> PyTree:
    grid = jnp.meshgrid(a, b, indexing="ij")
    points = tuple(x.ravel() for x in grid)

    def at(shared: tuple[Partial, Params, Params, Params], point: tuple[Array, Array]):
        loss, params, d1, d2 = shared
        x = tree.add_scale(tree.add_scale(params, point[0], d1), point[1], d2)
        return (), scalars(loss, x)

    # Points are executed like clients: they have different weights and share the data.
    execute, devices = chunked(chunk), workers()[: a.size * b.size]
    if len(devices) > 1:
        execute = sharded(make_mesh(devices), execute)
    _, values = execute(at, (loss, params, d1, d2), points, jnp.ones(a.size * b.size))
    return jax.tree.map(lambda v: v.reshape(grid[0].shape), values)
