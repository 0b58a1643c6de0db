"""A non-convex problem with ragged clients, dropout and minibatches, for derivations in NumPy.

A network with two hidden units; its gradient is by hand.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from small_problems import NUM_CLIENTS, SIZES, compiled, recorded_rounds

import fedjax_sim as fs

EPOCHS = fs.epochs(2, 2)
HIDDEN, FEATURES = 2, 3


def network_data():
    rng = np.random.default_rng(8)
    clients = [
        {"x": rng.normal(size=(size, FEATURES)), "y": rng.normal(size=size) + rng.normal()}
        for size in SIZES
    ]
    return fs.from_clients(clients)


def network_losses(params, examples, key):
    del key
    hidden = jnp.tanh(examples["x"] @ params["kernel"] + params["bias"])
    return 0.5 * (hidden @ params["out"] - examples["y"]) ** 2


def network_params():
    rng = np.random.default_rng(9)
    return {
        "bias": jnp.asarray(rng.normal(size=HIDDEN)),
        "kernel": jnp.asarray(rng.normal(size=(FEATURES, HIDDEN))),
        "out": jnp.asarray(rng.normal(size=HIDDEN)),
    }


def flat(params):
    """[..., d] in the order of the derivations: bias, kernel, out."""
    batch = np.shape(params["bias"])[:-1]
    return np.concatenate(
        [np.reshape(params[k], (*batch, -1)) for k in ("bias", "kernel", "out")], -1
    )


IS_MATRIX = np.repeat([False, True, False], [HIDDEN, FEATURES * HIDDEN, HIDDEN])


def gradient(model, weights):
    """Of the weighted sum of the examples' losses, by hand."""
    examples = network_data().examples
    x, y = examples["x"], examples["y"]
    bias, out = model[:HIDDEN], model[-HIDDEN:]
    kernel = model[HIDDEN:-HIDDEN].reshape(FEATURES, HIDDEN)
    hidden = np.tanh(x @ kernel + bias)
    residual = weights * (hidden @ out - y)
    before = residual[:, None] * out * (1 - hidden**2)
    return np.concatenate([before.sum(0), (x.T @ before).ravel(), hidden.T @ residual])


def full_gradient(model, client):
    owners = network_data().owners()
    return gradient(model, (owners == client) / SIZES[client])


@functools.cache
def timeline():
    """3 rounds of 4 of the 8 clients, some of whom drop out."""
    steps = EPOCHS.num_steps(SIZES)
    drawn = fs.timelines.uniform(jax.random.key(11), 3, NUM_CLIENTS, cohort_size=4, num_steps=steps)
    drawn = fs.timelines.dropout(jax.random.key(12), drawn, 0.2)
    reports = np.asarray(drawn.mask).sum(1)
    assert reports.min() >= 2
    assert reports.sum() < drawn.mask.size
    visits = np.asarray(drawn.clients)[np.asarray(drawn.mask)]
    assert len(set(visits.tolist())) < len(visits), "somebody reports twice"
    return drawn


def final(algorithm):
    task = fs.empirical_task(network_losses, network_data(), EPOCHS)

    @compiled
    def go(task, timeline):
        key = jax.random.key(2)
        return fs.run(algorithm, fs.Setup(task, timeline, network_params()), key)[0]

    return go(task, timeline())


def rounds():
    return recorded_rounds(SIZES, EPOCHS, timeline(), jax.random.key(2))


def start():
    return flat(network_params())
