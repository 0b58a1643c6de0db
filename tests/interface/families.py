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
from fedjax_sim.algorithms import fedavg, scaffold
from fedjax_sim.gradients import asam, corrected, perturbed, proximal, sam, with_oracle
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


def direction(x: Tree, eps: float) -> Tree:
    """x / (|x| + eps), with derivative 0 instead of NaN at 0."""
    squared = tree.norm(x, squared=True)
    norm = jnp.where(squared > 0, jnp.sqrt(jnp.where(squared > 0, squared, 1.0)), 0.0)
    return tree.scale(1 / (norm + eps), x)


def move(x: Tree, grad, lr, work: Work) -> Tree:
    """The displacement of a visit of local SGD."""
    return tree.sub(local_steps(sgd(lr, grad), x, work), x)


def participation(round) -> Array:
    return round.num_uploads / round.num_clients


def whole(state, round):
    """The broadcast of a server that sends all it has."""
    del round
    return state


def with_zeros(params: Tree) -> Paired:
    return Paired(params, tree.zeros_like(params))


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


# ---- averaging of weights inside and across rounds


def _decaying(x, grad, lr, rho, work) -> Tree:
    def step(x, k):
        eta = lr * (1 - (1 - rho) * real(k) * per_step(work))
        return tree.add_scale(x, -eta, grad(x, k))

    return tree.sub(local_steps(step, x, work), x)


def fedswa(lr, rho, alpha) -> FedAlgorithm:
    def local(x, state, oracle, work):
        return _decaying(x, oracle.grad, lr, rho, work), state

    def update(state, mean, round):
        return Model(tree.add_scale(state.params, alpha, mean))

    return FedAlgorithm(Model, local, update)


def fedmoswa(lr, rho, alpha, gamma, option="II") -> FedAlgorithm:
    def local(message, control, oracle, work):
        x, correction = message.params, tree.sub(message.other, control)
        delta = _decaying(x, corrected(oracle, correction).grad, lr, rho, work)
        if option == "I":
            new = oracle.full_grad(x)
        else:
            steps = real(work.num_steps)
            rates = lr * (steps * (1 + rho) + (1 - rho)) / 2  # their sum over the visit
            rates = jnp.where(steps > 0, rates, 1.0)
            new = tree.add_scale(tree.scale(-1, correction), -1 / rates, delta)
            # Without steps there is no gradient to mean: the control stays.
            new = tree.where(steps > 0, new, control)
        return Paired(delta, tree.sub(new, message.other)), new

    def update(state, mean, round):
        return Paired(
            tree.add_scale(state.params, alpha, mean.params),
            tree.add_scale(state.other, gamma, mean.other),
        )

    return FedAlgorithm(with_zeros, local, update, whole, tree.zeros_like)


# ---- dynamic regularisation and sharpness


def feddyn(lr, weight) -> FedAlgorithm:
    def local(x, dual, oracle, work):
        grad = corrected(proximal(oracle, weight, x), tree.scale(-1, dual)).grad
        delta = move(x, grad, lr, work)
        return delta, tree.add_scale(dual, -weight, delta)

    def update(state, delta, round):
        dual = tree.add_scale(state.other, -weight * participation(round), delta)
        return Paired(tree.add_scale(tree.add(state.params, delta), -1 / weight, dual), dual)

    return FedAlgorithm(with_zeros, local, update, init_client=tree.zeros_like)


def fedsam(lr, radius) -> FedAlgorithm:
    return with_oracle(fedavg(lr), lambda oracle: sam(oracle, radius))


def fedasam(lr, radius, eta) -> FedAlgorithm:
    return with_oracle(fedavg(lr), lambda oracle: asam(oracle, radius, eta))


def fedgamma(lr, radius) -> FedAlgorithm:
    return with_oracle(scaffold(lr), lambda oracle: sam(oracle, radius))


def mofedsam(lr, radius, mix) -> FedAlgorithm:
    """state.other is the last mean gradient, each client's displacement over its sum of rates."""

    def local(message, state, oracle, work):
        g = sam(oracle, radius).grad
        past = tree.scale(1 - mix, message.other)
        delta = move(message.params, lambda x, k: tree.add_scale(past, mix, g(x, k)), lr, work)
        return Paired(delta, tree.scale(-per_step(work) / lr, delta)), state

    def update(state, mean, round):
        return Paired(tree.add(state.params, mean.params), mean.other)

    return FedAlgorithm(with_zeros, local, update, whole)


class Seen(NamedTuple):
    last: Tree  # the model received at the previous visit
    before: Array  # bool    there was one


def fedlesam(lr, radius) -> FedAlgorithm:
    def local(x, state, oracle, work):
        offset = tree.scale(radius, direction(tree.sub(state.last, x), 1e-7))
        offset = tree.where(state.before, offset, tree.zeros_like(x))
        return move(x, perturbed(oracle, offset).grad, lr, work), Seen(x, jnp.array(True))

    return FedAlgorithm(Model, local, add_mean, init_client=lambda x: Seen(x, jnp.array(False)))


def fedacg(lr, decay, weight) -> FedAlgorithm:
    def local(x, state, oracle, work):
        return move(x, proximal(oracle, weight, x).grad, lr, work), state

    def update(state, delta, round):
        momentum = tree.add_scale(delta, decay, state.other)
        return Paired(tree.add(state.params, momentum), momentum)

    def ahead(state, round):
        return tree.add_scale(state.params, decay, state.other)

    return FedAlgorithm(with_zeros, local, update, ahead)


class SmooState(NamedTuple):
    params: Tree
    dual: Tree  # mean over ALL clients of their duals
    offset: Tree  # the common perturbation, of norm radius


def fedsmoo(lr, weight, radius) -> FedAlgorithm:
    def local(message, state, oracle, work):
        x0, common = message
        dual, mu = state

        def step(carry, k):
            x, mu = carry
            ascent = tree.sub(tree.sub(oracle.grad(x, k), mu), common)
            e = tree.scale(radius, direction(ascent, 1e-7))
            pull = tree.scale(weight, tree.add(dual, tree.sub(x, x0)))
            g = tree.add(oracle.grad(tree.add(x, e), k), pull)
            return tree.add_scale(x, -lr, g), tree.add(mu, tree.sub(e, common))

        y, mu = local_steps(step, (x0, mu), work)
        delta = tree.sub(y, x0)
        return (delta, mu), (tree.add(dual, delta), mu)

    def update(state, mean, round):
        delta, mu = mean
        dual = tree.add_scale(state.dual, participation(round), delta)
        offset = tree.scale(radius, direction(mu, 1e-7))
        return SmooState(tree.add(tree.add(state.params, delta), dual), dual, offset)

    def init(params):
        return SmooState(params, *[tree.zeros_like(params)] * 2)

    def init_client(params):
        return (tree.zeros_like(params),) * 2

    return FedAlgorithm(
        init, local, update, lambda state, round: (state.params, state.offset), init_client
    )
