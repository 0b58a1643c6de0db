"""Properties of a task that follow from the text of its program and hold at every model.

``vmap`` over one argument marks every value that depends on it.  An output without the mark does
not depend on the argument, so a property that is read off this way is proven and not measured.
The converse does not hold: a marked output may still be constant.  Constant Hessians are proven by
:mod:`fedjax_sim.studies.advice.affine`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.studies.advice.affine import is_affine
from fedjax_sim.types import Params, PyTree, Task


def depends_on(function: Callable[..., PyTree], argument: PyTree, *rest: PyTree) -> bool:
    """Returns whether the outputs of a function may depend on its first argument.

    Args:
        function: function of ``argument`` and ``rest``; only its shapes are computed.

    Example:
        >>> slope = jax.grad(lambda x: 3 * x)
        >>> depends_on(slope, 1.0), depends_on(lambda x, y: x * y, 1.0, 2.0)
        (False, True)
    """
    jax.eval_shape(function, argument, *rest)  # raises the function's own errors
    stacked = jax.tree.map(lambda x: jnp.asarray(x)[None], argument)
    mapped = jax.vmap(function, in_axes=(0, *[None] * len(rest)), out_axes=None)
    try:
        jax.eval_shape(mapped, stacked, *rest)
    except ValueError:  # of vmap: an output is mapped
        return True
    return False


def is_quadratic(task: Task, params: Params) -> bool:
    """Returns whether the Hessians of all clients are proven to be the same at every model.

    The proof is that full gradients are affine in the model.  Derivatives of gradients would not
    do: those of ``abs`` and ``relu`` are constant, but their gradients jump.
    """

    def gradient(x: Params, client: Array, key: Array) -> Params:
        return task.oracle(client, key, 1).full_grad(x)

    return is_affine(gradient, params, jnp.int32(0), jax.random.key(0))


def is_shared(task: Task, params: Params) -> bool:
    """Returns whether all clients have one objective, as in :func:`fedjax_sim.shared_task`.

    Example:
        >>> import fedjax_sim as fs
        >>> task = fs.shared_task(
        ...     lambda w, x, key: (w - x) ** 2, jnp.ones(3), 5, fs.with_replacement(1, 4))
        >>> is_shared(task, jnp.array(0.0))
        True
    """

    def gradient(client: Array, x: Params, key: Array) -> Params:
        return task.oracle(client, key, 1).full_grad(x)

    return not depends_on(gradient, jnp.int32(0), params, jax.random.key(0))


def is_deterministic(task: Task, params: Params) -> bool:
    """Returns whether the gradients of local steps do not depend on the key.

    They may still differ from step to step, as in passes over the examples in a fixed order:
    :func:`~fedjax_sim.studies.advice.noise.has_full_gradients` compares them with full gradients.
    """

    def gradient(key: Array, x: Params, client: Array, step: Array) -> Params:
        return task.oracle(client, key, 1).grad(x, step)

    return not depends_on(gradient, jax.random.key(0), params, jnp.int32(0), jnp.int32(0))


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
