"""Names in the calls of the tables: clients whose changes of the model are known numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_sim as fs
from fedjax_sim.algorithms import staleness  # noqa: F401  for the calls

seven = [12, 14, 20, 39, 45, 52, 59]
digits = np.repeat(np.arange(10), 600)  # labels of 6,000 examples, sorted


def server(
    algorithm, changes, rounds=1, *, examples=None, steps=1, cohort=None, start=0.0, weights=None
):
    """Returns the server's state after each round; a step of client i adds changes[i] to x."""
    M = len(changes)
    sizes = examples or [1] * M
    data = fs.from_clients(
        [{"d": np.full(n, d, np.float32)} for n, d in zip(sizes, changes, strict=True)]
    )
    steps = np.broadcast_to(np.asarray(steps, np.int32), M)
    task = fs.empirical_task(
        lambda x, batch, key: -x * batch["d"], data, fs.full_batch(int(steps.max()))
    )
    key = jax.random.key(0)
    timeline = fs.timelines.uniform(key, rounds, M, cohort or M, steps)
    weighting = weights or fs.uniform_weights
    states, state = [], fs.init(algorithm, fs.Setup(task, timeline, jnp.asarray(start)))
    for r in range(rounds):
        setup = fs.Setup(task, timeline[r : r + 1], None, weighting=weighting)
        state = fs.advance(algorithm, setup, state, key)[0]
        states.append(state.server)
    return states


def path(algorithm, changes=(1.0,), rounds=3, **settings):
    """Returns the server's model after each round."""
    return [float(state.params) for state in server(algorithm, changes, rounds, **settings)]


def change(algorithm, changes, **settings):
    """Returns the change of the server's model in one round."""
    return path(algorithm, changes, 1, **settings)[0] - settings.get("start", 0.0)


def last(rule, values, **settings):
    """Returns the server's model if the clients' models, all trained from 0, are the values."""
    return change(fs.robust.aggregate(fs.fedavg(1.0), rule), values, **settings)


def broken(rule, values, client):
    """Returns the same if one client's upload is infinite, which is treated as NaN is."""
    attackers = np.arange(len(values)) == client
    algorithm = fs.robust.aggregate(fs.fedavg(1.0), rule)
    return change(fs.robust.attacks.infinity(algorithm, attackers), values)


def batches(rule, size):
    """Returns the number of examples of each minibatch of a visit."""
    steps = int(rule.num_steps(np.array([size]))[0])
    pick = rule.draw(jax.random.key(0), jnp.array(size), size, steps)
    return [int(pick(step)[1].sum()) for step in range(steps)]


def largest(partition, seeds=30):
    """Returns the size of the largest client over the mean size, on average over seeds."""
    sizes = [[len(rows) for rows in partition(seed)] for seed in range(seeds)]
    return float(np.mean([max(s) / np.mean(s) for s in sizes]))


def labels_per_client(assignment):
    """Returns the number of different labels of each client."""
    return [len(set(digits[rows])) for rows in assignment]


SECOND = {  # the new v of Reddi et al., from v and the square of the change
    "adam": lambda v, square: 0.99 * v + 0.01 * square,
    "yogi": lambda v, square: v - 0.01 * jnp.sign(v - square) * square,
    "adagrad": lambda v, square: v + square,
}


def from_zero(rate, kind, tau=1e-3):
    """Returns the server of Reddi et al. (`rule="paper"`) with v from 0, not from tau squared."""
    b1 = 0.0 if kind == "adagrad" else 0.9

    def init(params):
        return jax.tree.map(jnp.zeros_like, (params, params))

    def update(updates, state, params=None):
        del params
        m = jax.tree.map(lambda m, d: b1 * m + (1 - b1) * d, state[0], updates)
        v = jax.tree.map(lambda v, d: SECOND[kind](v, d**2), state[1], updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + tau), m, v), (m, v)

    steps = optax.GradientTransformation(init, update)
    return optax.chain(steps, optax.scale_by_learning_rate(rate))


def levels(codec, x):
    """Returns the largest decoded magnitude and the least distance of two, over the largest |x|."""
    x = jnp.asarray(x)
    decoded = [codec.through(jax.random.key(seed), x, x) for seed in range(200)]
    magnitudes = np.unique(np.abs(np.round(decoded, 5)))
    scale = float(jnp.abs(x).max())
    return [float(magnitudes.max() / scale), float(np.diff(magnitudes).min() / scale)]
