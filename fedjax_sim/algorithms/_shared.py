"""Parts that several algorithms use: a state, argument checks, steps of composite methods."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from fedjax_sim import tree
from fedjax_sim.checks import is_concrete, partial_rounds
from fedjax_sim.prox import Composite
from fedjax_sim.types import Oracle, Params, Requires, Round, Scalar, Task, Timeline, Upload, Work

Transform = Callable[[Oracle], Oracle]


# Reasons for `Requires.exact_mean`.
UPLOADS_MODELS = "clients upload models, not changes of the model"
UPLOADS_COUNTS = "clients also upload weights or counts, which the server takes as exact"
GRADIENTS = "gradients at the received model"
DUAL_CHANGES = "changes in the dual space"
# Of algorithms whose server adds `round.participation` of the clients' changes to such a mean.
MEAN_OF_ALL = Requires(mean_of_states="the server keeps the weighted mean of states of all clients")


class ModelState(NamedTuple):
    """State of a server that keeps the model only."""

    params: Params


def real(x: Scalar) -> Array:
    """Returns a number of any type in the precision of the run."""
    return jnp.asarray(x).astype(float)


def real_vdot(x: Params, y: Params) -> Array:
    """Returns the inner product in the precision of the run."""
    return tree.vdot(jax.tree.map(real, x), jax.tree.map(real, y))


def visit_of(work: Work, num_steps: int) -> Work:
    """Returns a visit of another, static number of steps; a visit without steps stays one."""
    return work._replace(num_steps=jnp.where(work.num_steps > 0, num_steps, 0), max_steps=num_steps)


def cycled(step: Callable[[Any, Array], Any], work: Work) -> Callable[[Any, Array], Any]:
    """Returns a step whose number k is that of a minibatch of the visit, ``k mod num_steps``.

    A visit of another number of steps, by :func:`visit_of`, has no further minibatches.
    """
    return lambda carry, k: step(carry, k % jnp.maximum(work.num_steps, 1))


def full_loss(oracle: Oracle) -> Callable[[Params], Array]:
    """Returns the loss over all data of a client, which the task's oracle must have."""
    if oracle.full_loss is None:
        raise ValueError(
            "oracle.full_loss is None; expected a task whose oracle has the loss over all data of "
            "a client, as those of empirical_task"
        )
    return oracle.full_loss


def average_with_server(state: ModelState, mean: Upload, round: Round) -> ModelState:
    """Averages the models of S clients and the server's own, all with the weight 1 / (S + 1)."""
    s = real(round.num_uploads)
    return ModelState(tree.divide(tree.add_scale(state.params, s, mean), s + 1))


# ---- argument checks


def check_per_client(name: str, values: Array, task: Task) -> None:
    """Refuses vectors that do not have one entry per client.

    JAX clamps an index that is out of bounds, so a vector of another length would be used silently.
    """
    if np.shape(values) != (task.num_clients,):
        raise ValueError(
            f"{name} has the shape {np.shape(values)}; expected ({task.num_clients},), "
            "one entry per client of the task"
        )


def step_range(timeline: Timeline) -> tuple[int, int]:
    """Returns the fewest and the most local steps of a visit; if unknown, 0 and ``max_steps``."""
    if is_concrete(timeline.num_steps) and is_concrete(timeline.mask):
        steps = np.asarray(timeline.num_steps)[np.asarray(timeline.mask)]
        if steps.size:
            return int(steps.min()), int(steps.max())
    return 0, timeline.max_steps


def check_none_lost(timeline: Timeline, reason: str) -> None:
    """Refuses timelines with lost uploads; traced ones pass."""
    lost = timeline.lost
    if lost is None or isinstance(lost, Tracer) or not np.any(lost):
        return
    raise ValueError(f"timeline.lost has {np.sum(lost)} lost uploads; expected none: {reason}")


def check_all_clients(
    task: Task, timeline: Timeline, reason: str, *, empty_rounds: bool = True
) -> None:
    """Refuses rounds with some but not all clients, or with lost uploads; traced timelines pass.

    With ``empty_rounds`` rounds in which no client does any work pass, too.
    """
    some = partial_rounds(task, timeline)
    mask = timeline.mask
    if not (empty_rounds or isinstance(mask, Tracer) or np.asarray(mask).any(axis=-1).all()):
        some = np.append(some, 0)
    if len(some):
        raise ValueError(
            f"a round of the timeline has {some[0]} of {task.num_clients} clients; "
            f"expected all of them, as from timelines.full or sampling:full: {reason}"
        )


# ---- composite methods


def initial_model(params: Params, composite: Composite, project_start: bool) -> Params:
    """Returns the initial model, projected onto the domain of psi if ``project_start``."""
    return composite.argmin(composite.to_dual(params), 0.0) if project_start else params


def dual_step(
    lr: Scalar, composite: Composite, elapsed: Array, oracle: Oracle, local_prox: bool = True
) -> Callable[[Params, Array], Params]:
    """Returns a client's step of dual averaging; psi has the weight ``elapsed`` at step 0."""

    def step(y: Params, k: Array) -> Params:
        weight = elapsed + total_rate(lr, k)
        x = composite.argmin(y, weight) if local_prox else composite.to_primal(y)  # Eq. (4.7)
        return tree.add_scale(y, -lr, oracle.grad(x, k))  # Eq. (4.6)

    return step


def total_rate(lr: Scalar, num_steps: Array) -> Array:
    """Returns the sum of the rates of ``num_steps`` steps, in the precision of the run."""
    return real(lr) * real(num_steps)
