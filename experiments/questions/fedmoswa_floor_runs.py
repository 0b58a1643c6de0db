"""Runs of the law of the floor: seeds and values of gamma of one (case, method, cohort) together.

Keys do not depend on methods and gamma, so all of them see the same cohorts and the same noise.
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.harness import kept_json, seed_keys
from experiments.questions.fedmoswa_floor import Method, Sizes, distances, progress
from fedjax_sim.runs import digest

CLIENTS, DIMENSION, STEPS = 32, 4, 8
SETTLED = 0.25  # share of the rounds that is left out; floors are means over the rest
GROUPS = 16  # of seeds; their means are kept
SCHEDULES = {"FedAvg": (1.0, 1.0), "SCAFFOLD": (1.0, 1.0), "FedMo": (1.0, 1.0)}
SCHEDULES |= {"FedMoSWA": (0.1, 1.5)}  # rho, alpha


class Case(NamedTuple):
    """A case whose floors are measured over cohorts and gamma."""

    step: float  # alpha sum_k eta_k, equal for all methods
    noise: float = 0.0  # standard deviation of a gradient in each coordinate
    spread: float = 0.0  # curvatures are within 1 - spread and 1 + spread


CASES = (Case(0.2), Case(0.2, noise=1.0), Case(0.2, spread=0.5), Case(0.05), Case(0.8))


class Clients(NamedTuple):
    """Curvatures and minimisers of the clients, ``[M, d]``; a minimiser's variance is 1."""

    curvatures: Any
    minimisers: Any


@functools.cache
def make_clients(spread: float) -> Clients:
    """The clients of one problem, the same ones for all seeds."""
    rng = np.random.default_rng(0)
    b = rng.standard_normal((CLIENTS, DIMENSION))
    b = (b - b.mean(axis=0)) / b.std(axis=0, ddof=1)
    return Clients(1 + spread * rng.uniform(-1, 1, b.shape), b)


def rates(method: Method, step: float) -> np.ndarray:
    """The rates of a visit ``[K]``, for which ``alpha sum_k eta_k`` is the step."""
    rho, alpha = SCHEDULES[method]
    shape = 1 - (1 - rho) * np.arange(STEPS) / STEPS
    return step / alpha * shape / shape.sum()


def algorithm(method: Method, lr: Any, gamma: Any) -> fs.FedAlgorithm:
    """The method at the first rate of a visit."""
    rho, alpha = SCHEDULES[method]
    if method == "FedAvg":
        return fs.fedavg(lr)
    if method == "SCAFFOLD":
        return fs.scaffold(lr)
    return fs.fedmo(lr, gamma) if method == "FedMo" else fs.fedmoswa(lr, rho, alpha, gamma)


@jax.jit(static_argnames=("method", "cohort", "rounds", "noisy"))
def _program(
    method: Method, cohort: int, rounds: int, noisy: bool, clients: Clients, noise: Any, lr: Any,
    gammas: jax.Array, keys: jax.Array,
) -> jax.Array:  # fmt: skip
    a, b = clients
    optimum = (a * b).sum(axis=0) / a.sum(axis=0)
    ones = np.ones(CLIENTS, int)
    task = fs.Task(Partial(_oracle, a, b, noise if noisy else None), ones, STEPS * ones)
    distance = Partial(lambda best, x: {"distance": jnp.square(x - best).mean()}, optimum)

    def one(gamma: Any, key: Any) -> Any:
        draw, run = jax.random.split(key)
        timeline = fs.timelines.uniform(draw, rounds, CLIENTS, cohort, task.num_steps)
        setup = fs.Setup(task, timeline, jnp.zeros(DIMENSION), distance)
        method_ = algorithm(method, lr, gamma)
        _, history = fs.run(method_, setup, run, execution=fs.execution.vmapped())
        return history.metrics["distance"][round(SETTLED * rounds) :].mean()

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(gammas, keys)


