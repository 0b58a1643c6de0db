"""PFLlib's partitions, row by row: Dirichlet, pathological and extended Dirichlet.

PFLlib (https://github.com/TsingZ0/PFLlib, ``dataset/utils/dataset_utils.py``) merges the training
and test examples, divides them with one of these functions, and splits every client with
:func:`pfllib_split`.  One ``numpy.random.RandomState`` for both, seeded with 1, gives the very
training and test rows of its generators of data sets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedjax_sim.checks import check_count, check_one_number
from fedjax_sim.data.partition._dealing import cut, pools_for, rows_of, too_small
from fedjax_sim.types import plain_integers

_BATCH_SIZE, _TRAIN_RATIO = 10, 0.75  # of PFLlib; they determine the smallest client


@plain_integers
def pfllib_dirichlet(
    labels: np.ndarray,
    num_clients: int,
    alpha: float = 0.1,
    seed: int | np.random.RandomState = 1,
    *,
    min_size: int | None = None,
    max_tries: int = 1000,
) -> list[np.ndarray]:
    """PFLlib's ``dir``: :func:`dirichlet_by_class` without further classes for full clients.

    The classes are divided one after the other by ``q_c ~ Dir(alpha)``.  Clients that already have
    ``N / M`` examples get none of the next class, and q_c is renormalised over the others; a client
    may exceed ``N / M`` within a class.  The draw is repeated until every client has ``min_size``
    examples.  Every example is used once.

    Args:
        labels: [N] class of each example, training and test examples together.
        num_clients: M.
        alpha: concentration, > 0 and finite.
        seed: int or RandomState.
        min_size: default: PFLlib's ``min(40, N / (2 M))``, rounded down, and at least 1.
        max_tries: draws before an error; PFLlib has no limit.

    Raises:
        ValueError: labels not one-dimensional, alpha not positive and finite, too few examples, or
            none of ``max_tries`` draws gave every client ``min_size`` examples.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> [len(rows) for rows in pfllib_dirichlet(labels, 5)]
        [287, 176, 173, 259, 105]
    """
    least = max(_least(np.size(labels), num_clients), 1) if min_size is None else min_size
    pools = pools_for(labels, num_clients, min_size=least, alpha=alpha)
    _check_finite(alpha)
    holders = np.ones((num_clients, len(pools)), dtype=bool)
    return _divide(pools, holders, alpha, _random(seed), least, max_tries)


@plain_integers
def pfllib_extended_dirichlet(
    labels: np.ndarray,
    num_clients: int,
    k: int = 2,
    alpha: float = 100.0,
    seed: int | np.random.RandomState = 1,
    *,
    min_size: int = 10,
    max_tries: int = 10_000,
) -> list[np.ndarray]:
    """PFLlib's ``exdir``: ``k`` classes per client, each divided as in :func:`pfllib_dirichlet`.

    Every client draws k classes, until each class has at least ``max(floor(floor(k M / C) / 2),
    1)`` clients.  Then each class is divided among its clients.  Rounding leaves some examples of a
    class, which go to the last of its clients.  If all clients of a class are full, PFLlib divides
    zero by zero; here the draw is repeated.

    Args:
        labels: [N] class of each example, training and test examples together.
        num_clients: M.
        k: classes per client.
        alpha: concentration, > 0 and finite; PFLlib recommends 100.
        seed: int or RandomState.
        min_size: the draw is repeated until every client has this many examples.
        max_tries: draws of each kind before an error; PFLlib has no limit.

    Raises:
        ValueError: as :func:`pfllib_dirichlet`; k outside 1..C, or none of ``max_tries`` draws gave
            every class enough clients.

    References:
        Li and Lyu, "Convergence analysis of sequential federated learning on heterogeneous data",
        2023, with PFLlib's changes.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> max(len(set(labels[rows])) for rows in pfllib_extended_dirichlet(labels, 20, k=2))
        2
    """
    pools = pools_for(labels, num_clients, min_size=min_size, k=k, alpha=alpha)
    _check_finite(alpha)
    check_count(max_tries=max_tries)
    num_classes = len(pools)
    random = _random(seed)
    fewest = max(k * num_clients // num_classes // 2, 1)
    if num_clients * k < num_classes:
        raise ValueError(
            f"num_clients * k is {num_clients} * {k} = {num_clients * k}; expected at least the "
            f"{num_classes} classes, so that each has a client"
        )
    for _ in range(max_tries):
        holders = np.zeros((num_clients, num_classes), dtype=bool)
        for own in holders:
            own[random.choice(num_classes, k, replace=False)] = True
        if holders.sum(axis=0).min() >= fewest:
            break
    else:
        raise ValueError(
            f"k is {k}, but none of {max_tries} draws gave each of {num_classes} classes at least "
            f"{fewest} of {num_clients} clients; expected a larger k or more clients"
        )
    assignment = _divide(pools, holders, alpha, random, min_size, max_tries)
    for rows in assignment:
        random.shuffle(rows)
    return assignment


@plain_integers
def pfllib_pathological(
    labels: np.ndarray,
    num_clients: int,
    k: int = 2,
    seed: int | np.random.RandomState = 1,
    *,
    balance: bool = False,
) -> list[np.ndarray]:
    """PFLlib's ``pat``: ``k`` classes per client, in order of classes and clients.

    Class after class goes to the first ``ceil(M / C * k)`` clients that have fewer than k classes.
    With ``balance`` they get equal parts; otherwise all but the last get a uniform number between a
    tenth of and a whole equal part, and the last one the rest, which usually is much.  With ``k =
    C`` it is PFLlib's division without label skew.  Classes are not used after all clients have k.

    Args:
        labels: [N] class of each example, training and test examples together.
        num_clients: M.
        k: classes per client.
        seed: int or RandomState.
        balance: equal parts.

    Raises:
        ValueError: labels not one-dimensional, k outside 1..C, or a client without examples.

    Example:
        >>> labels = np.repeat(np.arange(10), 100)
        >>> assignment = pfllib_pathological(labels, 20, k=2, balance=True)
        >>> sorted(set(labels[assignment[7]])), {len(rows) for rows in assignment}
        ([np.int64(2), np.int64(3)], {50})
    """
    pools = pools_for(labels, num_clients, k=k)
    num_classes, num_examples = len(pools), sum(map(len, pools))
    random = _random(seed)
    least = _least(num_examples, num_clients)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for pool in pools:
        takers = [client for client in range(num_clients) if len(parts[client]) < k]
        takers = takers[: int(np.ceil(num_clients / num_classes * k))]
        if not takers:
            break
        equal = len(pool) / len(takers)
        if balance:
            sizes = np.full(len(takers) - 1, int(equal))
        else:
            low = int(max(equal / 10, least / num_classes))
            if low >= int(equal) and len(takers) > 1:
                raise ValueError(
                    f"num_clients is {num_clients}: {len(takers)} clients take a part of a class "
                    f"of {len(pool)} examples; expected fewer clients or classes, or balance"
                )
            sizes = random.randint(low, int(equal), len(takers) - 1) if len(takers) > 1 else []
        ends = np.cumsum(sizes, dtype=np.int64)
        for client, part in zip(takers, np.split(pool, ends), strict=True):
            parts[client].append(part)
    sizes = [sum(map(len, own)) for own in parts]
    if min(sizes) == 0:
        raise ValueError(
            f"num_clients is {num_clients}: client {sizes.index(0)} gets no examples with k = {k} "
            f"and {num_classes} classes; expected fewer clients, or a larger k"
        )
    return [np.concatenate(own) for own in parts]


@plain_integers
def pfllib_split(
    assignment: Sequence[np.ndarray],
    seed: int | np.random.RandomState = 1,
    *,
    train_ratio: float = _TRAIN_RATIO,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Training and test rows of every client: ``floor(train_ratio * n_i)`` rows for training.

    PFLlib splits with scikit-learn's ``train_test_split``, not stratified: the first rows of a
    permutation are for testing, the others for training.

    Args:
        assignment: rows per client.
        seed: int, or the RandomState that has drawn the partition.
        train_ratio: fraction of a client's rows for training.

    Raises:
        ValueError: train_ratio outside (0, 1), rows of a client that are no row numbers ``[n_i]``,
            or a row twice, since it could be on both sides.

    Example:
        >>> random = np.random.RandomState(1)
        >>> labels = np.repeat(np.arange(10), 100)
        >>> train, test = pfllib_split(pfllib_dirichlet(labels, 5, seed=random), random)
        >>> [len(rows) for rows in train], [len(rows) for rows in test]
        ([215, 132, 129, 194, 78], [72, 44, 44, 65, 27])
    """
    check_one_number(train_ratio=train_ratio)
    if not 0 < train_ratio < 1:
        raise ValueError(f"train_ratio is {train_ratio}; expected 0 < train_ratio < 1")
    assignment = rows_of(assignment)
    random = _random(seed)
    train, test = [], []
    for rows in assignment:
        num_test = len(rows) - int(np.floor(train_ratio * len(rows)))
        order = random.permutation(len(rows))
        test.append(rows[order[:num_test]])
        train.append(rows[order[num_test:]])
    return train, test


