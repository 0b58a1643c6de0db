"""Logistic regression on digits that all clients share, with its moments at the optimum."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs

FEATURES, SCALE, DECAY = 7, 4.0, 0.05  # SCALE: root mean square norm of a row


class Moments(NamedTuple):
    """Moments of a convex problem's examples at its optimum."""

    hessian: np.ndarray  # H [d, d]
    third: np.ndarray  # third derivative [d, d, d]
    scatter: np.ndarray  # E (H_i - H)_ij (H_i - H)_kl over examples i, [d, d, d, d]
    noise: np.ndarray  # covariance of one example's gradient, [d, d]

    def bend(self, covariance: np.ndarray) -> np.ndarray:
        """The third derivative applied to a covariance, ``[d]``: the gradient of tr(C H)."""
        return np.tensordot(self.third, covariance, 2)

    def scattered(self, covariance: np.ndarray) -> np.ndarray:
        """``E (H_i - H) C (H_i - H)``, ``[d, d]``."""
        return np.einsum("ijkl,jk->il", self.scatter, covariance)


@functools.cache
def examples() -> tuple[np.ndarray, np.ndarray]:
    """Rows ``[n, d]`` and labels: is the digit odd?  Principal components of pixels, and a 1."""
    parts = fs.datasets.load("digits")
    x, y = (np.concatenate([parts.train[key], parts.test[key]]) for key in ("x", "y"))
    pixels = x.reshape(len(x), -1) / 255.0
    pixels -= pixels.mean(0)
    _, _, axes = np.linalg.svd(pixels, full_matrices=False)
    components = pixels @ axes[:FEATURES].T
    components *= SCALE / np.sqrt(np.square(components).sum(1).mean())
    rows = np.concatenate([components, np.ones((len(x), 1))], axis=1)
    return rows.astype(np.float32).astype(np.float64), (y % 2).astype(np.float64)


@functools.cache
def optimum() -> np.ndarray:
    """The minimiser by Newton's method in double precision, ``[d]``."""
    rows, labels = examples()
    w = np.zeros(rows.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-rows @ w))
        gradient = rows.T @ (p - labels) / len(rows) + DECAY * w
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows / len(rows) + DECAY * np.eye(len(w))
        w -= np.linalg.solve(hessian, gradient)
    return w


@functools.cache
def moments() -> Moments:
    """The moments of this problem."""
    rows, labels = examples()
    n = len(rows)
    p = 1 / (1 + np.exp(-rows @ optimum()))
    gradients = rows * (p - labels)[:, None] + DECAY * optimum()
    slopes = p * (1 - p)
    bends = slopes * (1 - 2 * p)
    pairs = rows[:, :, None] * rows[:, None]
    data = np.einsum("n,nij->ij", slopes, pairs) / n
    third = np.einsum("n,nij,nk->ijk", bends, pairs, rows, optimize=True) / n
    fourth = np.einsum("n,nij,nkl->ijkl", slopes**2, pairs, pairs, optimize=True) / n
    scatter = fourth - data[:, :, None, None] * data
    return Moments(data + DECAY * np.eye(len(data)), third, scatter, gradients.T @ gradients / n)


def _losses(w: jax.Array, batch: Any, key: jax.Array | None) -> jax.Array:
    del key
    z = batch["x"] @ w
    return jax.nn.softplus(z) - batch["y"] * z + DECAY / 2 * w @ w


def make_setup(num_clients: int, num_steps: int, num_rounds: int) -> fs.Setup:
    """All clients have all examples and draw one per local step; all take part in every round."""
    rows, labels = (jnp.asarray(value, jnp.float32) for value in examples())
    data = fs.from_assignment(
        {"x": rows, "y": labels}, [np.arange(len(rows))] * num_clients, disjoint=False
    )
    task = fs.empirical_task(_losses, data, fs.with_replacement(1, num_steps))
    timeline = fs.timelines.full(num_rounds, num_clients, num_steps)
    return fs.Setup(task, timeline, jnp.asarray(optimum(), jnp.float32))
