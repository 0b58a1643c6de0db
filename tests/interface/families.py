"""Compact programs of the synchronous families to come: each fits the five functions.

Exact to the papers' update rules; every hyper-parameter that is a float may be traced.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.local import local_steps, sgd
from fedjax_sim.types import FedAlgorithm, Work

Tree = Any


class Model(NamedTuple):
    """The state of a server that remembers nothing else."""

    params: Tree


def real(x) -> Array:
    """A count as a float: strict promotion mixes no integers into real arithmetic."""
    return jnp.asarray(x).astype(float)


def move(x: Tree, grad, lr, work: Work) -> Tree:
    """The displacement of a visit of local SGD."""
    return tree.sub(local_steps(sgd(lr, grad), x, work), x)


# ---- composite methods, for lam * |x|_1


def soft(x: Tree, threshold) -> Tree:
    return jax.tree.map(lambda v: jnp.sign(v) * jnp.maximum(jnp.abs(v) - threshold, 0.0), x)


def fedmid(lr, server_lr, lam) -> FedAlgorithm:
    def local(x, state, oracle, work):
        step = sgd(lr, oracle.grad)
        y = local_steps(lambda y, k: soft(step(y, k), lr * lam), x, work)
        return (tree.sub(y, x), lr * real(work.num_steps)), state

    def update(state, mean, round):
        delta, elapsed = mean
        moved = tree.add_scale(state.params, server_lr, delta)
        return Model(soft(moved, server_lr * elapsed * lam))

    return FedAlgorithm(Model, local, update)


class DualState(NamedTuple):
    params: Tree
    dual: Tree
    elapsed: Array  # sum of all step sizes so far


def feddualavg(lr, server_lr, lam) -> FedAlgorithm:
    def local(message, state, oracle, work):
        dual, elapsed = message

        def grad(z, k):
            return oracle.grad(soft(z, (elapsed + lr * real(k)) * lam), k)

        return (move(dual, grad, lr, work), lr * real(work.num_steps)), state

    def update(state, mean, round):
        delta, spent = mean
        dual = tree.add_scale(state.dual, server_lr, delta)
        elapsed = state.elapsed + server_lr * spent
        return DualState(soft(dual, elapsed * lam), dual, elapsed)

    def init(params):
        return DualState(params, params, jnp.zeros(()))

    return FedAlgorithm(init, local, update, lambda state, round: (state.dual, state.elapsed))
