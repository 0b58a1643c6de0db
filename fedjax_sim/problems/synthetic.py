"""Synthetic federated data: Gaussian classes and least squares.

Generators run on the host in NumPy and are seeded by an int or a ``numpy.random.Generator``. They
draw in float64 and cast to ``dtype`` (default float32), so a seed gives the same problem in every
precision.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from fedjax_sim.checks import check_at_least, check_count
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
        ValueError: means without three axes, counts that are no integers, negative or of another
            shape, a negative scale.

    Example:
        Two classes at (0, 0) and (1, 1); one client's second class is at (4, 4):

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
    if (
        counts.shape not in ((), (num_clients, num_classes))
        or counts.dtype.kind not in "iu"
        or (counts < 0).any()
    ):
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
    check_count(1, num_clients=num_clients, num_features=num_features)
    check_at_least(0.0, heterogeneity=heterogeneity, noise=noise)
    sizes = sizes_of(num_clients, examples_per_client)
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(num_features)
    weights = common + heterogeneity * rng.standard_normal((num_clients, num_features))
    x = rng.standard_normal((sizes.sum(), num_features))
    y = (x * np.repeat(weights, sizes, axis=0)).sum(axis=1) + noise * rng.standard_normal(len(x))
    examples = {"x": x.astype(dtype), "y": y.astype(dtype)}
    return FederatedData(examples, offsets_of(sizes)), weights.astype(dtype)


def sizes_of(num_clients: int, examples_per_client: int | Sequence[int]) -> np.ndarray:
    """Returns one size per client ``[M]``.

    Raises:
        ValueError: a size below 1 or no integer, another number of sizes.

    Example:
        >>> sizes_of(3, 5).tolist()
        [5, 5, 5]
    """
    sizes = np.asarray(examples_per_client)
    if sizes.shape not in ((), (num_clients,)) or sizes.dtype.kind not in "iu" or sizes.min() < 1:
        raise ValueError(
            f"examples_per_client is {examples_per_client}; "
            f"expected a positive integer, or {num_clients} of them"
        )
    return np.broadcast_to(sizes, num_clients)


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """First row of every client, and the number of rows: ``[M + 1]``.

    Example:
        >>> offsets_of(np.array([2, 3])).tolist()
        [0, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
