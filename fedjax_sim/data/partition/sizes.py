"""Partitions with labels at random: equal sizes, and sizes from a law."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedjax_sim.checks import check_one_number, seeded
from fedjax_sim.data.partition._dealing import apportion, check_alpha, check_clients, cut, split
from fedjax_sim.types import plain_integers


@plain_integers
def iid(num_examples: int, num_clients: int, seed: int | np.random.Generator) -> list[np.ndarray]:
    """Deals the examples at random; client sizes differ by at most one.

    Raises:
        ValueError: fewer examples than clients, or no clients.

    Example:
        >>> sorted(len(rows) for rows in iid(11, 3, seed=0))
        [3, 4, 4]
    """
    check_clients(num_clients, num_examples)
    return np.array_split(seeded(seed).permutation(num_examples), num_clients)


@plain_integers
def quantity_skew(
    num_examples: int,
    num_clients: int,
    alpha: float,
    seed: int | np.random.Generator,
    min_size: int = 1,
) -> list[np.ndarray]:
    """Sizes ``min_size + Dir(alpha) * (N - M min_size)``, up to rounding; labels at random.

    Every example is used exactly once.  ``alpha=inf``: equal sizes, as :func:`iid`.

    Raises:
        ValueError: alpha <= 0, or fewer than ``M * min_size`` examples.

    References:
        Li et al., "Federated learning on non-IID data silos: an experimental study", 2022.

    Example:
        >>> sizes = [len(rows) for rows in quantity_skew(1000, 5, alpha=0.3, seed=0, min_size=10)]
        >>> sum(sizes), min(sizes) >= 10
        (1000, True)
    """
    check_clients(num_clients, num_examples, min_size)
    check_alpha(alpha)
    rng = seeded(seed)
    sizes = min_size + split(num_examples - num_clients * min_size, num_clients, alpha, rng)
    return cut(rng.permutation(num_examples), sizes)


@plain_integers
def exponential(
    num_examples: int, num_clients: int, seed: int | np.random.Generator, min_size: int = 1
) -> list[np.ndarray]:
    """Sizes in proportion to independent draws from Exp(1); labels at random.

    The shares have the law Dir(1, ..., 1): all divisions of the data are equally likely.  Sizes as
    in :func:`proportional`, every example is used exactly once.

    Raises:
        ValueError: fewer than ``M * min_size`` examples.

    Example:
        >>> assignment = exponential(1000, 5, seed=0, min_size=10)
        >>> sum(map(len, assignment)), min(map(len, assignment)) >= 10
        (1000, True)
    """
    check_clients(num_clients, num_examples, min_size)
    rng = seeded(seed)
    return proportional(num_examples, rng.exponential(size=num_clients), rng, min_size)


@plain_integers
def log_normal(
    num_examples: int,
    num_clients: int,
    sigma: float,
    seed: int | np.random.Generator,
    min_size: int = 1,
) -> list[np.ndarray]:
    """Sizes in proportion to ``exp(sigma z_i)``, z_i standard normal; labels at random.

    Sizes as in :func:`proportional`, every example is used exactly once.  ``sigma=0``: equal sizes.

    Raises:
        ValueError: sigma negative or not finite, or fewer than ``M * min_size`` examples.

    References:
        Li et al., "Federated optimization in heterogeneous networks" (FedProx), 2020, draws
        log-normal sizes for its synthetic data.

    Example:
        >>> [len(rows) for rows in log_normal(12, 4, sigma=0.0, seed=0)]
        [3, 3, 3, 3]
    """
    check_one_number(sigma=sigma)
    if not 0 <= sigma < np.inf:
        raise ValueError(f"sigma is {sigma}; expected a number of at least 0")
    check_clients(num_clients, num_examples, min_size)
    rng = seeded(seed)
    logarithms = sigma * rng.standard_normal(num_clients)
    return proportional(num_examples, np.exp(logarithms - logarithms.max()), rng, min_size)


@plain_integers
def proportional(
    num_examples: int,
    weights: Sequence[float] | np.ndarray,
    seed: int | np.random.Generator,
    min_size: int = 1,
) -> list[np.ndarray]:
    """Sizes ``min_size + w_i / sum_j w_j * (N - M min_size)`` by largest remainders.

    Labels are at random and every example is used exactly once.  ``LinearPartitioner``,
    ``SquarePartitioner`` and ``ExponentialPartitioner`` of Flower are the weights ``i``, ``i^2``
    and ``exp(i)``, i = 1, ..., M, up to rounding.

    Raises:
        ValueError: weights not one-dimensional, negative, not finite, all 0 or with an infinite
            sum; fewer than ``M * min_size`` examples.

    Example:
        >>> [len(rows) for rows in proportional(60, [1, 2, 3], seed=0, min_size=0)]
        [10, 20, 30]
    """
    try:
        weights = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"weights is {weights!r:.60}; expected M numbers of at least 0") from error
    if weights.ndim != 1 or not np.isfinite(weights).all() or (weights < 0).any():
        raise ValueError(f"weights is {weights}; expected M numbers of at least 0")
    with np.errstate(over="ignore"):
        total = weights.sum()
    if not 0 < total < np.inf:
        raise ValueError(
            f"weights is {weights}, with the sum {total}; expected a positive, finite sum"
        )
    check_clients(len(weights), num_examples, min_size)
    sizes = min_size + apportion(num_examples - len(weights) * min_size, weights)
    return cut(seeded(seed).permutation(num_examples), sizes)
