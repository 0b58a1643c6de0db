"""Natural clients, the test part of every client, and clients that never train."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedjax_sim.checks import check_count, check_number, check_one_number, seeded
from fedjax_sim.data.partition._dealing import group_rows, rows_of
from fedjax_sim.types import plain_integers


def by_group(groups: Sequence | np.ndarray) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Natural clients: one per distinct value of ``groups`` (writer, role, session, ...).

    Returns:
        The assignment, rows in their original order, and the clients' names, in sorted order.

    Raises:
        ValueError: groups empty or not one-dimensional.

    Example:
        >>> by_group(["eve", "bob", "eve"])
        ([array([1]), array([0, 2])], ('bob', 'eve'))
    """
    assignment, names = group_rows(groups, "groups")
    return assignment, tuple(str(name) for name in names)


@plain_integers
def train_test_split(
    assignment: Sequence[np.ndarray], test_fraction: float, seed: int | np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Splits every client's rows at random: ``floor(test_fraction * n_i)`` of them for testing.

    Raises:
        ValueError: test_fraction outside [0, 1), rows of a client that are no row numbers
            ``[n_i]``, or a row twice (:func:`dirichlet` with refill), since it could be on both
            sides.

    Example:
        >>> train, test = train_test_split([np.arange(10), np.arange(10, 15)], 0.2, seed=0)
        >>> [len(rows) for rows in train], [len(rows) for rows in test]
        ([8, 4], [2, 1])
    """
    check_one_number(test_fraction=test_fraction)
    if not 0 <= test_fraction < 1:
        raise ValueError(f"test_fraction is {test_fraction}; expected 0 <= test_fraction < 1")
    assignment = rows_of(assignment)
    rng = seeded(seed)
    shuffled = [rng.permutation(rows) for rows in assignment]
    # The small term corrects 0.29 * 100, which is 28.999... in floating point.
    sizes = [int(test_fraction * len(rows) + 1e-9) for rows in shuffled]
    train = [rows[size:] for rows, size in zip(shuffled, sizes, strict=True)]
    return train, [rows[:size] for rows, size in zip(shuffled, sizes, strict=True)]


@plain_integers
def hold_out(
    num_clients: int, fraction: float, seed: int | np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the clients that train, and of those that never train, in ascending order.

    ``round(fraction * M)`` clients, drawn uniformly, never train.

    Raises:
        ValueError: a fraction that leaves no client for training, or holds none out.

    Example:
        >>> trained, held_out = hold_out(10, 0.2, seed=0)
        >>> len(trained), len(held_out)
        (8, 2)
    """
    check_count(num_clients=num_clients)
    check_number(fraction=fraction)
    count = round(fraction * num_clients) if 0 <= fraction <= 1 else 0
    if not 0 < count < num_clients:
        raise ValueError(
            f"fraction is {fraction}, which is {count} of {num_clients} clients; expected 1 .. "
            f"{num_clients - 1} clients"
        )
    order = seeded(seed).permutation(num_clients)
    return np.sort(order[count:]), np.sort(order[:count])
