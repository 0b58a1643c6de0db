"""Comparison of the gradients of local steps with full gradients."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.types import Params, Task

_CLIENTS_AT_ONCE = 8


def has_full_gradients(task: Task, points: Params, key: Array, *, num_steps: int = 256) -> bool:
    """Returns True if gradients of local steps equal full gradients, up to rounding.

    Compares them for all clients and the first steps of a visit, at models ``[P, ...]`` and at one
    random model, where gradients differ that are equal at a special model only.  The gradients must
    not depend on the key.
    """
    max_steps = max(1, int(np.max(task.num_steps)))

    def random_model(x: Array) -> Array:
        return x[:1] + jax.random.normal(key, x[:1].shape, x.dtype)

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

    everywhere = jax.tree.map(lambda x: jnp.concatenate([x, random_model(x)]), points)
    errors, norms = (np.asarray(x).max(axis=0) for x in everything(task, everywhere))  # [M]
    return bool((errors <= 100 * np.finfo(norms.dtype).eps * norms).all())
