"""Quadratic clients, with closed forms of the optimum and of FedAvg's fixed point.

Draws and closed forms are in float64; :func:`quadratics` casts to ``dtype``.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedjax_sim.checks import check_at_least, check_count, check_positive


class Quadratics(NamedTuple):
    """Clients ``F_i(x) = 1/2 (x - b_i)^T A_i (x - b_i)``; the objective is their mean."""

    A: np.ndarray  # [M, d, d] symmetric positive semi-definite
    b: np.ndarray  # [M, d] the clients' minimisers


def quadratics(
    num_clients: int,
    dim: int,
    seed: int | np.random.Generator,
    *,
    heterogeneity: float = 1.0,
    mu: float = 0.1,
    smoothness: float = 1.0,
    same_hessian: bool = False,
    dtype: DTypeLike = np.float32,
) -> Quadratics:
    """Random quadratics: ``A_i`` with eigenvalues in [mu, smoothness], ``b_i`` around one point.

    Eigenvectors are Haar-distributed. The extreme eigenvalues are exactly mu and smoothness (in one
    dimension: smoothness); the others are uniform between them. ``b_i = b + heterogeneity v_i``
    with b and v_i from N(0, I).

    Args:
        num_clients: M.
        dim: d.
        seed: int or generator.
        heterogeneity: standard deviation of the minimisers, >= 0.
        mu: strong convexity of every client, >= 0.
        smoothness: largest eigenvalue, >= mu.
        same_hessian: all clients share ``A_0``, so FedAvg has no drift bias.
        dtype: of A and b.

    Raises:
        ValueError: a count below 1, a negative scale, smoothness < mu.

    Example:
        >>> problem = quadratics(4, 3, seed=0)
        >>> problem.A.shape, problem.b.shape
        ((4, 3, 3), (4, 3))
    """
    check_count(1, num_clients=num_clients, dim=dim)
    check_at_least(0.0, heterogeneity=heterogeneity, mu=mu)
    check_at_least(mu, smoothness=smoothness)
    rng = np.random.default_rng(seed)
    b = rng.standard_normal(dim) + heterogeneity * rng.standard_normal((num_clients, dim))
    q, _ = np.linalg.qr(rng.standard_normal((num_clients, dim, dim)))  # Haar up to signs
    eigenvalues = rng.uniform(mu, smoothness, (num_clients, dim))
    eigenvalues[:, 0], eigenvalues[:, -1] = mu, smoothness
    A = np.einsum("mij,mj,mkj->mik", q, eigenvalues, q)
    if same_hessian:
        A = np.broadcast_to(A[0], A.shape)
    return Quadratics(A.astype(dtype), b.astype(dtype))


def quadratic_optimum(problem: Quadratics, weights: np.ndarray | None = None) -> np.ndarray:
    """Minimiser ``(sum_i w_i A_i)^{-1} sum_i w_i A_i b_i``, ``[d]`` float64.

    If the sum is singular, the minimiser of smallest norm. Weights default to uniform.

    Raises:
        ValueError: weights of a wrong shape.

    Example:
        >>> problem = Quadratics(np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [4.0]]))
        >>> quadratic_optimum(problem).round(6).tolist()
        [3.0]
    """
    return _weighted_mean(np.asarray(problem.A, dtype=np.float64), problem.b, weights)


def fedavg_fixed_point(
    problem: Quadratics,
    lr: float,
    num_steps: int | np.ndarray,
    weights: np.ndarray | None = None,
) -> np.ndarray:
    """Fixed point of FedAvg with full participation and exact gradients, ``[d]`` float64.

    K local steps map x to ``b_i + (I - lr A_i)^K (x - b_i)``. With ``P_i = I - (I - lr A_i)^K``
    the server map is affine, with fixed point ``(sum_i w_i P_i)^{-1} sum_i w_i P_i b_i``. FedAvg
    converges to it for ``lr < 2 / L``. For K = 1 it is the optimum; for K to infinity it tends to
    the mean of the clients' minimisers.

    Args:
        problem: the clients.
        lr: client learning rate, > 0.
        num_steps: K, or [M] steps per client.
        weights: [M] weights of the clients' uploads; uniform if None.

    Raises:
        ValueError: lr <= 0, num_steps that are no integers, below 1 or of a wrong shape, weights of
            a wrong shape.

    Example:
        >>> problem = Quadratics(np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [4.0]]))
        >>> [fedavg_fixed_point(problem, 0.1, K).round(3).item() for K in (1, 10, 1000)]
        [3.0, 2.395, 2.0]
    """
    check_positive(lr=lr)
    num_clients = len(problem.b)
    steps = np.asarray(num_steps)
    if steps.shape not in ((), (num_clients,)) or steps.dtype.kind not in "iu" or steps.min() < 1:
        raise ValueError(
            f"num_steps is {num_steps}; expected a positive integer, or [{num_clients}] of them"
        )
    eigenvalues, vectors = np.linalg.eigh(np.asarray(problem.A, dtype=np.float64))
    contracted = 1 - (1 - lr * eigenvalues) ** np.broadcast_to(steps, num_clients)[:, None]
    P = np.einsum("mij,mj,mkj->mik", vectors, contracted, vectors)
    return _weighted_mean(P, problem.b, weights)


def _weighted_mean(P: np.ndarray, b: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """``(sum_i w_i P_i)^+ sum_i w_i P_i b_i``."""
    w = np.ones(len(b)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (len(b),):
        raise ValueError(f"weights has shape {w.shape}; expected [{len(b)}], one per client")
    total = np.einsum("m,mij->ij", w, P)
    return np.linalg.lstsq(total, np.einsum("m,mij,mj->i", w, P, b.astype(np.float64)))[0]
