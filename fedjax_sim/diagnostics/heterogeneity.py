"""Distances of the clients' gradients from their mean, at models that a run visited."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_key, is_traced
from fedjax_sim.diagnostics.sharpness import Gradient, check_objectives
from fedjax_sim.engine import Execution, auto
from fedjax_sim.types import Params, Task, shown

__all__ = ["ClientMap", "Heterogeneity", "heterogeneity"]


@shown
class Heterogeneity(NamedTuple):
    """Gradients of M clients at P points."""

    deviations: Array  # [P, M] ||grad F_m(x) - grad F(x)||
    client_norms: Array  # [P, M] ||grad F_m(x)||
    norms: Array  # [P] ||grad F(x)||

    @property
    def zeta(self) -> float:
        """Largest deviation over clients and points; 0 if it is a rounding error, NaN at NaN."""
        return self._unless_rounding(np.max(self.deviations))

    @property
    def mean_zeta(self) -> float:
        """Largest root mean square deviation over clients, of all points."""
        return self._unless_rounding(_largest_mean(self.deviations))

    @property
    def mean_norm(self) -> float:
        """Largest root mean square norm over clients, of all points; zeta_star at the optimum."""
        return _largest_mean(self.client_norms)

    def _unless_rounding(self, value: float) -> float:
        norms = np.asarray(self.client_norms)
        rounding = 100 * float(jnp.finfo(norms.dtype).eps) * float(norms.max())
        return 0.0 if float(value) <= rounding else float(value)


def heterogeneity(
    task: Task, points: Params, key: Array | None = None, *, execution: Execution | None = None
) -> Heterogeneity:
    r"""Compares the full gradients of the clients with the gradient of ``F = 1 / M sum_m F_m``.

    .. math:: \zeta = \max_{x, m} \|\nabla F_m(x) - \nabla F(x)\|, \qquad
        \zeta_*^2 = \frac{1}{M} \sum_m \|\nabla F_m(x^*)\|^2

    Maxima over visited points are lower estimates of the suprema over all points in the theory.

    Args:
        task: the clients' objectives.
        points: models, leaves ``[P, ...]``; for zeta_star the optimum alone, P = 1.  Of those in
            half precision the gradients are computed in float32.
        key: for random objectives.
        execution: strategy that executes the clients; default
            :func:`~fedjax_sim.engine.execution.strategies.auto` on one device.

    Raises:
        ValueError: a client without examples, a model with running statistics, leaves without a
            common leading axis.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: 0.5 * (batch["x"] - w) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> result = heterogeneity(task, jnp.array([0.0, 2.0]))
        >>> result.zeta, result.client_norms.tolist()
        (1.0, [[1.0, 3.0], [1.0, 1.0]])
    """
    points = check_points(task, points)

    def at(gradient: Gradient, x: Params, mean: Params) -> tuple[Array, Array]:
        client_gradient = gradient(x)
        return tree.norm(tree.sub(client_gradient, mean)), tree.norm(client_gradient)

    @jax.jit
    def everything(task: Task, points: Params) -> Heterogeneity:
        over = ClientMap(task, jax.random.key(0) if key is None else key, execution)

        def one_point(x: Params) -> Heterogeneity:
            mean = over.mean_gradient(x)
            deviations, norms = over.each(lambda gradient, _: at(gradient, x, mean))
            return Heterogeneity(deviations, norms, tree.norm(mean))

        return jax.lax.map(one_point, points)

    return everything(task, points)


def _largest_mean(values: Array) -> float:
    """Largest root mean square over clients, of all points."""
    return float(np.sqrt((np.asarray(values) ** 2).mean(axis=1)).max())


@shown
class ClientMap(NamedTuple):
    """Evaluates functions of the full gradients of all clients.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": jnp.array([1.0, 3.0])}, jnp.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: (w - batch["x"]) ** 2 / 2
        >>> clients = ClientMap(fs.empirical_task(loss, data, fs.full_batch(1)), jax.random.key(0))
        >>> x = jnp.array(0.0)
        >>> clients.each(lambda gradient, key: gradient(x)).tolist()
        [-1.0, -3.0]
        >>> float(clients.mean_gradient(x))
        -2.0
    """

    task: Task
    key: Array
    execution: Execution | None = None

    def mean_gradient(self, x: Params) -> Params:
        """``1 / M sum_m grad F_m(x)``."""
        return self._execute(lambda gradient, _: (gradient(x), ()))[0]

    def each(self, measure: Callable[[Gradient, Array], Params]) -> Params:
        """``measure(grad F_m, key)`` for every client with its own key, leaves ``[M, ...]``."""
        return self._execute(lambda gradient, key: ((), measure(gradient, key)))[1]

    def _execute(self, one: Callable[[Gradient, Array], tuple[Params, Params]]):
        check_key(self.key)
        check_objectives(self.task)
        count = self.task.num_clients
        clients = jnp.arange(count, dtype=jnp.int32)

        def local(task: Task, client: Array) -> tuple[Params, Params]:
            oracle_key, key = jax.random.split(jax.random.fold_in(self.key, client))
            return one(task.oracle(client, oracle_key, 1).full_grad, key)

        execute = self.execution or auto(devices=())
        return execute(local, self.task, clients, jnp.ones(count))


def check_points(task: Task, points: Params) -> Params:
    """Checks the points and returns them on the host, in at least float32."""
    # Squares of gradients leave the range of float16, and differences of gradients in bfloat16 are
    # its rounding.
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(points)]
    check_objectives(task)
    if len({shape[:1] for shape in shapes}) != 1 or not shapes[0] or shapes[0][0] < 1:
        raise ValueError(f"points has leaves of shapes {shapes[:3]}; expected [P, ...] with one P")
    if is_traced(points):
        return tree.wide(points)
    return tree.wide(jax.tree.map(np.asarray, points))
