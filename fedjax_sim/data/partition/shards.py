"""Partitions with few labels per client: shards of a sorted data set, and a number of classes."""

from __future__ import annotations

import numpy as np

from fedjax_sim.checks import check_count, seeded
from fedjax_sim.data.partition._dealing import cut, pools_for
from fedjax_sim.types import plain_integers


@plain_integers
def shards(
    labels: np.ndarray, num_clients: int, k: int, seed: int | np.random.Generator
) -> list[np.ndarray]:
    """``k`` shards of the sorted data set per client.

    The rows, sorted by label (rows of one label in their original order), are cut into ``M k``
    shards of ``floor(N / (M k))``; every client gets k of them, drawn without replacement.  A shard
    may span two classes, and a client may get two shards of one class;
    :func:`classes_per_client` avoids both.  The last ``N mod M k`` rows are not used.

    Raises:
        ValueError: labels not one-dimensional, k < 1, or fewer examples than shards.

    References:
        McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
        2017, Sec. 3 (MNIST: 100 clients, k = 2, shards of 300); ``ShardPartitioner`` of Flower.

    Example:
        >>> labels = np.repeat([0, 1, 2], 20)
        >>> assignment = shards(labels, 5, k=2, seed=0)
        >>> {len(rows) for rows in assignment}, max(len(set(labels[rows])) for rows in assignment)
        ({12}, 2)
    """
    check_count(1, k=k)
    ordered = np.concatenate(pools_for(labels, num_clients, min_size=k))
    rng = seeded(seed)
    size = len(ordered) // (num_clients * k)
    pieces = ordered[: num_clients * k * size].reshape(num_clients * k, size)
    dealt = pieces[rng.permutation(num_clients * k)].reshape(num_clients, k * size)
    return list(rng.permuted(dealt, axis=1))


@plain_integers
def label_quantity(
    labels: np.ndarray, num_clients: int, k: int, seed: int | np.random.Generator
) -> list[np.ndarray]:
    """``k`` distinct classes per client, each divided equally among its clients; ragged sizes.

    Client i has class ``i mod C`` and k - 1 others, drawn uniformly.  Each class is shuffled and
    cut into as many parts as it has clients; their sizes differ by at most one.  Every example is
    used once if there are at least C clients; the examples of a class without clients are not used.

    Raises:
        ValueError: labels not one-dimensional; k outside 1..C; a class with fewer examples than
            clients.

    References:
        Li et al., "Federated learning on non-IID data silos: an experimental study", 2022
        (``#C = k``); ``PathologicalPartitioner`` of Flower.

    Example:
        >>> labels = np.repeat(np.arange(4), 30)
        >>> assignment = label_quantity(labels, 6, k=2, seed=0)
        >>> {len(set(labels[rows])) for rows in assignment}, sum(map(len, assignment))
        ({2}, 120)
    """
    pools = pools_for(labels, num_clients, k=k)
    num_classes = len(pools)
    rng = seeded(seed)
    order = rng.random((num_clients, num_classes))
    clients = np.arange(num_clients)
    order[clients, clients % num_classes] = -1.0  # the own class comes first
    has_class = np.zeros((num_clients, num_classes), dtype=bool)
    np.put_along_axis(has_class, np.argsort(order, axis=1)[:, :k], True, axis=1)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for pool, takes in zip(pools, has_class.T, strict=True):
        holders = np.flatnonzero(takes)
        if len(pool) < len(holders):
            raise ValueError(
                f"k is {k}: {len(holders)} clients take a part of a class of {len(pool)} examples; "
                "expected fewer clients or classes"
            )
        if len(holders):
            for client, part in zip(
                holders, np.array_split(rng.permutation(pool), len(holders)), strict=True
            ):
                parts[client].append(part)
    rows = [np.concatenate(own) for own in parts]
    return cut(
        np.concatenate([rng.permutation(own) for own in rows]), np.array([len(x) for x in rows])
    )
