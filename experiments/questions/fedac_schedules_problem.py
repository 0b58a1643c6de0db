"""Logistic regression with almost flat directions, and FedAc's schedules for it.

The features have variances ``1 / i^2`` and the true weights sizes ``1 / sqrt(i)``, the slowest
decay at which the squared distance to the optimum stays bounded (up to a logarithm), so that
gradient descent has the rate 1 / T of convex functions, not that of strongly convex ones.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import fedjax_sim as fs

FEATURES, EXAMPLES, SPREAD = 48, 1024, 2.0  # SPREAD: standard deviation of the logits
CLIENTS, STEPS = 8, 16  # M, K

Hyper = dict[str, Any]  # numbers, or a number per round [R]


@functools.cache
def examples() -> tuple[np.ndarray, np.ndarray]:
    """Rows ``[n, d]`` and labels in {0, 1}, drawn once."""
    rng = np.random.default_rng(0)
    place = np.arange(1, FEATURES + 1)
    rows = rng.normal(size=(EXAMPLES, FEATURES)) / place
    truth = rng.choice([-1.0, 1.0], FEATURES) / np.sqrt(place)
    truth *= SPREAD / np.linalg.norm(truth / place)
    labels = rng.random(EXAMPLES) < 1 / (1 + np.exp(-rows @ truth))
    return rows.astype(np.float32).astype(np.float64), labels.astype(np.float64)


def loss(w: np.ndarray) -> np.ndarray:
    """F of models ``[..., d]``, in double precision."""
    rows, labels = examples()
    z = w @ rows.T
    return (np.logaddexp(0, z) - labels * z).mean(-1)


@functools.cache
def optimum() -> np.ndarray:
    """The minimiser by damped Newton steps in double precision, ``[d]``."""
    rows, labels = examples()
    w = np.zeros(FEATURES)
    for _ in range(100):
        p = 1 / (1 + np.exp(-rows @ w))
        gradient = rows.T @ (p - labels) / len(rows)
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows / len(rows)
        direction = np.linalg.solve(hessian, gradient)
        w -= direction / (1 + np.sqrt(gradient @ direction))
    return w


def gaps(models: Any) -> np.ndarray:
    """F - F* of models ``[..., d]``; NaN if one has diverged."""
    with np.errstate(invalid="ignore"):
        return loss(np.asarray(models, np.float64)) - loss(optimum())


def mean_loss(w: Array) -> Array:
    """F, to be differentiated."""
    rows, labels = (jnp.asarray(part, jnp.float32) for part in examples())
    return _losses(w, {"x": rows, "y": labels}, None).mean()


def _losses(w: Array, batch: Any, key: Array | None) -> Array:
    del key
    z = batch["x"] @ w
    return jax.nn.softplus(z) - batch["y"] * z


def make_setup(batch_size: int, num_rounds: int) -> fs.Setup:
    """All clients have all examples; all take part in every round, from w = 0."""
    rows, labels = (jnp.asarray(part, jnp.float32) for part in examples())
    every = [np.arange(EXAMPLES)] * CLIENTS
    data = fs.from_assignment({"x": rows, "y": labels}, every, disjoint=False)
    task = fs.empirical_task(_losses, data, fs.with_replacement(batch_size, STEPS))
    timeline = fs.timelines.full(num_rounds, CLIENTS, STEPS)
    return fs.Setup(task, timeline, jnp.zeros(FEATURES, jnp.float32))


def fedavg(hyper: Hyper) -> fs.FedAlgorithm:
    """FedAvg with one rate."""
    return fs.fedavg(hyper["lr"])


def augmented(hyper: Hyper) -> fs.FedAlgorithm:
    """FedAc-I on ``F + lambda / 2 |w - w_0|^2``: the thesis's method, section 3.3.3."""
    weight = hyper["second"]
    return fs.fedac(hyper["lr"], weight, STEPS, augmentation=weight)


def constant(hyper: Hyper) -> fs.FedAlgorithm:
    """FedAc-I on F itself, with a number in the place of its strong convexity."""
    return fs.fedac(hyper["lr"], hyper["second"], STEPS)


def polynomial(lr: Any, slope: Any, round: Any) -> tuple[Any, Any, Any]:
    """Gamma, alpha and beta for convex functions after ``round`` rounds.

    Accelerated gradient descent of convex functions has gamma = lr (t + 1) / 2, beta = (t + 2) / 2
    and alpha infinite after t steps.  Here beta follows the local steps, t = K (r + 1), and gamma
    the rounds, ``slope * lr * (r + 1)``, so with slope K / 2 the steps, too: FedAc-I has gamma
    smaller by sqrt(K) than accelerated descent, since clients drift apart.
    """
    after = jnp.asarray(round).astype(jnp.float32) + 1
    return slope * lr * after, jnp.inf, STEPS * after / 2 + 1


def direct(hyper: Hyper) -> fs.FedAlgorithm:
    """FedAc on F with the schedules of :func:`polynomial`."""
    lr, slope = hyper["lr"], hyper["second"]
    return fs.fedac(lr, numbers=functools.partial(polynomial, lr, slope))


def learned_fedavg(hyper: Hyper) -> fs.FedAlgorithm:
    """FedAvg whose rates of all rounds are exponentials of ``[R]`` numbers."""
    return fs.fedavg(lambda r: jnp.exp(hyper["lr"][r]))


def learned(hyper: Hyper) -> fs.FedAlgorithm:
    """FedAc whose lr, gamma and beta - 1 of all rounds are exponentials of ``[R]`` numbers."""
    lr, gamma, beta = (hyper[name] for name in ("lr", "gamma", "beta"))
    return fs.fedac(
        lambda r: jnp.exp(lr[r]),
        numbers=lambda r: (jnp.exp(gamma[r]), jnp.inf, 1 + jnp.exp(beta[r])),
    )


def logarithms(lr: float, slope: float, num_rounds: int) -> Hyper:
    """The schedules of :func:`direct` as those of :func:`learned`."""
    gamma, _, beta = polynomial(lr, slope, np.arange(num_rounds))
    return {
        "lr": jnp.full(num_rounds, np.log(lr), jnp.float32),
        "gamma": jnp.log(gamma),
        "beta": jnp.log(beta - 1),
    }


def final_models(
    build: Callable[[Hyper], fs.FedAlgorithm], setup: fs.Setup, hyper: Hyper, keys: Array
) -> np.ndarray:
    """Models after all rounds, ``[n, seeds, d]``, of hyper-parameters with a leading axis n."""

    def one(given: Hyper, key: Array) -> Array:
        final, _ = fs.run(build(given), setup, key, execution=fs.execution.vmapped())
        return final.server.params

    @jax.jit
    def program(hyper: Hyper, keys: Array) -> Array:
        return jax.vmap(lambda given: jax.vmap(functools.partial(one, given))(keys))(hyper)

    return np.asarray(program(hyper, keys))
