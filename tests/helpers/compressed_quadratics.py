"""Quadratics with diagonal Hessians for compressed methods, and NumPy forms of the codecs."""

import jax.numpy as jnp
import numpy as np
from small_problems import quadratic_task

import fedjax_sim as fs


def instance(num_clients: int = 4, dim: int = 10):
    """F_i = sum_j A_ij (x_j - B_ij)^2 / 2; returns A, B and the minimiser of the mean."""
    i, j = np.arange(num_clients)[:, None], np.arange(dim)[None]
    a = 1.0 + ((i + 1) * (j + 1)) % 5
    b = np.sin(1.0 + i + 2 * j)
    return a, b, (a * b).sum(0) / a.sum(0)


def setup(a, b, best, timeline, num_steps: int = 1, eval_every: int = 1) -> fs.Setup:
    """Exact gradients from 0; the metric is the squared distance to ``best``."""
    task = quadratic_task(np.stack([np.diag(row) for row in a]), b, num_steps)
    evaluate = {"error": jnp.asarray(best)}
    return fs.Setup(task, timeline, jnp.zeros(a.shape[1]), Distance(evaluate), eval_every)


@fs.specified
def as_unbiased(codec):
    """A deterministic codec for DIANA and MARINA, whose derivations hold for every codec."""
    return codec._replace(kind=fs.compression.Unbiased(lambda leaf: 0.0))


class Distance:
    """Squared distance to a model."""

    def __init__(self, targets):
        self.targets = targets

    def __call__(self, params):
        return {name: ((params - target) ** 2).sum() for name, target in self.targets.items()}


def top(k):
    """Top-k in NumPy."""

    def code(v):
        kept = np.argsort(-np.abs(v), kind="stable")[:k]
        out = np.zeros_like(v)
        out[kept] = v[kept]
        return out

    return code


def sign(v):
    """The scaled sign in NumPy."""
    return np.abs(v).mean() * np.where(v < 0, -1.0, 1.0)
