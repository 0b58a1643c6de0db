"""Synthetic federated problems: Gaussian classes, least squares, and quadratics with closed forms.

Generators run on the host in NumPy and are seeded by an int or a ``numpy.random.Generator``.  Draws
are made in float64 and cast to ``dtype`` (float32 unless asked), so that one seed gives one problem
at any precision.  Closed forms are computed in float64.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from fedjax_sim.data.federated import FederatedData


def gaussian_clusters(
    means: np.ndarray,
    counts: int | np.ndarray,
    seed: int | np.random.Generator,
    *,
    scale: float = 1.0,
    dtype: DTypeLike = np.float32,
) -> FederatedData:
    """``counts[i, c]`` examples ``x ~ N(means[i, c], scale^2 I)`` of class c at client i.

    Args:
        means: [M, C, d] centre of each class at each client.
        counts: [M, C] int, or one int for all.
        seed: int or generator.
        scale: standard deviation of each coordinate, >= 0.
        dtype: of the inputs.

    Returns:
        ``{"x": [N, d] dtype, "y": [N] int32}``; within a client, class after class.

    Raises:
        ValueError: means not three-dimensional, counts negative or of another shape, scale < 0.

    Example:
        Two classes at (0, 0) and (1, 1), except for one client whose second class is far away:

        >>> means = np.tile([[0.0, 0.0], [1.0, 1.0]], (20, 1, 1))
        >>> means[19, 1] = 4.0
        >>> data = gaussian_clusters(means, 50, seed=0, scale=0.25)
        >>> data.num_clients, data.examples["x"].shape
        (20, (2000, 2))
    """
    means = np.asarray(means, dtype=np.float64)
    if means.ndim != 3:
        raise ValueError(f"means has shape {means.shape}; expected [clients, classes, features]")
    num_clients, num_classes, _ = means.shape
    counts = np.asarray(counts)
    if counts.shape not in ((), (num_clients, num_classes)) or (counts < 0).any():
        raise ValueError(
            f"counts has shape {counts.shape}, minimum {counts.min()}; "
            f"expected non-negative integers [{num_clients}, {num_classes}], or one for all"
        )
    check_at_least(0.0, scale=scale)
    counts = np.broadcast_to(counts, (num_clients, num_classes))
    cell = np.repeat(np.arange(counts.size), counts.ravel())  # client * C + class
    noise = np.random.default_rng(seed).standard_normal((cell.size, means.shape[2]))
    x = means.reshape(counts.size, -1)[cell] + scale * noise
    y = (cell % num_classes).astype(np.int32)
    return FederatedData({"x": x.astype(dtype), "y": y}, offsets_of(counts.sum(axis=1)))


def gaussian_classes(
    num_clients: int,
    examples_per_client: int | Sequence[int],
    num_features: int,
    num_classes: int,
    seed: int | np.random.Generator,
    heterogeneity: float = 0.0,
    *,
    separation: float = 1.0,
    dtype: DTypeLike = np.float32,
) -> FederatedData:
    """Classification: ``x ~ N(separation m_c + heterogeneity s_ic, I)``, labels uniform.

    The class centres ``m_c`` are common, the shifts ``s_ic`` are the client's own, all N(0, I_d).
    ``heterogeneity=0``: identically distributed clients.  For label skew, generate one client and
    apply :mod:`fedjax_sim.data.partition` to its examples.

    Args:
        num_clients: M.
        examples_per_client: one size for all, or [M].
        num_features: d.
        num_classes: C.
        seed: int or generator.
        heterogeneity: standard deviation of the clients' shifts, >= 0.
        separation: standard deviation of the common centres, >= 0; the noise has 1.
        dtype: of the inputs.

    Returns:
        ``{"x": [N, d] dtype, "y": [N] int32}``.

    Raises:
        ValueError: a count below 1, sizes of a wrong shape, a negative scale.

    Example:
        >>> data = gaussian_classes(3, [5, 1, 4], num_features=2, num_classes=2, seed=0)
        >>> data.sizes.tolist(), data.examples["x"].dtype
        ([5, 1, 4], dtype('float32'))
    """
    check_at_least(1, num_clients=num_clients, num_features=num_features, num_classes=num_classes)
    check_at_least(0.0, heterogeneity=heterogeneity, separation=separation)
    sizes = sizes_of(num_clients, examples_per_client)
    rng = np.random.default_rng(seed)
    means = separation * rng.standard_normal((num_classes, num_features))
    shifts = rng.standard_normal((num_clients, num_classes, num_features))
    counts = rng.multinomial(sizes, np.full(num_classes, 1 / num_classes))
    return gaussian_clusters(means + heterogeneity * shifts, counts, rng, dtype=dtype)


def linear_regression(
    num_clients: int,
    examples_per_client: int | Sequence[int],
    num_features: int,
    seed: int | np.random.Generator,
    heterogeneity: float = 0.0,
    *,
    noise: float = 0.1,
    dtype: DTypeLike = np.float32,
) -> tuple[FederatedData, np.ndarray]:
    """Least squares: ``y = <x, w_i> + noise e``, ``w_i = w + heterogeneity v_i``; all N(0, I).

    Args:
        num_clients: M.
        examples_per_client: one size for all, or [M].
        num_features: d.
        seed: int or generator.
        heterogeneity: standard deviation of the clients' weights around w, >= 0.
        noise: standard deviation of the targets, >= 0.
        dtype: of inputs, targets and weights.

    Returns:
        ``{"x": [N, d], "y": [N]}``, and the true weights ``[M, d]``.

    Raises:
        ValueError: a count below 1, sizes of a wrong shape, a negative scale.

    Example:
        >>> data, weights = linear_regression(4, 10, num_features=3, seed=0, noise=0.0)
        >>> bool(np.allclose(data.examples["x"] @ weights[0], data.examples["y"], atol=1e-5))
        True
    """
    check_at_least(1, num_clients=num_clients, num_features=num_features)
    check_at_least(0.0, heterogeneity=heterogeneity, noise=noise)
    sizes = sizes_of(num_clients, examples_per_client)
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(num_features)
    weights = common + heterogeneity * rng.standard_normal((num_clients, num_features))
    x = rng.standard_normal((sizes.sum(), num_features))
    y = (x * np.repeat(weights, sizes, axis=0)).sum(axis=1) + noise * rng.standard_normal(len(x))
    examples = {"x": x.astype(dtype), "y": y.astype(dtype)}
    return FederatedData(examples, offsets_of(sizes)), weights.astype(dtype)


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

    Eigenvectors are Haar-distributed.  The extreme eigenvalues are mu and smoothness exactly (for
    dim 1: smoothness), the others uniform between them.  ``b_i = b + heterogeneity v_i``, b and v_i
    all N(0, I).

    Args:
        num_clients: M.
        dim: d.
        seed: int or generator.
        heterogeneity: standard deviation of the minimisers, >= 0.
        mu: strong convexity of every client, >= 0.
        smoothness: largest eigenvalue, >= mu.
        same_hessian: all clients share ``A_0`` (then FedAvg has no drift bias).
        dtype: of A and b.

    Raises:
        ValueError: a count below 1, a negative scale, smoothness < mu.

    Example:
        >>> problem = quadratics(4, 3, seed=0)
        >>> problem.A.shape, problem.b.shape
        ((4, 3, 3), (4, 3))
    """
    check_at_least(1, num_clients=num_clients, dim=dim)
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