def _divide(
    pools: list[np.ndarray],
    holders: np.ndarray,
    alpha: float,
    random: np.random.RandomState,
    min_size: int,
    max_tries: int,
) -> list[np.ndarray]:
    """Divides each class by Dirichlet shares among its holders ``[M, C]`` that are not full."""
    check_count(max_tries=max_tries)
    num_clients, full = len(holders), sum(map(len, pools)) / len(holders)
    for _ in range(max_tries):
        rows: list[list[np.ndarray]] = []
        sizes = np.zeros(num_clients, dtype=np.int64)
        for pool, own in zip(pools, holders.T, strict=True):
            shuffled = pool.copy()
            random.shuffle(shuffled)
            shares = random.dirichlet(np.repeat(alpha, num_clients)) * ((sizes < full) & own)
            if not shares.sum() > 0:  # all holders are full, or the shares underflow
                break
            ends = (np.cumsum(shares / shares.sum()) * len(pool)).astype(int)[:-1]
            if not own.all() and ends[-1] != len(pool):
                ends[np.flatnonzero(own)[-1] :] = len(pool)  # the rest
            rows.append(np.split(shuffled, ends))
            sizes += [len(part) for part in rows[-1]]
        else:
            if sizes.min() >= min_size:
                return cut(
                    np.concatenate([x for own in zip(*rows, strict=True) for x in own]), sizes
                )
    raise too_small(min_size, max_tries, alpha, num_clients)


def _least(num_examples: int, num_clients: int) -> int:
    """PFLlib's smallest client: a batch for testing, at most half of an equal part."""
    return int(min(_BATCH_SIZE / (1 - _TRAIN_RATIO), num_examples / max(num_clients, 1) / 2))


def _random(seed: int | np.random.RandomState) -> np.random.RandomState:
    if isinstance(seed, np.random.RandomState):
        return seed
    try:
        return np.random.RandomState(seed)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"seed is {' '.join(repr(seed).split()):.60}; expected an integer of 0 .. 2^32 - 1, or "
            "a numpy.random.RandomState"
        ) from error


def _check_finite(alpha: float) -> None:
    if np.isinf(alpha):
        raise ValueError(f"alpha is {alpha}; expected a finite number")
