"""Quadratics whose L, sigma, zeta and G are known exactly, for :mod:`experiments.fco.theory`."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_sim as fs

DIM, NUM_CLIENTS, CONDITION = 20, 16, 20.0
NOISE = 0.5  # length of every client's gradient noise
SPREAD = 0.5  # standard deviation of the entries of c_m


class Problem(NamedTuple):
    """The clients' quadratics."""

    hessian: np.ndarray  # A, [d, d]
    linear: np.ndarray  # c_m, [M, d]

    @property
    def smoothness(self) -> float:
        """L, the largest eigenvalue."""
        return float(np.linalg.eigvalsh(self.hessian)[-1])


def make_problem(seed: int) -> Problem:
    """Eigenvalues from 1 / CONDITION to 1; clients differ in their linear terms."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0]
    hessian = basis * np.geomspace(1 / CONDITION, 1, DIM) @ basis.T
    truth = np.where(np.arange(DIM) < DIM // 4, 1.0, 0.0)
    linear = -hessian @ truth + SPREAD * rng.normal(size=(NUM_CLIENTS, DIM))
    return Problem(hessian, linear)


def oracle(problem: Problem, client: Any, key: Any, max_steps: int) -> fs.Oracle:
    """Gradients with noise of random signs, whose length is constant."""
    del max_steps
    a, c = jnp.asarray(problem.hessian), jnp.asarray(problem.linear)[client]

    def grad(x: Any, k: Any) -> Any:
        signs = jax.random.rademacher(jax.random.fold_in(key, k), (DIM,), x.dtype)
        return a @ x + c + NOISE / DIM**0.5 * signs

    return fs.Oracle(grad, lambda x, k: x @ a @ x / 2 + c @ x, lambda x: a @ x + c)


def smooth(problem: Problem, x: Any) -> Any:
    """The mean objective F of the clients."""
    a, c = jnp.asarray(problem.hessian), jnp.asarray(problem.linear.mean(0))
    return x @ a @ x / 2 + c @ x


def dual_norm(problem: Problem, y: np.ndarray) -> np.ndarray:
    """The norm of Theorem 4.7 over the last axis: sqrt(||A|| y' A^-1 y)."""
    solved = np.linalg.solve(problem.hessian, y[..., None])[..., 0]
    return np.sqrt(problem.smoothness * np.sum(y * solved, axis=-1))
