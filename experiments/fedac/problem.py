"""Logistic regression with M clients that draw from the same rows: methods, cells, objective."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

import fedjax_sim as fs
from experiments.fedac.variants import fedac_ii_of_the_program
from fedjax_sim.diagnostics.optimum import optimum

NUM_STEPS, EVALUATED = 4096, 512  # parallel steps; steps between evaluations

Method = Callable[[Any, float, int], fs.FedAlgorithm]  # (lr, l2, K)
LOCAL: dict[str, Method] = {
    "fedavg": lambda lr, l2, K: fs.fedavg(lr),
    "fedac_i": lambda lr, l2, K: fs.fedac(lr, l2, K),
    "fedac_ii_code": lambda lr, l2, K: fedac_ii_of_the_program(lr, l2, K),
    "fedac_ii": lambda lr, l2, K: fs.fedac(lr, l2, K, "II"),
    "vanilla_fedac": lambda lr, l2, K: fs.fedac(lr, l2, K, "vanilla"),
}
MINIBATCH: dict[str, Method] = {
    "mb_sgd": lambda lr, l2, K: fs.mb_sgd(lr),
    "mb_ac_sgd": lambda lr, l2, K: fs.mb_ac_sgd(lr, l2),
}


def losses(w: jax.Array, batch: dict[str, jax.Array], key: Any) -> jax.Array:
    """Logistic losses; the models first in the product, as in :mod:`fedjax_sim.models.dense`."""
    del key
    z = w @ batch["x"].T
    return jax.nn.softplus(z) - batch["y"] * z


def initial(num_features: int) -> np.ndarray:
    """The initial model of the authors' runs."""
    return np.random.RandomState(1).randn(num_features)


def make_algorithm(name: str, l2: float, lr: Any, local_steps: int) -> fs.FedAlgorithm:
    """A method with weight decay ``l2``."""
    regular = functools.partial(fs.transforms.add_decayed_weights, weight_decay=l2)
    return fs.transforms.transform_oracle((LOCAL | MINIBATCH)[name](lr, l2, local_steps), regular)


def make_setup(
    data: dict[str, np.ndarray], name: str, clients: int, local_steps: int, num_seeds: int = 1
) -> fs.Setup:
    """The setup of a cell: all clients in every round, the same initial model for every seed.

    A minibatch method's K gradients are one batch of K rows, the rows that K steps of the other
    methods draw.
    """
    local = name in LOCAL
    steps = local_steps if local else 1
    batches = fs.with_replacement(local_steps // steps, steps)
    return fs.Setup(
        fs.shared_task(losses, data, clients, batches),
        fs.timelines.full(NUM_STEPS // local_steps, clients, steps),
        jnp.tile(initial(data["x"].shape[1]).astype(np.float32), (num_seeds, 1)),
        eval_fn=lambda w: {"model": w},  # its value is computed in double precision, afterwards
        eval_every=EVALUATED // local_steps,
    )


def objective(data: dict[str, np.ndarray], l2: float) -> Callable[[np.ndarray], np.ndarray]:
    """F in double precision, of models ``[..., d]``; infinite where a model is not finite."""
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    mean_x_of_ones = x.T @ y / len(y)

    def value(models: np.ndarray) -> np.ndarray:
        flat = models.reshape(-1, models.shape[-1]).astype(np.float64)
        finite = np.isfinite(flat).all(-1)
        # Beyond 1e100 squares would overflow; such a model is no better than an infinite one.
        finite &= np.abs(np.where(np.isfinite(flat), flat, 0)).max(-1) < 1e100
        w = np.where(finite[:, None], flat, 0)
        logistic = np.logaddexp(0, x @ w.T).mean(0) - w @ mean_x_of_ones
        regularised = logistic + l2 / 2 * np.square(w).sum(-1)
        return np.where(finite, regularised, np.inf).reshape(models.shape[:-1])

    return value


def minimum(data: dict[str, np.ndarray], l2: float) -> float:
    """F* by Newton's method in double precision."""
    loss = Partial(functools.partial(_regularised, l2), data["x"], data["y"])
    return optimum(loss, jnp.zeros(data["x"].shape[1])).value


def _regularised(l2: float, x: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.mean(losses(w, {"x": x, "y": y}, None)) + l2 / 2 * w @ w
