"""Properties of a task that follow from the text of its program and hold at every model.

What is read off the program is proven and not measured.  The converse does not hold: a gradient
that is not proven to be constant in an argument may still be.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.studies.advice.affine import is_affine, is_constant
from fedjax_sim.types import Params, Task


def is_quadratic(task: Task, params: Params) -> bool:
    """Returns True if the Hessians of all clients are proven to be the same at every model.

    The proof is that full gradients are affine in the model.  Derivatives of gradients would not
    do: those of ``abs`` and ``relu`` are constant, but their gradients jump.
    """

    def gradient(x: Params, client: Array, key: Array) -> Params:
        return task.oracle(client, key, 1).full_grad(x)

    return is_affine(gradient, params, jnp.int32(0), jax.random.key(0))


def is_shared(task: Task, params: Params) -> bool:
    """Returns True if all clients have one objective, as in :func:`fedjax_sim.shared_task`.

    Example:
        >>> import fedjax_sim as fs
        >>> task = fs.shared_task(
        ...     lambda w, x, key: (w - x) ** 2, jnp.ones(3), 5, fs.with_replacement(1, 4))
        >>> is_shared(task, jnp.array(0.0))
        True
    """

    def gradient(client: Array, x: Params, key: Array) -> Params:
        return task.oracle(client, key, 1).full_grad(x)

    return is_constant(gradient, jnp.int32(0), params, jax.random.key(0))


def is_deterministic(task: Task, params: Params) -> bool:
    """Returns True if the gradients of local steps do not depend on the key.

    They may still differ from step to step, as in passes over the examples in a fixed order:
    :func:`has_full_gradients` compares them with full gradients.
    """

    def gradient(key: Array, x: Params, client: Array, step: Array) -> Params:
        return task.oracle(client, key, 1).grad(x, step)

    return is_constant(gradient, jax.random.key(0), params, jnp.int32(0), jnp.int32(0))


def mean_objective(task: Task, params: Params) -> Partial | None:
    """Returns ``F = 1 / M sum_m F_m`` as a Partial of the task; None: no full losses are known."""
    losses = []

    def look(x: Params) -> Params:
        losses.append(task.oracle(jnp.int32(0), jax.random.key(0), 1).full_loss)
        return x

    jax.eval_shape(look, params)
    return None if losses[0] is None else Partial(_mean_full_loss, task)


def _mean_full_loss(task: Task, params: Params) -> Array:
    def one(client: Array) -> Array:
        full_loss = task.oracle(client, jax.random.key(0), 1).full_loss
        assert full_loss is not None
        return full_loss(params)

    clients = jnp.arange(task.num_clients, dtype=jnp.int32)
    return jax.lax.map(one, clients, batch_size=8).mean()


_CLIENTS_AT_ONCE = 8


def has_full_gradients(task: Task, points: Params, key: Array, *, num_steps: int = 256) -> bool:
    """Returns True if gradients of local steps equal full gradients, up to rounding.

    Compares them for all clients and the first steps of a visit, at models ``[P, ...]`` and at one
    random model, where gradients differ that are equal at a special model only.  The gradients must
    not depend on the key.
    """
    max_steps = max(1, int(np.max(task.num_steps)))

    @jax.jit
    def everything(task: Task, points: Params) -> tuple[Array, Array]:
        clients = jnp.arange(task.num_clients, dtype=jnp.int32)
        steps = jnp.arange(min(max_steps, num_steps), dtype=jnp.int32)

        def one_client(x: Params, client: Array) -> tuple[Array, Array]:
            oracle = task.oracle(client, key, max_steps)
            full = oracle.full_grad(x)

            def error(step: Array) -> Array:
                return tree.norm(tree.sub(oracle.grad(x, step), full))

            return jax.lax.map(error, steps).max(), tree.norm(full)

        def one_point(x: Params) -> tuple[Array, Array]:
            return jax.lax.map(lambda m: one_client(x, m), clients, batch_size=_CLIENTS_AT_ONCE)

        return jax.lax.map(one_point, points)

    first = jax.tree.map(lambda x: jnp.asarray(x[:1]), points)
    # One key for all leaves would give equal ones equal numbers: no model of general position.
    random_model = tree.add(first, tree.normal(key, 1.0, first))
    everywhere = jax.tree.map(lambda *x: jnp.concatenate(x), points, random_model)
    errors, norms = (np.asarray(x).max(axis=0) for x in everything(task, everywhere))  # [M]
    return bool((errors <= 100 * np.finfo(norms.dtype).eps * norms).all())
