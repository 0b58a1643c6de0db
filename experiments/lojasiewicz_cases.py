"""Lojasiewicz families with their settings, runs of FedAvg on them, and the bounds beside.

Part of the experiment ``lojasiewicz``.  Everything is in double precision: late gaps are small.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedjax_sim as fs
from fedjax_sim.problems.lojasiewicz.families import (
    logistic,
    power,
    quadratic,
    sine_quadratic,
    softplus_tilted,
)
from fedjax_sim.problems.lojasiewicz.family import Family, Noise, gap, gradients, noisy_task, sphere
from fedjax_sim.problems.lojasiewicz.policies import softmax_bandit, softmax_mdp, two_armed_bandit
from fedjax_sim.theory.lojasiewicz import linear_bound, sublinear_bound
from fedjax_sim.theory.lojasiewicz_rounds import drift_bound, recursion_bound


class Case(NamedTuple):
    """A family, how noisy its gradients are, and how FedAvg runs on it."""

    name: str
    family: Callable[[Any], Family]  # of the models visited
    start: Any
    std: float  # sigma
    local_steps: int  # K
    rounds: int  # R
    share: float = 1.0  # of the largest rate that the bounds allow
    noise: Noise = sphere
    repetitions: int = 300


class Measured(NamedTuple):
    """n runs of a case."""

    family: Family  # with the constants of the models visited
    lr: float
    gaps: np.ndarray  # [n, R + 1]  F - F* at the rounds' starts and after the last
    squared_gradients: np.ndarray  # [n, R + 1]
    drifts: np.ndarray  # [n, R]  of Lemma F.1, mean over the clients


def measure(case: Case, seed: int = 0) -> Measured:
    """Runs FedAvg at the rate ``share / (18 L K)``, for K = 1 ``share / (2 L)``."""
    with jax.enable_x64(True):
        start = jnp.asarray(case.start, float)
        family = case.family(start)
        K, L = case.local_steps, family.constants.L
        lr = case.share / (2 * L if K == 1 else 18 * L * K)
        one = _one_run(case, family.num_clients, lr)
        repetitions = case.repetitions if case.std else 1  # without noise all are the same
        keys = jax.random.split(jax.random.key(seed), repetitions)
        task = noisy_task(family, case.std, K, case.noise)
        models, drifts = jax.jit(jax.vmap(one, (None, None, 0)))(task, start, keys)
        family = case.family(models)

        def at(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            mean, _ = gradients(family.gradient, family.num_clients, x)
            return gap(family, x), jnp.square(mean).sum()

        gaps, squared = jax.jit(jax.vmap(jax.vmap(at)))(models)
        return Measured(family, lr, *map(np.asarray, (gaps, squared, drifts)))


def _one_run(case: Case, num_clients: int, lr: float) -> Callable:
    """(task, start, key) -> the models ``[R + 1, ...]`` and the drifts ``[R]``."""
    K = case.local_steps
    timeline = fs.timelines.full(case.rounds, num_clients, K)

    def drift(visit: fs.Visit) -> jax.Array:
        def step(x: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
            x = x - lr * visit.oracle.grad(x, k)  # the same noise as in the visit
            return x, jnp.square(x - visit.message).sum()

        return jax.lax.scan(step, visit.message, jnp.arange(K - 1))[1].sum() / K

    def one(task: fs.Task, start: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        _, history = fs.run(
            fs.fedavg(lr),
            task,
            timeline,
            start,
            key,
            cohort=fs.execution.vmapped(),
            eval_fn=lambda x: {"model": x},
            probes=fs.Probes(client={"drift": drift}),
        )
        models = jnp.concatenate([start[None], history.metrics["model"]])
        return models, history.probes["drift"].mean(axis=1)

    return one


def history(case: Case, found: Measured) -> pd.DataFrame:
    """A row per round: the gap's mean, its standard error and quantiles, and the bounds."""
    known = found.family.constants
    sizes = {"lr": found.lr, "L": known.L, "sigma": case.std, "K": case.local_steps}
    rest = {**sizes, "M": found.family.num_clients, "mu": known.mu, "zeta": known.zeta}
    with jax.enable_x64(True):
        rounds = jnp.arange(case.rounds + 1)
        start = found.gaps[0, 0]
        if known.alpha == 1:
            closed = linear_bound(start, R=rounds, **rest)
        else:
            closed = sublinear_bound(start, alpha=known.alpha, R=rounds, **rest)
        recursion = recursion_bound(start, alpha=known.alpha, R=case.rounds, **rest)
        squared = found.squared_gradients.mean(axis=0)
        drift_limit = drift_bound(squared, zeta=known.zeta, **sizes)
    low, high = np.quantile(found.gaps, [0.05, 0.95], axis=0)
    repetitions = len(found.gaps)
    return pd.DataFrame(
        {
            "case": case.name,
            "alpha": known.alpha,
            "M": found.family.num_clients,
            "K": case.local_steps,
            "zeta": known.zeta,
            "round": np.asarray(rounds),
            "gap": found.gaps.mean(axis=0),
            "standard error": found.gaps.std(axis=0) / repetitions**0.5,
            "5 %": low,
            "95 %": high,
            "recursion": np.asarray(recursion),
            "closed": np.asarray(closed),
            "floor": known.floor,
            "drift": np.append(found.drifts.mean(axis=0), np.nan),
            # Of the drift in this round; none starts after the last.
            "drift bound": np.append(np.asarray(drift_limit)[:-1], np.nan),
        }
    )


