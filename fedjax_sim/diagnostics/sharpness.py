"""Sharpness of the objective at a model: Hessian eigenvalues, and the rise along a SAM step.

Hessians are not formed: ``H v`` is the directional derivative of a gradient function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import (
    check_at_least,
    check_count,
    check_key,
    is_concrete,
    is_traced,
    least_entries,
)
from fedjax_sim.data import running_statistics_of
from fedjax_sim.diagnostics.lanczos import Ritz, ritz
from fedjax_sim.engine import Execution, auto
from fedjax_sim.tree import Where
from fedjax_sim.types import Params, Scalar, Task, shown

__all__ = ["ClientSharpness", "Sharpness", "client_sharpness", "top_eigenvalues"]

Gradient = Callable[[Params], Params]


@shown
class Sharpness(NamedTuple):
    """Sharpness of one objective at one model."""

    rise: Array  # F(x + r g / ||g||) - F(x)
    eigenvalues: Array  # [num] largest eigenvalues of the Hessian
    residuals: Array  # [num] an eigenvalue is at most this far away


@shown
class ClientSharpness(NamedTuple):
    """Sharpness of the global objective and of the clients' objectives."""

    total: Sharpness
    clients: Sharpness  # leaves [M, ...]


def hessian_product(gradient: Gradient, params: Params) -> Gradient:
    """``v -> H v`` with ``H = D gradient(params)``."""
    return lambda v: jax.jvp(gradient, (params,), (v,))[1]


def top_eigenvalues(
    gradient: Gradient, params: Params, key: Array, num: int = 1, iterations: int = 20
) -> Ritz:
    """The ``num`` algebraically largest eigenvalues of the Hessian at ``params``, largest first.

    Applies :func:`fedjax_sim.diagnostics.lanczos.ritz` to Hessian-vector products, one per
    iteration. The values are approximations from below; an eigenvalue is at most ``residuals``
    away. More iterations reduce the residuals.

    Works under ``jit`` and ``vmap``. Under ``jit`` pass the data of the gradient as an argument
    (``jax.tree_util.Partial``); otherwise they become constants of the program.

    Args:
        gradient: gradient of the objective: ``jax.grad(loss)``, or an oracle's ``full_grad``.
        params: floating leaves of one dtype.
        key: key of the random initial vector.
        num: number of eigenvalues.
        iterations: number of Lanczos iterations, at least ``num``.

    Raises:
        ValueError: ``num`` below 1, fewer iterations or parameters than ``num``.

    Example:
        >>> loss = lambda x: 0.5 * jnp.sum(jnp.array([1.0, -4.0, 9.0]) * x**2)
        >>> result = top_eigenvalues(jax.grad(loss), jnp.ones(3), jax.random.key(0), num=2)
        >>> result.values.round(3).tolist()
        [9.0, 1.0]
    """
    check_count(num=num, iterations=iterations)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    if not 1 <= num <= min(iterations, size):
        raise ValueError(
            f"num is {num}; expected at least 1 and at most the {iterations} iterations and "
            f"the {size} parameters"
        )
    result = ritz(hessian_product(gradient, params), params, key, iterations)
    return Ritz(*(x[:num] for x in result))


def check_no_statistics(statistics: Where | None, name: str) -> None:
    """Refuses a model with running statistics, whose gradients are no derivatives of its losses."""
    if statistics is not None:
        raise ValueError(
            f"{name} has a model with running statistics (batch normalisation), whose losses "
            "depend on the whole batch and whose gradients contain changes of the statistics; "
            "expected another model, or the objective of fs.models.frozen_statistics(model)"
        )


def check_objectives(task: Task) -> None:
    """Refuses a task with a client whose objective is no mean of losses of its examples."""
    check_no_statistics(running_statistics_of(task), "task")
    if is_traced(task.num_examples):
        return
    empty = np.flatnonzero(np.asarray(task.num_examples) < 1)
    if len(empty):
        raise ValueError(
            f"task has {len(empty)} clients without examples, the first is {empty[0]}; "
            "expected examples for every client"
        )


