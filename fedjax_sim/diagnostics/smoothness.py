"""Smoothness, strong convexity and Lipschitz constant of the Hessian, at visited models."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_count
from fedjax_sim.diagnostics.heterogeneity import ClientMap, check_points
from fedjax_sim.diagnostics.lanczos import ritz
from fedjax_sim.diagnostics.sharpness import Gradient, hessian_product
from fedjax_sim.engine import Execution
from fedjax_sim.types import Params, Task, shown


@shown
class Extremes(NamedTuple):
    """Extreme eigenvalues of a Hessian."""

    largest: Array
    smallest: Array


@shown
class Curvature(NamedTuple):
    """Extreme Hessian eigenvalues of M clients' objectives and of their mean, at P points."""

    total: Extremes  # [P]
    clients: Extremes  # [P, M]

    @property
    def norm(self) -> float:
        """Largest norm of a Hessian: a lower estimate of L.

        The norm is the largest absolute eigenvalue, so directions of negative curvature count.

        Example:
            >>> at_one_model = Extremes(jnp.array([0.1]), jnp.array([-5.0]))
            >>> Curvature(at_one_model, at_one_model).norm
            5.0
        """
        return float(np.max([np.abs(values).max() for part in self for values in part]))


def curvature(
    task: Task,
    points: Params,
    key: Array,
    *,
    iterations: int = 30,
    execution: Execution | None = None,
) -> Curvature:
    r"""Extreme eigenvalues of :math:`\nabla^2 F_m(x)` and :math:`\nabla^2 F(x)`, by Lanczos.

    The approximations are inside the spectrum: the largest value is too small and the smallest too
    large. They are exact with as many iterations as parameters. Over visited points, the largest
    absolute value, :attr:`Curvature.norm`, is a lower estimate of L, and the smallest value an
    upper estimate of mu. Bounds that hold everywhere, for linear models:
    :func:`fedjax_sim.diagnostics.linear_models.linear_model_bounds`.

    Args:
        task: the clients' objectives; F is their mean.
        points: models, leaves ``[P, ...]``.
        key: for the initial vectors of Lanczos, and for random objectives.
        iterations: number of Lanczos iterations, with one Hessian-vector product each.
        execution: strategy that executes the clients; default
            :func:`~fedjax_sim.engine.execution.strategies.auto` on one device.

    Raises:
        ValueError: see :func:`fedjax_sim.diagnostics.heterogeneity.heterogeneity`; iterations below
            1.

    Example:
        >>> import fedjax_sim as fs
        >>> import numpy as np
        >>> data = fs.FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: 0.5 * (batch["x"] * w[0]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> result = curvature(task, jnp.ones((1, 1)), jax.random.key(0))
        >>> result.clients.largest.tolist(), result.total.largest.tolist()
        ([[1.0, 9.0]], [5.0])
    """
    points = check_points(task, points)

    def extremes(gradient: Gradient, x: Params, key: Array) -> Extremes:
        values = ritz(hessian_product(gradient, x), x, key, iterations).values
        return Extremes(values[0], values[-1])

    @jax.jit
    def everything(task: Task, points: Params) -> Curvature:
        over = ClientMap(task, key, execution)
        total_key = jax.random.fold_in(key, task.num_clients)  # a number that no client has

        def one_point(x: Params) -> Curvature:
            return Curvature(
                extremes(over.mean_gradient, x, total_key),
                over.each(lambda gradient, key: extremes(gradient, x, key)),
            )

        return jax.lax.map(one_point, points)

    return everything(task, points)


def hessian_lipschitz(
    task: Task,
    points: Params,
    key: Array,
    *,
    iterations: int = 20,
    execution: Execution | None = None,
) -> Array:
    r"""Norms of the clients' third derivatives, ``[P, M]``: lower estimates of Q.

    .. math:: \|\nabla^3 F_m(x)\| = \max_{\|v\| = 1} \|\nabla^3 F_m(x)[v, v]\|
        \le Q = \sup_x \|\nabla^3 F_m(x)\|

    The normalised power method ``v <- D^3 F[v, v]`` starts from a Gaussian vector; the result is
    the largest norm of its iterates. The estimate is lower, since the method finds a local maximum.

    Args:
        task, points, key, execution: see :func:`curvature`.
        iterations: number of iterations of the power method.

    Raises:
        ValueError: see :func:`curvature`.

    Example:
        >>> import fedjax_sim as fs
        >>> import numpy as np
        >>> data = fs.FederatedData({"x": np.array([1.0, 2.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: (batch["x"] * w[0]) ** 3 / 6
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> hessian_lipschitz(task, jnp.ones((1, 1)), jax.random.key(0)).round(3).tolist()
        [[1.0, 8.0]]
    """
    points = check_points(task, points)
    check_count(1, iterations=iterations)

    def largest(gradient: Gradient, x: Params, key: Array) -> Array:
        def step(carry: tuple[Params, Array], _: None) -> tuple[tuple[Params, Array], None]:
            v, best = carry
            v = tree.scale(tree.over_norm(1.0, v), v)
            along = jax.jvp(lambda x: hessian_product(gradient, x)(v), (x,), (v,))[1]
            return (along, jnp.maximum(best, tree.norm(along))), None

        start = _gaussian_like(key, x)
        zero = jnp.zeros((), jax.tree.leaves(x)[0].dtype)
        return jax.lax.scan(step, (start, zero), None, length=iterations)[0][1]

    @jax.jit
    def everything(task: Task, points: Params) -> Array:
        over = ClientMap(task, key, execution)
        return jax.lax.map(lambda x: over.each(lambda g, key: largest(g, x, key)), points)

    return everything(task, points)


def _gaussian_like(key: Array, x: Params) -> Params:
    leaves, structure = jax.tree.flatten(x)
    draws = [
        jax.random.normal(jax.random.fold_in(key, i), leaf.shape, jnp.float32).astype(leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return structure.unflatten(draws)