def least_squares_quadratics(data: FederatedData) -> Quadratics:
    """The quadratics of clients that minimise ``1/(2 n_i) sum (<x, w> - y)^2``, up to constants.

    ``A_i = X_i^T X_i / n_i``; ``b_i`` is the least-squares solution of least norm.  float64.

    Raises:
        ValueError: a client without examples.

    Example:
        >>> data, weights = linear_regression(4, 10, num_features=3, seed=0, noise=0.0)
        >>> bool(np.allclose(least_squares_quadratics(data).b, weights, atol=1e-5))
        True
    """
    if np.min(data.sizes) < 1:
        raise ValueError(f"data has a client without examples: {np.argmin(data.sizes)}")
    clients = [data.client(i) for i in range(data.num_clients)]
    x = [np.asarray(client["x"], dtype=np.float64) for client in clients]
    y = [np.asarray(client["y"], dtype=np.float64) for client in clients]
    A = np.stack([xi.T @ xi / len(xi) for xi in x])
    b = np.stack([np.linalg.lstsq(xi, yi)[0] for xi, yi in zip(x, y, strict=True)])
    return Quadratics(A, b)


def quadratic_optimum(problem: Quadratics, weights: np.ndarray | None = None) -> np.ndarray:
    """Minimiser ``(sum_i w_i A_i)^{-1} sum_i w_i A_i b_i``, ``[d]`` float64.

    Of least norm if the sum is singular; uniform weights if None.

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
    """Where full-participation FedAvg with exact gradients stops, ``[d]`` float64.

    K local steps map x to ``b_i + (I - lr A_i)^K (x - b_i)``.  With ``P_i = I - (I - lr A_i)^K``
    the server map is affine, with fixed point ``(sum_i w_i P_i)^{-1} sum_i w_i P_i b_i``.  It
    attracts for ``lr < 2 / L``.  K = 1 gives the optimum; K to infinity the mean of the clients'
    minimisers.

    Args:
        problem: the clients.
        lr: client learning rate, > 0.
        num_steps: K, or [M] the steps of each client.
        weights: [M] weights of the clients' uploads; uniform if None.

    Raises:
        ValueError: lr <= 0, num_steps < 1 or of a wrong shape, weights of a wrong shape.

    Example:
        >>> problem = Quadratics(np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [4.0]]))
        >>> [fedavg_fixed_point(problem, 0.1, K).round(3).item() for K in (1, 10, 1000)]
        [3.0, 2.395, 2.0]
    """
    if not lr > 0:
        raise ValueError(f"lr is {lr}; expected a positive number")
    num_clients = len(problem.b)
    steps = np.asarray(num_steps)
    if steps.shape not in ((), (num_clients,)) or steps.min() < 1:
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


def sizes_of(num_clients: int, examples_per_client: int | Sequence[int]) -> np.ndarray:
    """One size for every client."""
    sizes = np.asarray(examples_per_client)
    if sizes.shape not in ((), (num_clients,)) or sizes.min() < 1:
        raise ValueError(
            f"examples_per_client is {examples_per_client}; "
            f"expected a positive integer, or {num_clients} of them"
        )
    return np.broadcast_to(sizes, num_clients)


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """Where the clients' rows begin, and the last ones end."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


def check_at_least(bound: float, **values: float) -> None:
    """Refuses arguments below a bound."""
    for name, value in values.items():
        if not value >= bound:
            raise ValueError(f"{name} is {value}; expected at least {bound}")
