r"""Populations of clients with 10 examples of 60 features, and training on them.

Clients differ in their examples and in their labels: with u, v_i, z standard normal and a label of
1 where ``x @ w_i`` plus logistic noise is positive,

    x = v_i / 2 + z,    w_i = 3 u / |u| + h v_i' / sqrt(60),    v_i' standard normal.

A client's examples depend on its number alone, so populations contain each other, and the loss of
fresh clients is the same measure for all populations.  Data and control variates are sharded by
client over all devices; examples are made stratum by stratum, as a program would read them that has
no memory for a second copy.
"""

import functools
import resource
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs
from fedjax_sim.data import ClientSource

FEATURES, EXAMPLES, STRATA = 60, 10, 8
EPOCHS, BATCH_SIZE = 5, 5
LR, HETEROGENEITY, NORM = 0.1, 3.0, 3.0
BLOCK = 1000  # clients that are made at a time
FRESH = 10_000  # clients that are in no population
ALGORITHMS = {"fedavg": fs.fedavg, "scaffold": fs.scaffold}


@functools.lru_cache(maxsize=4)
def block(number: int) -> dict[str, np.ndarray]:
    """The examples of the clients ``BLOCK number .. BLOCK (number + 1) - 1``, ``[BLOCK, 10]``."""
    direction = np.random.default_rng(0).standard_normal(FEATURES, np.float32)
    rng = np.random.default_rng([1, number])
    means, shifts = rng.standard_normal((2, BLOCK, 1, FEATURES), np.float32)
    planes = NORM * direction / np.linalg.norm(direction) + HETEROGENEITY * shifts / FEATURES**0.5
    x = means / 2 + rng.standard_normal((BLOCK, EXAMPLES, FEATURES), np.float32)
    noise = rng.logistic(size=(BLOCK, EXAMPLES))
    return {"x": x, "y": (np.sum(x * planes, -1) + noise > 0).astype(np.float32)}


def load(start: int, stop: int) -> dict[str, np.ndarray]:
    """The examples of some clients, concatenated: ``x`` ``[10 n, 60]``, ``y`` ``[10 n]``."""
    x = np.empty((stop - start, EXAMPLES, FEATURES), np.float32)
    y = np.empty((stop - start, EXAMPLES), np.float32)
    for number in range(start // BLOCK, -(-stop // BLOCK)):
        first, last = max(start, number * BLOCK), min(stop, (number + 1) * BLOCK)
        part = slice(first - number * BLOCK, last - number * BLOCK)
        here = slice(first - start, last - start)
        x[here], y[here] = block(number)["x"][part], block(number)["y"][part]
    return {"x": x.reshape(-1, FEATURES), "y": y.reshape(-1)}


def case(algorithm: str, clients: int, rounds: int, cohort: int, seeds: int) -> dict[str, Any]:
    """Trains on a population; to be called in a process of its own, whose peak of memory it reads.

    Returns:
        seconds per round and of compilation, GB at the peak; per seed the mean loss of the
        population's and of fresh clients.
    """
    fs.execution.use_all_cores()
    model = fs.models.logistic_regression(FEATURES)
    loss = fs.objectives.binary_cross_entropy(model.apply)
    where = fs.execution.by_client(clients, num_strata=STRATA)
    source = ClientSource(np.full(clients, EXAMPLES), load)
    task = fs.empirical_task(loss, source, fs.epochs(EPOCHS, BATCH_SIZE), placement=where)
    jax.block_until_ready(task)
    data_gb = peak()
    runs = []
    for seed in range(seeds):
        keys = jax.random.split(jax.random.key(seed), 3)
        timeline = fs.timelines.stratified(
            keys[0], rounds, clients, cohort, task.num_steps, num_strata=STRATA
        )
        params = model.init(keys[1])
        runs.append(
            fs.simulate(ALGORITHMS[algorithm](LR), fs.Setup(task, timeline, params), keys[2])
        )
    peak_gb = peak()
    del task  # the losses are computed block by block
    servers = [run.state.server.params for run in runs]
    beyond = max(1_000_000, clients)
    return {
        "seconds": [run.run_seconds / rounds for run in runs],
        "compile_seconds": [run.compile_seconds for run in runs],
        "data_gb": data_gb,
        "peak_gb": peak_gb,
        "train/loss": mean_losses(loss, servers, 0, clients),
        "test/loss": mean_losses(loss, servers, beyond, beyond + FRESH),
        "devices": len(where.mesh.devices),
        "device": jax.devices()[0].device_kind,
    }


def mean_losses(loss: Any, servers: list[Any], start: int, stop: int) -> list[float]:
    """The mean loss of the clients' examples under each model."""
    together = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *servers)
    metrics = lambda params, examples: {"loss": loss(params, examples, None)}  # noqa: E731
    total = np.zeros(len(servers))
    for first in range(start, stop, 10 * BLOCK):
        last = min(first + 10 * BLOCK, stop)
        losses = jax.vmap(fs.evaluation.evaluator(metrics, load(first, last)))(together)["loss"]
        total += np.asarray(losses, np.float64) * (last - first)
    return (total / (stop - start)).tolist()


def peak() -> float:
    """Peak of memory so far in GB: the device's if it reports one, otherwise the process's."""
    device = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    unit = 1 if sys.platform == "darwin" else 1024
    return (device or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit) / 1e9
