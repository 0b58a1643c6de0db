"""Small problems, algorithms and comparisons that several test modules share."""

import dataclasses
import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import fedjax_sim as fs

# Sizes 1 .. 9: with batches of 2 the clients differ in steps and some last batches are short.
SIZES = np.array([3, 9, 1, 5, 2, 8, 4, 7])
NUM_CLIENTS = len(SIZES)
NUM_FEATURES = 3
KEY = jax.random.key(0)

# Optimising these tiny programs takes far longer than running them; without the fusion emitters,
# which later versions cannot leave out, they compile three times faster.
_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
if jax.__version_info__ < (0, 11):
    _OPTIONS["xla_cpu_use_fusion_emitters"] = False
compiled = functools.partial(jax.jit, compiler_options=_OPTIONS)


def logistic_data() -> fs.FederatedData:
    """Ragged, heterogeneous: every client has its own labelling plane. Float64, for NumPy too."""
    rng = np.random.default_rng(0)
    clients = []
    for size in SIZES:
        x = rng.normal(size=(size, NUM_FEATURES))
        plane = rng.normal(size=NUM_FEATURES)
        clients.append({"x": x, "y": (x @ plane + rng.normal(size=size) > 0).astype(np.float64)})
    return fs.from_clients(clients)


def logistic_losses(params, examples, key):
    """Logistic loss of the model ``x @ w + b``; labels 0 and 1."""
    del key
    z = examples["x"] @ params["w"] + params["b"]
    return jax.nn.softplus(z) - examples["y"] * z


def logistic_params():
    """A start that is not zero, so that terms proportional to the model are seen."""
    return {"w": jnp.array([0.3, -0.2, 0.1]), "b": jnp.array(0.05)}


def logistic_task(batches: fs.data.batches.Batches | None = None) -> fs.Task:
    """The logistic problem, by default in two epochs of batches of 2: 2 to 10 steps per visit."""
    return fs.empirical_task(logistic_losses, logistic_data(), batches or fs.epochs(2, 2))


@functools.cache
def rotated(batch_size: int) -> fs.data.batches.Batches:
    """Consecutive rows from a random first one, cyclically, with the steps of two epochs.

    The random row comes from the bits of the visit's key, which costs next to nothing to compile.
    """

    def draw(key, size, max_size, max_steps):
        del max_size, max_steps
        first = (jax.random.key_data(key)[-1] % jnp.asarray(size, jnp.uint32)).astype(jnp.int32)

        def pick(step):
            row = first + batch_size * jnp.asarray(step, jnp.int32)
            rows = (row + jnp.arange(batch_size, dtype=jnp.int32)) % jnp.asarray(size, jnp.int32)
            return rows, jnp.ones(batch_size, bool)

        return pick

    return fs.data.batches.Batches(fs.epochs(2, batch_size).num_steps, draw)


@functools.cache
def partial_timeline() -> fs.Timeline:
    """4 rounds of 4 of the 8 clients, of whom a third drop out; no round is empty."""
    steps = logistic_task().num_steps
    sampled = fs.timelines.uniform(
        jax.random.key(1), 4, NUM_CLIENTS, cohort_size=4, num_steps=steps
    )
    timeline = fs.timelines.dropout(jax.random.key(5), sampled, 0.3)
    reports = np.asarray(timeline.mask).sum(axis=1)
    assert reports.min() >= 1
    assert reports.sum() < timeline.mask.size
    return timeline


@functools.cache
def stale_timeline() -> fs.Timeline:
    """The visits of :func:`partial_timeline`, up to 3 rounds late, with allocated buffers."""
    timeline = partial_timeline()
    rounds = np.arange(timeline.num_rounds)[:, None]
    version = np.maximum(rounds - np.array([0, 1, 2, 3]), 0)
    late = dataclasses.replace(timeline, version=jnp.asarray(version, jnp.int32), max_staleness=3)
    return fs.timelines.allocate_buffers(late)


def quadratic_task(hessians, centres, num_steps: int) -> fs.Task:
    """Clients with F_i(x) = (x - b_i)' A_i (x - b_i) / 2, without noise: [M, d, d] and [M, d]."""

    oracle = Partial(_quadratic_oracle, jax.device_put(hessians), jax.device_put(centres))
    count = len(hessians)
    return fs.Task(oracle, np.ones(count, np.int32), np.full(count, num_steps, np.int32))


def _quadratic_oracle(hessians, centres, client, key, max_steps):
    del key, max_steps
    a, b = hessians[client], centres[client]
    return fs.Oracle(
        grad=lambda x, step: a @ (x - b),
        loss=lambda x, step: 0.5 * (x - b) @ a @ (x - b),
        full_grad=lambda x: a @ (x - b),
        full_loss=lambda x: 0.5 * (x - b) @ a @ (x - b),
    )