def client_sharpness(
    task: Task,
    params: Params,
    key: Array,
    *,
    radius: Scalar = 0.05,
    num: int = 1,
    iterations: int = 20,
    weights: Array | np.ndarray | None = None,
    execution: Execution | None = None,
) -> ClientSharpness:
    r"""Sharpness of every client's objective and of ``F = sum_i w_i F_i / sum_i w_i``.

    Uses only the full local gradients of the oracles: :func:`top_eigenvalues` computes the
    eigenvalues.  The rise along the step ``e = r g / ||g||``, ``g = grad F(x)``, is to first order
    the objective of SAM, ``max_{||e|| <= r} F(x + e) - F(x)`` (Foret et al., 2021,
    https://arxiv.org/abs/2010.01412).  It is the integral of its derivative,

    .. math:: F(x + e) - F(x) = \int_0^1 \langle \nabla F(x + t e), e \rangle dt

    by the Gauss rule with three nodes, which is exact for polynomials up to degree 6 and does not
    subtract two almost equal losses. Every call is recompiled, unless the caller jits it.

    Args:
        task: the clients' objectives; pass it as an argument to the function that you jit.
        params: the model; of one in half precision everything is computed in float32.
        key: for the initial vectors of Lanczos, and for random objectives.
        radius: length of the SAM step.
        num: number of eigenvalues per objective.
        iterations: number of Lanczos iterations.
        weights: ``[M]``; default uniform.
        execution: strategy that executes the clients; default
            :func:`~fedjax_sim.engine.execution.strategies.auto` on one device. On several devices
            every Lanczos step would wait for a reduction between the devices.

    Raises:
        ValueError: a client without examples; a model with running statistics; a negative radius;
            weights that are not one per client, negative or all 0; see :func:`top_eigenvalues`.

    Example:
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"x": np.array([1.0, 3.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: 0.5 * (batch["x"] * w[0]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> result = client_sharpness(task, jnp.ones(1), jax.random.key(0))
        >>> result.clients.eigenvalues[:, 0].tolist(), float(result.total.eigenvalues[0])
        ([1.0, 9.0], 5.0)
    """
    check_key(key)
    check_objectives(task)
    check_at_least(0, radius=radius)
    params = tree.wide(jax.tree.map(jnp.asarray, params))
    weights = jnp.asarray(
        np.ones(task.num_clients) if weights is None else weights, jnp.result_type(float)
    )
    if weights.shape != (task.num_clients,):
        raise ValueError(
            f"weights has shape {weights.shape}; expected ({task.num_clients},), one per client"
        )
    check_at_least(0, **least_entries(weights=weights))
    if is_concrete(weights) and not 0 < np.asarray(weights).sum() < np.inf:
        raise ValueError(f"weights is {weights}; expected a positive, finite sum")
    execute = execution or auto(devices=())
    clients = jnp.arange(task.num_clients, dtype=jnp.int32)
    lanczos_key, oracle_key = jax.random.split(key)

    def gradient_of(task: Task, client: Array) -> Gradient:
        return task.oracle(client, jax.random.fold_in(oracle_key, client), 1).full_grad

    def measure(gradient: Gradient, params: Params, key: Array) -> Sharpness:
        top = top_eigenvalues(gradient, params, key, num, iterations)
        return Sharpness(_rise(gradient, params, radius), top.values, top.residuals)

    def one_client(shared: tuple[Task, Params], client: Array) -> tuple[tuple, Sharpness]:
        task, params = shared
        key = jax.random.fold_in(lanczos_key, client)
        return (), measure(gradient_of(task, client), params, key)

    def one_gradient(shared: tuple[Task, Params], client: Array) -> tuple[Params, tuple]:
        task, params = shared
        return gradient_of(task, client)(params), ()

    @jax.jit  # without it, strategies that use several devices are slow
    def everything(task: Task, params: Params) -> ClientSharpness:
        def mean_gradient(params: Params) -> Params:
            return execute(one_gradient, (task, params), clients, weights)[0]

        _, per_client = execute(one_client, (task, params), clients, weights)
        total_key = jax.random.fold_in(lanczos_key, task.num_clients)  # a number that no client has
        return ClientSharpness(measure(mean_gradient, params, total_key), per_client)

    return everything(task, params)


def _rise(gradient: Gradient, params: Params, radius: Scalar) -> Array:
    """``F(x + e) - F(x)`` for the SAM step e, from gradients."""
    direction = gradient(params)
    step = tree.over_norm(radius, direction)
    ascent = tree.scale(step, direction)
    nodes, node_weights = np.polynomial.legendre.leggauss(3)
    total = jnp.zeros_like(step)
    for node, weight in zip(0.5 + nodes / 2, node_weights / 2, strict=True):
        slope = gradient(tree.add_scale(params, float(node), ascent))
        total = total + float(weight) * tree.vdot(slope, ascent).astype(total.dtype)
    return total