def tilted(visited: Any, tilt: float = 0.8, num_clients: int = 8) -> Family:
    """The tilted quadratic of curvature 1."""
    del visited
    return softplus_tilted(1.0, tilt, num_clients)


def powers(visited: Any, degree: float, num_clients: int = 4) -> Family:
    """Powers on the ball of radius 1.5."""
    del visited
    return power(degree, 1.5, num_clients)


REWARDS = np.array(
    [(1, 0.6411, 0.2165), (0.9348, 0.6453, 0.2223), (0.9732, 0.6291, 0.2182), (1, 0.6014, 0.2273)]
)
DISAGREEING = np.array([(1, 0.2, 0.5), (0.2, 1, 0.5)])  # the best arms differ


def _quadratic(visited: Any) -> Family:
    del visited
    centres = np.random.default_rng(0).normal(size=(8, 3)) / 4
    return quadratic(np.diag([0.0, 0.5, 1.0]), centres)


def _sine(visited: Any) -> Family:
    del visited
    return sine_quadratic(4)


def _logistic(visited: Any) -> Family:
    return logistic(np.linspace(0.8, 1.2, 8), float(np.min(visited)))


def _two_armed(visited: Any) -> Family:
    return two_armed_bandit(np.linspace(0.6, 1.0, 4), float(np.min(visited)))


def _mdp(visited: Any) -> Family:
    rng = np.random.default_rng(0)
    transitions = rng.dirichlet(np.ones(3), size=(3, 2))
    rewards = np.clip(rng.uniform(size=(3, 2)) + rng.normal(size=(2, 3, 2)) / 20, 0, 1)
    return softmax_mdp(rewards, transitions, np.full(3, 1 / 3), 0.3, visited)


def cases(local_steps: int, repetitions: int) -> list[Case]:
    """Every family; those whose constants hold along a trajectory only say so."""
    K, few = local_steps, max(repetitions // 20, 2)
    bandit = functools.partial(softmax_bandit, REWARDS)
    disagreeing = functools.partial(softmax_bandit, DISAGREEING)
    found = [
        Case("quadratic, singular", _quadratic, np.full(3, 2.0), 0.5, K, 200),
        Case("tilted quadratic", tilted, 3.0, 0.5, K, 200),
        Case("x^2 + 3 sin^2 x", _sine, 2.5, 0.5, K, 200),
        Case("power 4", functools.partial(powers, degree=4.0), np.full(2, 1.0), 0.3, K, 400),
        Case("logistic, trajectory", _logistic, 1.0, 0.1, K, 400),
        Case("two-armed bandit, trajectory", _two_armed, 0.0, 0.02, K, 400),
        Case("softmax bandit, trajectory", bandit, np.zeros(3), 0.05, K, 400),
        Case("disagreeing bandit, trajectory", disagreeing, np.zeros(3), 0.05, K, 400),
        Case("softmax MDP, trajectory", _mdp, np.zeros((3, 2)), 0.05, K, 2000, repetitions=few),
    ]
    return [case._replace(repetitions=min(case.repetitions, repetitions)) for case in found]
