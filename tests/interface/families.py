"""Compact programs of the synchronous families to come: each fits the five functions.

Exact to the papers' update rules; every hyper-parameter that is a float may be traced.  Where a
visit may have zero steps (an empty slot is computed, then discarded) divisions are guarded, or
0 * NaN would reach the mean.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.local import local_steps, sgd
from fedjax_sim.typing import FedAlgorithm, Work

Tree = Any


class Model(NamedTuple):
    """The state of a server that remembers nothing else."""

    params: Tree


class Paired(NamedTuple):
    """The model and one more vector: an accelerated iterate, a momentum, a control, a dual."""

    params: Tree
    other: Tree


def real(x) -> Array:
    """A count as a float: strict promotion mixes no integers into real arithmetic."""
    return jnp.asarray(x).astype(float)


def per_step(work: Work) -> Array:
    """1 / num_steps, and 1 for a visit without steps."""
    return 1 / real(jnp.maximum(work.num_steps, 1))


def move(x: Tree, grad, lr, work: Work) -> Tree:
    """The displacement of a visit of local SGD."""
    return tree.sub(local_steps(sgd(lr, grad), x, work), x)


def whole(state, round):
    """The broadcast of a server that sends all it has."""
    del round
    return state


def add_mean(state: Model, mean: Tree, round) -> Model:
    del round
    return Model(tree.add(state.params, mean))


# ---- accelerated and minibatch methods


def _middle(x, ag, beta):
    return tree.add_scale(ag, 1 / beta, tree.sub(x, ag))


def _accelerated(pair: Paired, middle, g, eta, gamma, alpha) -> Paired:
    x = tree.add_scale(pair.other, 1 / alpha, tree.sub(middle, pair.other))
    return Paired(tree.add_scale(middle, -eta, g), tree.add_scale(x, -gamma, g))


def fedac(eta, gamma, alpha, beta) -> FedAlgorithm:
    """Carry, upload and state are the pair (x_ag, x)."""

    def local(pair, state, oracle, work):
        def step(pair, k):
            middle = _middle(pair.other, pair.params, beta)
            return _accelerated(pair, middle, oracle.grad(middle, k), eta, gamma, alpha)

        return local_steps(step, pair, work), state

    return FedAlgorithm(lambda x: Paired(x, x), local, lambda state, mean, round: mean, whole)


def _gradient_sum(x, state, oracle, work):
    """All of a visit's gradients are taken at the message; (sum, count) for an exact mean."""
    total = local_steps(lambda g, k: tree.add(g, oracle.grad(x, k)), tree.zeros_like(x), work)
    return (total, real(work.num_steps)), state


def _gradient_mean(mean):
    total, count = mean
    # An empty round is computed, then discarded: it must not divide by zero either.
    return tree.scale(1 / jnp.where(count > 0, count, 1.0), total)


def mb_sgd(lr) -> FedAlgorithm:
    def update(state, mean, round):
        return Model(tree.add_scale(state.params, -lr, _gradient_mean(mean)))

    return FedAlgorithm(Model, _gradient_sum, update)


def mb_ac_sgd(eta, gamma, alpha, beta) -> FedAlgorithm:
    def middle(state, round=None):
        return _middle(state.other, state.params, beta)

    def update(state, mean, round):
        return _accelerated(state, middle(state), _gradient_mean(mean), eta, gamma, alpha)

    return FedAlgorithm(lambda x: Paired(x, x), _gradient_sum, update, middle)


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
