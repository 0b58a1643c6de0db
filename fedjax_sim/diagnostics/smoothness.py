"""Smoothness, strong convexity and the Hessian's Lipschitz constant, measured at visited models."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.diagnostics.heterogeneity import ClientMap, checked_points
from fedjax_sim.diagnostics.lanczos import ritz
from fedjax_sim.diagnostics.sharpness import Gradient, hessian_product
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.types import Params, Task


class Extremes(NamedTuple):
    """Extreme eigenvalues of a Hessian."""

    largest: Array
    smallest: Array


class Curvature(NamedTuple):
    """Extreme Hessian eigenvalues of M clients' objectives and of their mean, at P points."""

    total: Extremes  # [P]
    clients: Extremes  # [P, M]


def curvature(
    task: Task,
    points: Params,
    key: Array,
    *,
    iterations: int = 30,
    cohort: Execution | None = None,
) -> Curvature:
    r"""The extreme eigenvalues of :math:`\nabla^2 F_m(x)` and :math:`\nabla^2 F(x)`, by Lanczos.

    Approximations are inside the spectrum: the largest from below, the smallest from above; exact
    with as many iterations as parameters.  Over visited points, the largest value is a lower
    estimate of L and the smallest an upper estimate of mu.  Linear models have bounds that hold
    everywhere: :func:`fedjax_sim.diagnostics.linear_models.linear_model_bounds`.

    Args:
        task: the clients' objectives; F is their mean.
        points: models, leaves ``[P, ...]``.
        key: of the Lanczos starts, and of objectives that are random.
        iterations: of Lanczos, a Hessian-vector product each.
        cohort: how clients are executed; default :func:`~fedjax_sim.execution.strategies.auto` on one device.

    Raises:
        ValueError: as :func:`fedjax_sim.diagnostics.heterogeneity.heterogeneity`; iterations below
            1.

    Example:
        >>> import fedjax_sim as fs
        >>> import numpy as np
        >>> data = fs.FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: 0.5 * (batch["x"] * w[0]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> found = curvature(task, jnp.ones((1, 1)), jax.random.key(0))
        >>> found.clients.largest.tolist(), found.total.largest.tolist()
        ([[1.0, 9.0]], [5.0])
    """
    points = checked_points(task, points)

    def extremes(gradient: Gradient, x: Params, key: Array) -> Extremes:
        values = ritz(hessian_product(gradient, x), x, key, iterations).values
        return Extremes(values[0], values[-1])

    @jax.jit
    def everything(task: Task, points: Params) -> Curvature:
        over = ClientMap(task, key, cohort)
        total_key = jax.random.fold_in(key, task.num_clients)  # the first no client has

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
    cohort: Execution | None = None,
) -> Array:
    r"""The norm of every client's third derivative, ``[P, M]``: lower estimates of Q.

    .. math:: \|\nabla^3 F_m(x)\| = \max_{\|v\| = 1} \|\nabla^3 F_m(x)[v, v]\|
        \le Q = \sup_x \|\nabla^3 F_m(x)\|

    The power method ``v <- D^3 F[v, v]``, normalised, from a Gaussian start; the largest norm it
    meets counts.  It finds a local maximum of the symmetric tensor's form, hence "lower".

    Args:
        task, points, key, cohort: as of :func:`curvature`.
        iterations: of the power method.

    Raises:
        ValueError: as :func:`curvature`.

    Example:
        >>> import fedjax_sim as fs
        >>> import numpy as np
        >>> data = fs.FederatedData({"x": np.array([1.0, 2.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: (batch["x"] * w[0]) ** 3 / 6
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> hessian_lipschitz(task, jnp.ones((1, 1)), jax.random.key(0)).round(3).tolist()
        [[1.0, 8.0]]
    """
    points = checked_points(task, points)
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}; expected at least 1")

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
        over = ClientMap(task, key, cohort)
        return jax.lax.map(lambda x: over.each(lambda g, key: largest(g, x, key)), points)

    return everything(task, points)


def _gaussian_like(key: Array, x: Params) -> Params:
    leaves, structure = jax.tree.flatten(x)
    draws = [
        jax.random.normal(jax.random.fold_in(key, i), leaf.shape, jnp.float32).astype(leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return structure.unflatten(draws)
