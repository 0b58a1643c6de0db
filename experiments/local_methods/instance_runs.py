"""Runs of FedAvg on the lower-bound instance over a grid of rates, and their closed forms."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedjax_sim as fs
from experiments.local_methods.instance import (
    Instance,
    coordinate_losses,
    hard_instance,
    initial_model,
    lower_bound_task,
    noiseless_coordinates,
)

SMOOTHNESS, DISTANCE = 1.0, 1.0  # L, B
PARTS = ("F1", "F2", "F3", "F4")


class Case(NamedTuple):
    """Budget and heterogeneity of a sweep over rates."""

    clients: int  # M
    local_steps: int  # K
    rounds: int  # R
    std: float  # sigma
    zeta: float  # zeta_*

    @property
    def constants(self) -> Instance:
        """The instance for this budget."""
        return hard_instance(
            DISTANCE, self.std, self.zeta, self.local_steps, self.rounds, SMOOTHNESS
        )


def finals(case: Case, lrs: np.ndarray, repetitions: int, seed: int) -> np.ndarray:
    """The last models ``[rates, repetitions, 4]``; all rates see the same noise."""
    timeline = fs.timelines.full(case.rounds, case.clients, case.local_steps)
    task = lower_bound_task(case.constants, case.clients, case.local_steps)

    def one(task: fs.Task, lr: jax.Array, key: jax.Array) -> jax.Array:
        final, _ = fs.run(
            fs.fedavg(lr),
            fs.Setup(task, timeline, initial_model(DISTANCE)),
            key,
            execution=fs.execution.vmapped(),
        )
        return final.server.params

    over = jax.jit(jax.vmap(jax.vmap(one, (None, None, 0)), (None, 0, None)))
    keys = jax.random.split(jax.random.key(seed), repetitions)
    return np.asarray(over(task, jnp.asarray(lrs, jnp.result_type(float)), keys))


def sweep(case: Case, rates: int, repetitions: int, seed: int, least: float = 1e-3) -> pd.DataFrame:
    """A row per rate: E F, its standard error and its parts, and those in closed form.

    The rates are a logarithmic grid from the least to 2 / L.
    """
    lrs = np.geomspace(least, 2 / SMOOTHNESS, rates)
    models = finals(case, lrs, repetitions, seed).astype(np.float64)
    constants = case.constants
    parts = np.asarray(coordinate_losses(jnp.asarray(models), constants))
    exact = [
        noiseless_coordinates(constants, lr, DISTANCE, case.local_steps, case.rounds) for lr in lrs
    ]
    closed = np.asarray(coordinate_losses(jnp.pad(jnp.stack(exact), ((0, 0), (1, 0))), constants))
    total = parts.sum(-1)
    return pd.DataFrame(
        case._asdict()
        | {"mu": constants.mu, "lr": lrs, "E F": total.mean(1)}
        | {"standard error": total.std(1) / repetitions**0.5}
        | {name: parts[..., i].mean(1) for i, name in enumerate(PARTS)}
        | {f"{name} closed": closed[:, i] for i, name in enumerate(PARTS) if i}
        | {"E x1": models[..., 0].mean(1)}
        | {"E F / (2 mu B^2)": total.mean(1) / (2 * constants.mu * DISTANCE**2)}
    )
