"""A tiny ragged regression problem with a NumPy twin, for eager loops to be compared with."""

import functools

import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs

# Nine clients: a ninth is not exact in binary, so a ratio left in single precision shows.
SIZES = np.array([3, 9, 1, 5, 2, 8, 4, 7, 6])
M = len(SIZES)
STEPS = 1 + SIZES // 2  # 1 .. 5, ragged
INPUTS, OUTPUTS = 3, 2


@functools.cache
def data() -> fs.FederatedData:
    """Linear regression with two outputs, every client with its own truth. Float64."""
    rng = np.random.default_rng(0)
    clients = []
    for size in SIZES:
        x = rng.normal(size=(size, INPUTS))
        y = x @ rng.normal(size=(INPUTS, OUTPUTS)) + rng.normal(size=OUTPUTS)
        clients.append({"x": x, "y": y})
    return fs.from_clients(clients)


def losses(params, examples, key):
    del key
    residual = examples["x"] @ params["w"] + params["b"] - examples["y"]
    return 0.5 * jnp.sum(residual**2, axis=-1)


def cyclic_batches() -> fs.data.batches.Batches:
    """Step k takes rows 2 k and 2 k + 1, modulo the client's size: no randomness to reproduce."""

    def draw(key, size, max_size, max_steps):
        def pick(step):
            first = 2 * jnp.asarray(step, jnp.int32)
            rows = (first + jnp.arange(2, dtype=jnp.int32)) % size
            return rows, jnp.ones(2, bool)

        return pick

    return fs.data.batches.Batches(lambda sizes: 1 + sizes // 2, draw)


def task() -> fs.Task:
    return fs.empirical_task(losses, data(), cyclic_batches())


def start_params():
    """Not zero: terms proportional to the model must show."""
    return {
        "w": jnp.array([[0.3, -0.2], [0.1, 0.4], [-0.5, 0.2]]),
        "b": jnp.array([0.05, -0.1]),
    }


def flat(params):
    """The weights, then the biases: the layout of the NumPy twin."""
    return jnp.concatenate([params["w"].reshape(-1), params["b"]])


START = np.array([0.3, -0.2, 0.1, 0.4, -0.5, 0.2, 0.05, -0.1])
IS_BIAS = np.arange(START.size) >= INPUTS * OUTPUTS


def _gradient(client: int, v: np.ndarray, rows: np.ndarray) -> np.ndarray:
    examples = data().client(client)
    x, y = examples["x"][rows], examples["y"][rows]
    residual = x @ v[~IS_BIAS].reshape(INPUTS, OUTPUTS) + v[IS_BIAS] - y
    return np.concatenate([(x.T @ residual).reshape(-1), residual.sum(axis=0)]) / len(rows)


def grad(client: int, v: np.ndarray, step: int) -> np.ndarray:
    return _gradient(client, v, np.array([2 * step, 2 * step + 1]) % SIZES[client])


def mean_loss(v: np.ndarray) -> float:
    """Over all examples; a scalar to differentiate."""
    x, y = data().examples["x"], data().examples["y"]
    residual = x @ v[~IS_BIAS].reshape(INPUTS, OUTPUTS) + v[IS_BIAS] - y
    return float(0.5 * (residual**2).sum() / len(x))
