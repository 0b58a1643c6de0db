"""A tiny ragged problem with a NumPy twin, and timelines made by NumPy event loops."""

import functools
import heapq

import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs

# Nine clients: a ninth is not exact in binary, so a ratio left in single precision shows.
SIZES = np.array([3, 9, 1, 5, 2, 8, 4, 7, 6])
M = len(SIZES)
STEPS = 1 + SIZES // 2  # 1 .. 5, ragged
MAX_STEPS = int(STEPS.max())
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


def timeline(clients, version, num_steps, mask, time) -> fs.Timeline:
    version, num_steps, mask = np.asarray(version), np.asarray(num_steps), np.asarray(mask)
    staleness = np.where(mask, np.arange(len(version))[:, None] - version, 0)
    return fs.Timeline(
        clients=jnp.asarray(clients, jnp.int32),
        version=jnp.asarray(version, jnp.int32),
        num_steps=jnp.asarray(num_steps, jnp.int32),
        mask=jnp.asarray(mask),
        time=jnp.asarray(time, jnp.float32),
        max_steps=int(num_steps.max()),
        max_staleness=int(staleness.max()),
    )


@functools.cache
def synchronous(num_rounds: int = 5, cohort: int = 4) -> fs.Timeline:
    """Partial participation with dropouts; nobody reports in round 2."""
    rng = np.random.default_rng(1)
    clients = np.stack([rng.choice(M, cohort, replace=False) for _ in range(num_rounds)])
    mask = rng.uniform(size=clients.shape) < 0.75
    mask[2] = False
    version = np.broadcast_to(np.arange(num_rounds)[:, None], clients.shape)
    return timeline(clients, version, STEPS[clients], mask, np.arange(num_rounds) + 1)


@functools.cache
def contacts(receive_new: bool, num_rounds: int = 6, cohort: int = 4) -> fs.Timeline:
    """The server contacts a random cohort every 7 time units; a client does as many steps as fit
    since its last contact, at most MAX_STEPS.  It continues from the model made at its last
    contact (``receive_new``: FAVANO), or hears the present one and has its own (QuAFL)."""
    rng = np.random.default_rng(2)
    step_time = np.where(np.arange(M) < 3, 16.0, 2.0)  # three slow clients
    last = np.full(M, -1)  # server step of the last contact
    clients, version, steps = [], [], []
    for t in range(num_rounds):
        chosen = rng.choice(M, cohort, replace=False)
        gaps = t - last[chosen] - (last[chosen] < 0)  # clocks start at the first server step
        done = rng.poisson(7 * gaps / step_time[chosen])
        clients.append(chosen)
        version.append(last[chosen] + 1 if receive_new else np.full(cohort, t))
        steps.append(np.minimum(done, MAX_STEPS))
        last[chosen] = t
    mask = np.ones((num_rounds, cohort), bool)
    mask[3, 1] = False  # a lost upload
    return timeline(clients, version, steps, mask, 7.0 * np.arange(num_rounds))


@functools.cache
def arrivals(buffer: int, num_rounds: int, one_step: bool = False) -> fs.Timeline:
    """All clients work all the time; the server updates at every ``buffer``-th arrival, and those
    that contributed restart from the new model.  Slots are filled up to 4 with empty ones."""
    rng = np.random.default_rng(3)
    mean_time = np.where(np.arange(M) < 3, 8.0, 2.0)
    num_steps = np.ones(M, int) if one_step else STEPS

    def finish(client, now):
        return now + rng.exponential(mean_time[client], num_steps[client]).sum()

    queue = [(finish(client, 0.0), client, 0) for client in range(M)]
    heapq.heapify(queue)
    slots = max(buffer, 4)
    clients = np.zeros((num_rounds, slots), int)
    version = np.repeat(np.arange(num_rounds)[:, None], slots, axis=1)
    mask = np.broadcast_to(np.arange(slots) < buffer, clients.shape)
    time = np.zeros(num_rounds)
    for t in range(num_rounds):
        arrived = [heapq.heappop(queue) for _ in range(buffer)]
        time[t] = arrived[-1][0]
        for s, (_, client, started) in enumerate(arrived):
            clients[t, s], version[t, s] = client, started
            heapq.heappush(queue, (finish(client, time[t]), client, t + 1))
    return timeline(clients, version, num_steps[clients], mask, time)


def visits(schedule: fs.Timeline) -> list[list[tuple[int, int, int]]]:
    """Per round the (client, version, steps) of those who report."""
    c, v, k, m = (
        np.asarray(x)
        for x in (schedule.clients, schedule.version, schedule.num_steps, schedule.mask)
    )
    return [
        [(int(c[t, s]), int(v[t, s]), int(k[t, s])) for s in np.flatnonzero(m[t])]
        for t in range(len(c))
    ]
