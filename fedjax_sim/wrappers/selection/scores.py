"""Scores: numbers that a client computes from the server's model and its own data."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.local import local_steps, per_step
from fedjax_sim.types import Oracle, Params, Work


def full_loss(params: Params, oracle: Oracle, work: Work) -> Array:
    """Returns the loss of the server's model on all of the client's examples, a scalar.

    Raises:
        ValueError: the task has no such loss.

    Example:
        >>> oracle = Oracle(None, None, None, full_loss=lambda w: w**2)
        >>> full_loss(3.0, oracle, None)
        9.0
    """
    del work
    if oracle.full_loss is None:
        raise ValueError("task has no full_loss; expected one, or score=selection.minibatch_loss")
    return oracle.full_loss(params)


def minibatch_loss(params: Params, oracle: Oracle, work: Work) -> Array:
    """Returns the loss of the server's model on the visit's first minibatch, a scalar.

    Example:
        >>> minibatch_loss(3.0, Oracle(None, lambda w, step: w + step, None), None)
        3.0
    """
    del work
    return oracle.loss(params, 0)


def gradient_norm(params: Params, oracle: Oracle, work: Work) -> Array:
    """Returns the norm of the gradient on all of the client's examples, a scalar.

    Example:
        >>> float(gradient_norm(3.0, Oracle(None, None, lambda w: -w), None))
        3.0
    """
    del work
    return tree.safe_norm(oracle.full_grad(params))


def visit_loss(params: Params, oracle: Oracle, work: Work) -> Array:
    """Returns the mean loss of the server's model on the minibatches of the visit, a scalar.

    Example:
        >>> work = Work(0, 0, jnp.array(2), 1, 0, None, max_steps=3)
        >>> float(visit_loss(3.0, Oracle(None, lambda w, step: w + step, None), work))
        3.5
    """
    return mean_over_steps(lambda loss: loss, params, oracle, work)


def mean_over_steps(function, params: Params, oracle: Oracle, work: Work) -> Array:
    """Returns the mean of a function of the minibatches' losses; 0 without steps."""
    zero = jnp.zeros((), jnp.result_type(float))
    total = local_steps(
        lambda total, k: total + jnp.asarray(function(oracle.loss(params, k)), total.dtype),
        zero,
        work,
    )
    return per_step(total, work)


def written(table: Array, clients: Array, values: Array, arrived: Array) -> Array:
    """Returns a table of clients ``[M]`` with the values of those whose upload arrived.

    Empty slots may have the number of any client, also of one that takes part.
    """
    rows = jnp.where(arrived, clients, table.shape[0])
    return table.at[rows].set(values, mode="drop")
