"""Quadratic clients, with a closed form of the optimum.

Draws and the optimum are in float64; :func:`quadratics` casts to ``dtype``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedjax_sim.checks import check_at_least, check_count, floating_dtype, seeded
from fedjax_sim.types import shown


@shown
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
        ValueError: a count below 1, a negative scale, smoothness < mu, a dtype that is not
            floating.

    Example:
        >>> problem = quadratics(4, 3, seed=0)
        >>> problem.A.shape, problem.b.shape
        ((4, 3, 3), (4, 3))
    """
    check_count(1, num_clients=num_clients, dim=dim)
    check_at_least(0.0, heterogeneity=heterogeneity, mu=mu)
    check_at_least(mu, smoothness=smoothness)
    rng, dtype = seeded(seed), floating_dtype(dtype)
    b = rng.standard_normal(dim) + heterogeneity * rng.standard_normal((num_clients, dim))
    q, _ = np.linalg.qr(rng.standard_normal((num_clients, dim, dim)))  # Haar up to signs
    eigenvalues = rng.uniform(mu, smoothness, (num_clients, dim))
    eigenvalues[:, 0], eigenvalues[:, -1] = mu, smoothness
    A = np.einsum("mij,mj,mkj->mik", q, eigenvalues, q)
    if same_hessian:
        A = np.broadcast_to(A[0], A.shape)
    return Quadratics(A.astype(dtype), b.astype(dtype))


def quadratic_optimum(problem: Quadratics) -> np.ndarray:
    """Minimiser ``(sum_i A_i)^{-1} sum_i A_i b_i``, ``[d]`` float64.

    If the sum is singular, the minimiser of smallest norm.

    Example:
        >>> problem = Quadratics(np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [4.0]]))
        >>> quadratic_optimum(problem).round(6).tolist()
        [3.0]
    """
    A, b = (np.asarray(part, dtype=np.float64) for part in problem)
    # The factor 1 keeps the order of the sum, and so the last bits of earlier results: NumPy adds
    # products of two factors in another order than those of three.
    total = np.einsum("m,mij,mj->i", np.ones(len(b)), A, b)
    return np.linalg.lstsq(A.sum(axis=0), total)[0]
