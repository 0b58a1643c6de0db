"""Compact programs of the asynchronous families to come, and of compressed communication.

Who is stale is the timeline's business: only ``work.staleness`` shows here.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from families import Model, Tree, add_mean, move, per_step, real
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms import fedavg
from fedjax_sim.gradients import proximal
from fedjax_sim.local import local_steps, sgd
from fedjax_sim.typing import FedAlgorithm, Work


def _join(state, mean, round) -> Model:
    """The server's model is one of the averaged."""
    s = real(round.num_uploads)
    return Model(tree.scale(1 / (s + 1), tree.add_scale(state.params, s, mean)))


def favano(lr, scale, alpha: Callable[[Work], Array]) -> FedAlgorithm:
    """The progress of a visit is divided by ``scale * alpha(work)``."""

    def local(x, state, oracle, work):
        delta = move(x, oracle.grad, lr, work)
        return tree.add_scale(x, 1 / (scale * alpha(work)), delta), state

    return FedAlgorithm(Model, local, _join)


def deterministic(expected_steps) -> Callable[[Work], Array]:
    """alpha_i = E[min(E_i, K)], an array over clients."""
    return lambda work: jnp.asarray(expected_steps, float)[work.client]


def stochastic(p_active) -> Callable[[Work], Array]:
    """alpha_i = P(E_i > 0) * min(E_i, K); a visit without steps has no progress to divide."""
    return lambda work: jnp.asarray(p_active, float)[work.client] / per_step(work)


class Lattice(NamedTuple):
    """Vectors rounded to multiples of cell, sent modulo levels; the receiver's own vector tells
    which multiple was meant."""

    cell: float
    levels: int

    def encode(self, x: Tree) -> Tree:
        return jax.tree.map(lambda v: jnp.round(v / self.cell) % self.levels, x)

    def decode(self, code: Tree, near: Tree) -> Tree:
        def leaf(c, y):
            wraps = jnp.round(y / (self.levels * self.cell) - c / self.levels)
            return self.cell * (self.levels * wraps + c)

        return jax.tree.map(leaf, code, near)

    def through(self, x: Tree, near: Tree) -> Tree:
        return self.decode(self.encode(x), near)


def quafl(lr, through: Callable[[Tree, Tree], Tree] = lambda x, near: x) -> FedAlgorithm:
    """The client's state is its own model.  ``through(x, near)`` is x after the channel to a
    receiver that holds ``near``; the round's number of uploads travels in the message."""

    def local(message, own, oracle, work):
        w, s = message
        y = local_steps(sgd(lr, oracle.grad), own, work)
        mixed = tree.scale(1 / (s + 1), tree.add_scale(through(w, y), s, y))
        return through(y, w), mixed

    return FedAlgorithm(
        Model,
        local,
        _join,
        lambda state, round: (state.params, real(round.num_uploads)),
        init_client=lambda params: params,
    )


def fedbuff(lr, server_lr, power) -> FedAlgorithm:
    """FedAvg on a timeline of arrivals, differences scaled by (1 + staleness)^-power."""
    base = fedavg(lr, optax.sgd(server_lr))

    def local(x, state, oracle, work):
        upload, state = base.local(x, state, oracle, work)
        return tree.scale((1 + real(work.staleness)) ** -power, upload), state

    return base._replace(local=local)


def fedasync(lr, mix, power, weight) -> FedAlgorithm:
    def local(x, state, oracle, work):
        y = local_steps(sgd(lr, proximal(oracle, weight, x).grad), x, work)
        share = mix * (1 + real(work.staleness)) ** -power
        return (share, tree.scale(share, y)), state

    def update(state, mean, round):
        share, y = mean
        return Model(tree.add_scale(y, 1 - share, state.params))

    return FedAlgorithm(Model, local, update)


def async_sgd(lr, bound, patience=1) -> FedAlgorithm:
    """Koloskova et al.'s delay-adaptive rate: min(lr, bound / staleness) beyond ``patience``."""

    def local(x, state, oracle, work):
        late = jnp.minimum(lr, bound / real(jnp.maximum(work.staleness, 1)))
        eta = jnp.where(work.staleness <= patience, lr, late)
        return move(x, oracle.grad, eta, work), state

    return FedAlgorithm(Model, local, add_mean)


def compressed(algorithm: FedAlgorithm, codec: Callable[[Array, Tree], Tree]) -> FedAlgorithm:
    """The same algorithm, its uploads passed through ``codec(key, upload)``."""

    def local(message, state, oracle, work):
        upload, state = algorithm.local(message, state, oracle, work)
        return codec(work.key, upload), state

    return algorithm._replace(local=local)


def dithered(unit) -> Callable[[Array, Tree], Tree]:
    """Unbiased stochastic rounding to multiples of ``unit``, one draw for all leaves' entries."""

    def codec(key, x):
        leaves, structure = jax.tree.flatten(x)
        noise = uniform_noise(key, sum(leaf.size for leaf in leaves))
        starts = [sum(leaf.size for leaf in leaves[:i]) for i in range(len(leaves))]
        rounded = [
            unit * jnp.floor(leaf / unit + noise[i : i + leaf.size].reshape(leaf.shape))
            for i, leaf in zip(starts, leaves, strict=True)
        ]
        return structure.unflatten(rounded)

    return codec


def uniform_noise(key: Array, size: int) -> Array:
    # Drawn in single precision so that the numbers do not depend on the precision of the run.
    return jax.random.uniform(key, (size,), jnp.float32).astype(float)
