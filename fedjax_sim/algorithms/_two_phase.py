"""Rounds in pairs: each cohort first sends full gradients, then takes steps at the same model."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import is_traced
from fedjax_sim.local import local_steps
from fedjax_sim.types import Oracle, Params, Requires, Task, Timeline, Work


def sends_gradient(number: Array | int) -> Array:
    """True in rounds 0, 2, ..., in which clients send gradients and take no steps."""
    return jnp.asarray(number) % 2 == 0


def gradient_and_steps(oracle: Oracle, x: Params, work: Work) -> tuple[Params, Work]:
    """Returns the full gradient, 0 in rounds of steps, and the visit, without steps otherwise."""
    first = sends_gradient(work.round)
    once = (first & (work.num_steps > 0)).astype(jnp.int32)
    gradient = local_steps(
        lambda _, k: oracle.full_grad(x),
        tree.zeros_like(x),
        work._replace(num_steps=once, max_steps=1),
    )
    return gradient, work._replace(num_steps=jnp.where(first, 0, work.num_steps))


def centred(oracle: Oracle, x: Params, control: Params) -> Callable[[Params, Array], Params]:
    """Returns the gradient minus that at x on the same minibatch, plus a control."""

    def grad(y: Params, k: Array) -> Params:
        at_x = oracle.grad(x, k)  # first: the last gradient of a step moves private leaves
        return tree.add(tree.sub(oracle.grad(y, k), at_x), control)

    return grad


def check_pairs(task: Task, timeline: Timeline) -> None:
    """Refuses timelines whose rounds 2t and 2t + 1 differ in cohorts, or have no gradient.

    If some gradients of round 2t are lost, the steps use the mean of the others.  If all are lost,
    the server still has the mean gradient of another model.
    """
    fields = [timeline.clients, timeline.mask, timeline.arrived]
    if is_traced(fields):
        return
    clients, mask, arrived = map(np.asarray, fields)
    cohorts = np.where(mask, clients, -1)
    pairs = timeline.num_rounds // 2
    first, second = cohorts[..., : 2 * pairs : 2, :], cohorts[..., 1 : 2 * pairs : 2, :]
    differ = np.atleast_2d((first != second).any(axis=-1)).any(axis=0)
    if differ.any():
        number = 2 * int(differ.argmax()) + 1
        raise ValueError(
            f"rounds {number - 1} and {number} of the timeline have different cohorts; expected "
            "two rounds in a row for every cohort, the first for gradients, as from "
            "timelines.repeat_rounds(timeline, 2) or sampling:pairs"
        )
    sent, received = (x[..., : 2 * pairs : 2, :].any(axis=-1) for x in (mask, arrived))
    lost = np.atleast_2d(sent & ~received).any(axis=0)
    if lost.any():
        raise ValueError(
            f"round {2 * int(lost.argmax())} of the timeline loses all uploads; expected at least "
            "one gradient for the steps of the next round"
        )


PAIRS = Requires(
    synchronous="the mean gradient and the steps that use it belong to one model",
    no_selection="two rounds in a row have one cohort, the first for gradients",
    kinds_of_uploads="gradients in rounds 0, 2, ... and changes of the model in rounds 1, 3, ...",
    check=check_pairs,
)
