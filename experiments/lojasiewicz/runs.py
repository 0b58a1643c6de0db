"""Runs of FedAvg on families with a Lojasiewicz inequality, and the bounds beside them.

Everything is in double precision: late gaps are small.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.lojasiewicz.family import (
    Family,
    Sampler,
    gap,
    gradients,
    noisy_task,
    sphere,
)
from experiments.lojasiewicz.lemmas import drift_bound


class Case(NamedTuple):
    """A family, the noise of its gradients, and the setting of FedAvg."""

    name: str
    family: Callable[[Any], Family]  # of the models visited
    start: Any
    std: float  # sigma
    local_steps: int  # K
    rounds: int  # R
    share: float = 1.0  # of the largest rate that the bounds allow
    noise: Sampler = sphere
    repetitions: int = 300


class Measured(NamedTuple):
    """n runs of a case."""

    family: Family  # with the constants of the models visited
    lr: float
    gaps: np.ndarray  # [n, R + 1]  F - F* before every round and after the last
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
        repetitions = case.repetitions if case.std else 1  # without noise they are equal
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
            fs.Setup(task, timeline, start, eval_fn=lambda x: {"model": x}),
            key,
            execution=fs.execution.vmapped(),
            probes=fs.Probes(client={"drift": drift}),
        )
        models = jnp.concatenate([start[None], history.metrics["model"]])
        return models, history.probes["drift"].mean(axis=1)

    return one


def history(case: Case, measured: Measured) -> pd.DataFrame:
    """A row per round: the gap's mean, its standard error and quantiles, and the bounds."""
    known = measured.family.constants
    constants = fs.theory.ProblemConstants(
        L=known.L,
        sigma=case.std,
        zeta_mean=known.zeta,
        lojasiewicz_mu=known.mu,
        lojasiewicz_alpha=known.alpha,
    )
    visit = {"lr": measured.lr, "local_steps": case.local_steps}
    with jax.enable_x64(True):
        rounds = jnp.arange(case.rounds + 1)
        run = {**visit, "clients": measured.family.num_clients, "gap": measured.gaps[0, 0]}
        closed_form = (
            fs.theory.lojasiewicz.linear_bound
            if known.alpha == 1
            else fs.theory.lojasiewicz.sublinear_bound
        )
        closed = closed_form(constants, rounds=rounds, **run)
        recursion = fs.theory.lojasiewicz.recursion_bound(constants, rounds=case.rounds, **run)
        squared = measured.squared_gradients.mean(axis=0)
        drift_limit = drift_bound(constants, squared_gradient=squared, **visit)
    low, high = np.quantile(measured.gaps, [0.05, 0.95], axis=0)
    repetitions = len(measured.gaps)
    return pd.DataFrame(
        {
            "case": case.name,
            "alpha": known.alpha,
            "M": measured.family.num_clients,
            "K": case.local_steps,
            "zeta": known.zeta,
            "round": np.asarray(rounds),
            "gap": measured.gaps.mean(axis=0),
            "standard error": measured.gaps.std(axis=0) / repetitions**0.5,
            "5 %": low,
            "95 %": high,
            "recursion": np.asarray(recursion),
            "closed": np.asarray(closed),
            "floor": known.floor,
            "drift": np.append(measured.drifts.mean(axis=0), np.nan),
            # No round starts after the last model.
            "drift bound": np.append(np.asarray(drift_limit)[:-1], np.nan),
        }
    )