def floors(
    method: Method, case: Case, cohort: int, gammas: tuple[float, ...], seeds: int, rounds: int
) -> np.ndarray:
    """Square distances from the optimum per coordinate, late means, ``[gammas, seeds]``."""
    with jax.enable_x64(True):
        clients = Clients(*map(jnp.asarray, make_clients(case.spread)))
        lr = jnp.asarray(rates(method, case.step)[0])
        found = _program(
            method, cohort, rounds, case.noise > 0, clients, jnp.asarray(case.noise), lr,
            jnp.asarray(gammas), seed_keys(seeds),
        )  # fmt: skip
        return np.asarray(found)


def exact(method: Method, case: Case, cohort: int, gamma: float, rounds: int) -> float:
    """The expectation of :func:`floors` by the recursion of second moments."""
    clients = make_clients(case.spread)
    if not case.spread:  # all coordinates have the same moments
        clients = Clients(*(part[:, :1] for part in clients))
    _, alpha = SCHEDULES[method]
    sizes = Sizes(cohort, rates(method, case.step), alpha, gamma, case.noise)
    coordinates = zip(*map(np.transpose, clients), strict=True)
    found = [distances(method, a, b, sizes, rounds) for a, b in coordinates]
    return float(np.mean([part[round(SETTLED * rounds) :].mean() for part in found]))


def step_of(case: Case) -> float:
    """The number h of the law for FedMo, with the mean curvature 1."""
    q, _ = progress(np.ones(1), rates("FedMo", case.step))
    return float(case.step * q[0])


def _both(
    method: Method, case: Case, cohort: int, gammas: tuple[float, ...], seeds: int, rounds: int
) -> dict[str, Any]:
    """Means over groups of seeds, and the expectations, as values of a JSON file."""
    found = floors(method, case, cohort, gammas, seeds, rounds)
    means = found.reshape(len(gammas), GROUPS, -1).mean(axis=2)
    by_recursion = [exact(method, case, cohort, gamma, rounds) for gamma in gammas]
    return {"measured": means.tolist(), "exact": by_recursion}


def measured(
    work: pathlib.Path, cohorts: Sequence[int], gammas: Sequence[float], seeds: int, rounds: int
) -> pd.DataFrame:
    """A row per case, method, cohort and gamma; a file per program, which does not run again."""
    rows = []
    for case in CASES:
        # The schedule within a visit changes h only, so one case has both.
        methods: list[Any] = [
            name for name in get_args(Method) if name != "FedMoSWA" or case == CASES[0]
        ]
        for method, cohort in ((name, s) for name in methods for s in cohorts):
            own = tuple(gammas) if method.startswith("FedMo") else (1.0,)

            compute = functools.partial(_both, method, case, cohort, own, seeds, rounds)
            identity = {"case": case._asdict(), "method": method, "cohort": cohort}
            identity |= {"gammas": list(own), "seeds": seeds, "rounds": rounds}
            kept = kept_json(work / "fedmoswa" / f"floor-{digest(identity)}.json", compute)
            print(f"floor: {case}, {method}, s = {cohort}", flush=True)
            for gamma, means, value in zip(own, kept["measured"], kept["exact"], strict=True):
                row = case._asdict() | {"method": method, "cohort": cohort}
                row["gamma"] = gamma if method.startswith("FedMo") else np.nan
                groups = {f"group {i}": mean for i, mean in enumerate(means)}
                rows.append(row | {"exact": value} | groups)
    return pd.DataFrame(rows)


def _oracle(
    a: jax.Array, b: jax.Array, noise: Any, client: jax.Array, key: jax.Array, max_steps: int
) -> fs.Oracle:
    del max_steps

    def full_grad(x: jax.Array, step: Any = None) -> jax.Array:
        return a[client] * (x - b[client])

    def grad(x: jax.Array, step: Any = 0) -> jax.Array:
        exact = full_grad(x)
        if noise is None:
            return exact
        # The key does not depend on gamma, so all values of it share one draw.
        return exact + noise * jax.random.normal(jax.random.fold_in(key, step), x.shape)

    def loss(x: jax.Array, step: Any = None) -> jax.Array:
        return jnp.sum(a[client] * (x - b[client]) ** 2) / 2

    return fs.Oracle(grad, loss, full_grad, loss)
