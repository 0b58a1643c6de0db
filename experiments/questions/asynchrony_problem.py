"""Problems, timelines, methods and measures of the study of asynchrony."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.harness import (
    seed_keys,
)
from experiments.questions import asynchrony_limits as limits
from experiments.questions.asynchrony_setting import (
    CONTACTS,
    CURVATURES,
    INTERVAL,
    LR,
    METHODS,
    PARTS,
    POWER,
    SERVER_LR,
    SETTLED,
    STEPS,
    slow_clients,
    system,
)
from fedjax_sim import timelines, tree
from fedjax_sim.algorithms import staleness


def problem(clients: int, slow: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Curvatures and minimisers, ``[M, 4 parts x 4]``, of the problems in ``PARTS``."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal((clients, len(CURVATURES)))
    other = rng.uniform(CURVATURES[0], CURVATURES[-1], v.shape)
    same = np.broadcast_to(CURVATURES, v.shape)
    is_slow = np.broadcast_to(slow_clients(clients, slow)[:, None], v.shape)
    return (
        np.concatenate([same, same, other, other], axis=1),
        np.concatenate([is_slow, v, is_slow, v], axis=1),
    )


def oracle(a: jax.Array, b: jax.Array, client: jax.Array, key: jax.Array, max_steps: int) -> Any:
    """The exact gradient of one client."""
    del key, max_steps

    def grad(x: jax.Array, step: Any = None) -> jax.Array:
        return a[client] * (x - b[client])

    def loss(x: jax.Array, step: Any = None) -> jax.Array:
        return 0.5 * jnp.sum(a[client] * (x - b[client]) ** 2)

    return fs.Oracle(grad, loss, grad, loss)


@functools.lru_cache(maxsize=2)
def clock(kind: str, clients: int, slow: float, seeds: int, horizon: float) -> list[fs.Timeline]:
    """A timeline per seed, of one shape.  ``kind``: "new", "current", "buffered" or "single"."""
    success = system(METHODS[0], clients, slow).success
    durations = timelines.geometric(success)
    found = []
    for key in seed_keys(seeds, root=1):
        if kind in ("new", "current"):
            timeline = timelines.contacts(
                key, timelines.renewal_counts(durations), horizon=horizon, num_clients=clients,
                cohort_size=clients // 5, max_steps=STEPS, interval=INTERVAL, receives=kind,
            )  # fmt: skip
        else:
            timeline = timelines.arrivals(
                key, durations, horizon=horizon / 4, num_clients=clients, num_steps=STEPS,
                buffer=clients // 10 if kind == "buffered" else 1,
            )  # fmt: skip
        found.append(timeline)
    shortest = min(timeline.num_rounds for timeline in found)
    batch = timelines.stacked([timeline[:shortest] for timeline in found])
    return [
        dataclasses.replace(
            jax.tree.map(lambda x, i=i: x[i], batch), time=np.asarray(batch.time)[i]
        )
        for i in range(seeds)
    ]


def setup_maker(seeds: int, horizon: float) -> Any:
    """A function of method, clients, slow and seed that returns the setup of one seed."""

    def make_setup(method: str, clients: int, slow: float, seed: int) -> fs.Setup:
        kinds = {"FAVANO": "new", "QuAFL": "current", "FedBuff": "buffered"}
        timeline = clock(kinds.get(method, "single"), clients, slow, seeds, horizon)[seed]
        a, b = (jnp.asarray(part, jnp.float32) for part in problem(clients, slow, seed))
        task = fs.Task(Partial(oracle, a, b), np.ones(clients, int), np.full(clients, STEPS, int))
        every = max(1, timeline.num_rounds // 300)
        start = jnp.zeros(a.shape[1], jnp.float32)
        return fs.Setup(task, timeline, start, Partial(lambda x: {"model": x}), every)

    return make_setup


def factory(method: str, corrected: float, clients: int, slow: float) -> fs.FedAlgorithm:
    """One of the methods; ``corrected`` is 1 with weights against the bias of speeds, else 0."""
    sizes = system(method, clients, slow)
    if method in CONTACTS:
        alpha = 1 + corrected * jnp.asarray(limits.expected_steps(sizes) - 1)
        if method == "FAVANO":
            return fs.favano(LR, staleness.expected_steps(alpha))
        return _scaled_steps(fs.quafl(LR), 1 / alpha)
    weights = 1 + corrected * jnp.asarray(limits.correction(method, sizes, POWER) - 1)
    if method == "FedBuff":
        return _scaled_uploads(fs.fedbuff(LR, SERVER_LR), weights)
    mix, weight = SERVER_LR / (clients / 10), None
    if method != "FedAsync":
        # Uploads have shares that sum to 1, so this is the mean weight of an upload.
        mix = mix / limits.contributions(method, sizes, POWER).sum()
        weight = staleness.polynomial(POWER)
    return _scaled_uploads(fs.fedasync(LR, mix, weight), weights)


def _scaled_uploads(algorithm: fs.FedAlgorithm, weights: jax.Array) -> fs.FedAlgorithm:
    """The algorithm whose clients' uploads count with a weight per client."""

    def local(message: Any, state: Any, oracle: Any, work: Any) -> tuple[Any, Any]:
        upload, state = algorithm.local(message, state, oracle, work)
        return tree.scale(weights[work.client], upload), state

    return algorithm._replace(local=local)


def _scaled_steps(algorithm: fs.FedAlgorithm, rates: jax.Array) -> fs.FedAlgorithm:
    """The algorithm whose clients' gradients are scaled by a number per client."""

    def local(message: Any, state: Any, oracle: Any, work: Any) -> tuple[Any, Any]:
        def grad(x: Any, step: Any) -> Any:
            return tree.scale(rates[work.client], oracle.grad(x, step))

        return algorithm.local(message, state, oracle._replace(grad=grad), work)

    return algorithm._replace(local=local)


def measured(run: Any) -> pd.DataFrame:
    """A row per part of a run: distances from the optimum, measured and by the formula."""
    method, corrected, clients, slow = (
        run.configuration[name] for name in ("method", "corrected", "clients", "slow")
    )
    corrected = bool(corrected)
    a, b = problem(clients, slow, int(run.seed))
    sizes = system(method, clients, slow)
    expected = limits.limit(limits.influence(method, corrected, sizes, LR, a, POWER), b)
    optimum = limits.limit(a, b)
    time = np.asarray(run.history.metrics["time"])
    late = time > SETTLED * time[-1]
    models = np.asarray(run.history.metrics["model"], np.float64)[late]
    found = models.mean(axis=0)
    rows = []
    for part, *vectors in zip(
        PARTS, *(x.reshape(len(PARTS), -1) for x in (found, expected, optimum, models.std(axis=0))),
        strict=True,
    ):  # fmt: skip
        limit, formula, best, spread = vectors
        row = {"method": method, "corrected": corrected, "clients": clients, "slow": slow}
        row |= {"part": part, "seed": int(run.seed)}
        row |= {"lack": np.mean(best - limit), "lack by formula": np.mean(best - formula)}
        row |= {"distance": _rms(limit - best), "distance by formula": _rms(formula - best)}
        rows.append(row | {"error": _rms(limit - formula), "spread": _rms(spread)})
    return pd.DataFrame(rows)


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))