def random_quadratics(num_clients: int, dim: int, seed: int = 0):
    """Hessians with eigenvalues in [0.5, 1.5] and centres of size 1; float64 NumPy arrays."""
    rng = np.random.default_rng(seed)
    bases = np.linalg.qr(rng.normal(size=(num_clients, dim, dim)))[0]
    eigenvalues = rng.uniform(0.5, 1.5, size=(num_clients, 1, dim))
    return (bases * eigenvalues) @ bases.transpose(0, 2, 1), rng.normal(size=(num_clients, dim))


class Counter(NamedTuple):
    params: Any


def upload_algorithm(upload) -> fs.FedAlgorithm:
    """Adds the mean of ``upload(message, work)`` to the model; clients count their visits."""

    def local(message, visits, oracle, work):
        del oracle
        return upload(message, work), visits + 1

    return fs.FedAlgorithm(
        init=Counter,
        local=local,
        update=lambda state, mean, round: Counter(state.params + mean),
        init_client=lambda params: jnp.array(0),
    )


# The model counts server updates, or the mean number of local steps.
COUNT_ROUNDS = upload_algorithm(lambda message, work: jnp.array(1.0))
COUNT_STEPS = upload_algorithm(lambda message, work: work.num_steps.astype(jnp.float32))
ZERO = jnp.array(0.0)


def no_data(num_clients=NUM_CLIENTS):
    return quadratic_task(np.ones((num_clients, 1, 1)), np.zeros((num_clients, 1)), 3)


def run(algorithm, setup, key=KEY, **options):
    """Runs an algorithm in a compiled program, which those with other numbers share."""
    if algorithm.spec is None or options:
        program = compiled(lambda setup, key: fs.run(algorithm, setup, key, **options))
        return program(setup, key)
    return _run(algorithm.spec, setup, key)


@compiled
def _run(spec, setup, key):
    return fs.run(spec.build(), setup, key)


SETUP_FIELDS = ("eval_fn", "eval_every", "weighting")


def execute(algorithm, timeline, params: Any = ZERO, task=None, **options):
    """Runs an algorithm; options are fields of the setup and arguments of ``fs.run``."""
    task = no_data() if task is None else task
    fields = {name: options.pop(name) for name in SETUP_FIELDS if name in options}
    return run(algorithm, fs.Setup(task, timeline, params, **fields), **options)


def row_recorder(sizes, batches, max_steps):
    """Task, model and probes; the client probe "rows" records the minibatches of each visit.

    The loss of example j is the j-th parameter, so a minibatch's gradient lists its rows.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    data = fs.FederatedData({"row": np.arange(offsets[-1])}, offsets)
    task = fs.empirical_task(lambda p, examples, key: p[examples["row"]], data, batches)
    params = jnp.zeros(int(offsets[-1]))

    def rows(visit):
        return jax.vmap(lambda k: visit.oracle.grad(params, k))(jnp.arange(max_steps))

    return task, params, fs.Probes(client={"rows": rows})


def recorded_batches(sizes, batches, timeline, key, **options) -> np.ndarray:
    """[T, S, K, N]: the weight of each of the N examples in the k-th minibatch of each slot."""
    task, params, probes = row_recorder(sizes, batches, timeline.max_steps)

    @compiled
    def record(task, timeline, key):
        return fs.run(
            fs.fedsgd(0.0), fs.Setup(task, timeline, params), key, probes=probes, **options
        )[1]

    return np.asarray(record(task, timeline, key).probes["rows"])


def recorded_rounds(sizes, batches, timeline, key):
    """The visits of each round as ``(client, [K, N] example weights)``, for the derivations."""
    record = recorded_batches(sizes, batches, timeline, key)
    clients, steps = np.asarray(timeline.clients), np.asarray(timeline.num_steps)
    return [
        [(clients[t, s], record[t, s, : steps[t, s]]) for s in np.nonzero(reports)[0]]
        for t, reports in enumerate(np.asarray(timeline.mask))
    ]


def assert_identical(actual, expected):
    """Every leaf equal in shape, dtype and every entry, without tolerance."""
    chex.assert_trees_all_equal(actual, expected, strict=True)


def assert_close(actual, expected, rtol):
    """Every leaf within ``rtol`` of the largest entry of the expected leaf.

    Relative to the leaf, not to each entry: entries that cancel to almost zero carry the
    round-off of the large ones.
    """

    def compare(a, b):
        scale = np.abs(b).max(initial=0.0)
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * scale)

    jax.tree.map(compare, actual, expected)
