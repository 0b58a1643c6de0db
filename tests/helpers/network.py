"""A non-convex problem with ragged clients, dropout and minibatches, for derivations in NumPy.

It is a network with two hidden units, whose gradient is written by hand.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from small_problems import NUM_CLIENTS, SIZES, recorded_rounds, rotated, run

import fedjax_sim as fs
from fedjax_sim import transforms

BATCHES = rotated(2)
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
    """Returns the gradient of the weighted sum of the examples' losses."""
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
    steps = BATCHES.num_steps(SIZES)
    drawn = fs.timelines.uniform(jax.random.key(11), 3, NUM_CLIENTS, cohort_size=4, num_steps=steps)
    drawn = fs.timelines.dropout(jax.random.key(12), drawn, 0.2)
    reports = np.asarray(drawn.mask).sum(1)
    assert reports.min() >= 2
    assert reports.sum() < drawn.mask.size
    visits = np.asarray(drawn.clients)[np.asarray(drawn.mask)]
    assert len(set(visits.tolist())) < len(visits), "somebody reports twice"
    return drawn


@functools.cache
def task():
    return fs.empirical_task(network_losses, network_data(), BATCHES)


def final(algorithm, weighting=fs.uniform_weights):
    setup = fs.Setup(task(), timeline(), network_params(), weighting=weighting)
    return run(algorithm, setup, jax.random.key(2))[0]


@functools.cache
def rounds():
    """The visits of each round as ``(client, [K, N] example weights)``."""
    return recorded_rounds(SIZES, BATCHES, timeline(), jax.random.key(2))


def start():
    return flat(network_params())


def mean(values):
    return np.mean(values, axis=0)


# ---- clipping and weight decay in sharpness-aware methods


def sam_offset(g, radius):
    return radius * g / (np.linalg.norm(g) + 1e-12)


def regular(oracle):
    """A clip that acts (gradients here are of size 1 to 10), then decay."""
    return transforms.add_decayed_weights(transforms.clip_by_global_norm(oracle, 0.8), 0.05)


def regularized(g, y):
    """The gradient of the step: clipped at the perturbed model, with the decay at y itself."""
    return g * min(1, 0.8 / (np.linalg.norm(g) + 1e-6)) + 0.05 * y
