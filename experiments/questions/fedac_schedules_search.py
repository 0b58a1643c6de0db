"""Grids of FedAc's two numbers, and the descent of its schedules by hypergradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_sim as fs
from experiments.questions import fedac_schedules_problem as problem
from experiments.questions.fedac_schedules_problem import Hyper

LRS = tuple(2.0**j for j in range(-4, 7))
WEIGHTS = tuple(4.0**-j for j in range(2, 14))  # lambda, and the number for the strong convexity
SLOPES = tuple(2.0**j for j in range(-2, 6))  # of gamma over the rounds; accelerated descent: 8
STEP = 0.05  # of Adam


class Method(NamedTuple):
    """A method with a grid of its second number."""

    build: Callable[[Hyper], fs.FedAlgorithm]
    second: tuple[float, ...]


METHODS = {
    "FedAvg": Method(problem.fedavg, (0.0,)),
    "augmented": Method(problem.augmented, WEIGHTS),
    "constant": Method(problem.constant, WEIGHTS),
    "direct": Method(problem.direct, SLOPES),
}


def tuned(method: Method, setup: fs.Setup, keys: jax.Array) -> Hyper:
    """The rate and second number with the least mean gap; diverged runs are the worst."""
    lr, second = (x.ravel() for x in np.meshgrid(LRS, method.second, indexing="ij"))
    grid = {"lr": jnp.asarray(lr, jnp.float32), "second": jnp.asarray(second, jnp.float32)}
    found = problem.gaps(problem.final_models(method.build, setup, grid, keys)).mean(1)
    best = int(np.where(np.isfinite(found), found, np.inf).argmin())
    return {"lr": lr[best], "second": second[best]}


def descend(
    build: Callable[[Hyper], fs.FedAlgorithm],
    setup: fs.Setup,
    keys: jax.Array,
    start: Hyper,
    updates: int,
) -> Hyper:
    """The schedules with the least mean loss that Adam finds from a start."""
    gradient_of = jax.jit(fs.hypergradient(problem.mean_loss, build, setup, keys, mode="reverse"))
    optimizer = optax.adam(optax.cosine_decay_schedule(STEP, updates))
    hyper, best, least = start, start, np.inf
    state = optimizer.init(hyper)
    for _ in range(updates):
        value, gradient, _ = gradient_of(hyper)
        if float(value) < least:
            best, least = hyper, float(value)
        changes, state = optimizer.update(gradient, state)
        hyper: Any = optax.apply_updates(hyper, changes)
    return best
