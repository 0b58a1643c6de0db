"""Partitions with label skew: Dirichlet distributions, and a number of classes per client."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedjax_sim.checks import check_count, seeded
from fedjax_sim.data.partition._dealing import (
    Prior,
    deal,
    draw_available,
    draw_shares,
    pools_for,
    split,
    too_small,
)
from fedjax_sim.types import plain_integers


@plain_integers
def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    seed: int | np.random.Generator,
    *,
    disjoint: bool = False,
    prior: Prior = "labels",
) -> list[np.ndarray]:
    """Label skew, a distribution per client: ``p_j ~ Dir(alpha C p)`` over the C classes.

    Here ``p`` are the frequencies of the classes in ``labels``, so that ``p_j`` has the mean ``p``
    and tends to it for large ``alpha``: then clients are IID.  For balanced classes this is
    ``Dir(alpha, ..., alpha)``.  The alpha of Hsu et al. (2019), whose law is ``Dir(alpha p)``, is
    C times this one.  Each of the M clients gets ``floor(N / M)`` examples.  For each of them a
    class is drawn from ``p_j`` and an example is taken from the shuffled pool of that class.

    * ``disjoint=False``: an exhausted pool is refilled and reshuffled.  NOT a partition: examples
      may repeat, across clients and within one, and some may never be used.
    * ``disjoint=True``: ``p_j`` is renormalised over the classes that are left, so no example is
      used twice.  The last clients draw from the remaining examples and deviate from Dir(alpha).

    Small ``alpha``: about one class per client.  ``alpha=inf``: every client draws from ``p``.

    ``prior="uniform"`` is ``Dir(alpha, ..., alpha)`` for unbalanced classes, too, as in the
    published code of many papers.  Then clients have all classes equally often on average, and are
    not IID for large ``alpha``: without repeats, the first clients take all rare examples.

    Args:
        labels: [N] class of each example.
        num_clients: M.
        alpha: concentration per class, > 0.
        seed: int or generator.
        disjoint: use each example at most once.
        prior: mean of ``p_j``: "labels", the frequencies of the classes, or "uniform".

    Returns:
        M arrays of ``floor(N / M)`` row numbers, in random order.

    Raises:
        ValueError: labels not one-dimensional, alpha <= 0, fewer examples than clients, another
            prior.

    References:
        Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated
        visual classification", 2019 (with renormalisation); the refill is that of the published
        code of FedSWA (Liu et al., 2025).

    Example:
        >>> labels = np.repeat([0, 1, 2], 100)
        >>> assignment = dirichlet(labels, 10, alpha=0.1, seed=0, disjoint=True)
        >>> np.unique(np.concatenate(assignment)).size
        300
    """
    pools = pools_for(labels, num_clients, alpha=alpha)
    rng = seeded(seed)
    size = sum(map(len, pools)) // num_clients
    available = np.array([len(pool) for pool in pools])
    shares, parameters = draw_shares(available, alpha, prior, num_clients, rng)
    if not disjoint:
        return deal(pools, rng.multinomial(size, shares), rng)
    counts = np.zeros((num_clients, len(pools)), dtype=np.int64)
    for share, count in zip(shares, counts, strict=True):
        draw_available(size, share, available, parameters, rng, count)
    return deal(pools, counts, rng)


@plain_integers
def dirichlet_by_class(
    labels: np.ndarray,
    num_clients: int,
    alpha: float,
    seed: int | np.random.Generator,
    *,
    min_size: int = 1,
    max_tries: int = 1000,
) -> list[np.ndarray]:
    """Label and quantity skew: each class is split over the clients by ``q_c ~ Dir(alpha)``.

    Every example is used exactly once; sizes are ragged.  The draw is repeated until every client
    has at least ``min_size`` examples.

    Raises:
        ValueError: labels not one-dimensional, alpha <= 0, too few examples, or none of
            ``max_tries`` draws gave every client ``min_size`` examples.

    References:
        Yurochkin et al., "Bayesian nonparametric federated learning of neural networks", 2019.

    Example:
        >>> assignment = dirichlet_by_class(np.repeat([0, 1], 50), 4, alpha=0.5, seed=0)
        >>> sorted(np.concatenate(assignment).tolist()) == list(range(100))
        True
    """
    pools = pools_for(labels, num_clients, min_size=min_size, alpha=alpha)
    check_count(max_tries=max_tries)
    rng = seeded(seed)
    for _ in range(max_tries):
        counts = np.stack([split(len(pool), num_clients, alpha, rng) for pool in pools], axis=1)
        if counts.sum(axis=1).min() >= min_size:
            return deal(pools, counts, rng)
    raise too_small(min_size, max_tries, alpha, num_clients)


@plain_integers
def classes_per_client(
    labels: np.ndarray,
    num_clients: int,
    k: int,
    seed: int | np.random.Generator,
    method: Literal["shards", "pairs"] = "shards",
) -> list[np.ndarray]:
    """Exactly ``k`` distinct classes per client; every example is used at most once.

    * ``"shards"``: every class is cut into ``M k / C`` equal shards, which are dealt at random.  A
      client with two shards of one class swaps one of them with a client that lacks the class.
    * ``"pairs"``: every client draws k distinct classes uniformly; every class is split equally
      among its clients, and all portions are cut to the smallest one, so that sizes are equal.

    Remainders of these divisions are not used.

    Raises:
        ValueError: labels not one-dimensional; k outside 1..C; for "shards" ``M k`` not a multiple
            of C; a class with fewer examples than portions.

    References:
        Leconte et al., "FAVANO: Federated averaging with asynchronous nodes", 2023, App. C.2
        (k = 2); shards: McMahan et al., 2017, Sec. 3.

    Example:
        >>> labels = np.repeat(np.arange(10), 60)
        >>> assignment = classes_per_client(labels, 30, k=2, seed=0)
        >>> {len(rows) for rows in assignment}, {len(set(labels[rows])) for rows in assignment}
        ({20}, {2})
    """
    pools = pools_for(labels, num_clients, k=k)
    num_classes = len(pools)
    rng = seeded(seed)
    sizes = np.array([len(pool) for pool in pools])
    if method == "shards":
        if num_clients * k % num_classes:
            raise ValueError(
                f"num_clients * k is {num_clients} * {k} = {num_clients * k}; expected a multiple "
                f'of the {num_classes} classes for method="shards" (or use method="pairs")'
            )
        has_class = _deal_shards(num_clients, k, num_classes, rng)
        portions = sizes // (num_clients * k // num_classes)
    elif method == "pairs":
        chosen = np.argsort(rng.random((num_clients, num_classes)), axis=1)[:, :k]
        has_class = np.zeros((num_clients, num_classes), dtype=np.int64)
        np.put_along_axis(has_class, chosen, 1, axis=1)
        takers = has_class.sum(axis=0)
        portions = np.full(num_classes, (sizes[takers > 0] // takers[takers > 0]).min())
    else:
        raise ValueError(f'method is {method!r}; expected "shards" or "pairs"')
    if portions.min() == 0:
        raise ValueError(
            f"k is {k}: some class has fewer examples than the {num_clients} clients take portions "
            f"of it (smallest class: {sizes.min()} examples); expected fewer clients or classes"
        )
    return deal(pools, has_class * portions, rng)


def _deal_shards(num_clients, k, num_classes, rng):
    """Random matrix ``[M, C]`` of zeros and ones with row sums k and column sums M k / C."""
    shards = np.repeat(np.arange(num_classes), num_clients * k // num_classes)
    hands = rng.permutation(shards).reshape(num_clients, k)
    counts = np.zeros((num_clients, num_classes), dtype=np.int64)
    np.add.at(counts, (np.arange(num_clients)[:, None], hands), 1)
    # A repair always exists.  Let client a hold class c twice.  As c has at most M shards, some b
    # lacks c.  Either b holds a class twice (give that one), or its k classes are distinct, and
    # since a holds at most k - 1 distinct ones, b has a class that a lacks.  Each swap lowers the
    # number of duplicates, so the loop ends; a may get another duplicate, so it sweeps again.
    while (duplicates := np.argwhere(counts > 1)).size:
        for a, c in duplicates:
            if counts[a, c] > 1:
                b = rng.choice(np.flatnonzero(counts[:, c] == 0))
                gives = (counts[b] > 1) | ((counts[b] > 0) & (counts[a] == 0))
                d = rng.choice(np.flatnonzero(gives))
                counts[a, [c, d]] += [-1, 1]
                counts[b, [c, d]] += [1, -1]
    return counts
