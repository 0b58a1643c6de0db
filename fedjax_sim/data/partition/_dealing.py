"""Helpers of the partitions: dealing rows from pools, splitting by Dirichlet shares, checks."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedjax_sim.checks import check_count
from fedjax_sim.data.federated import integers
from fedjax_sim.data.inspection import check_disjoint, missing


def group_rows(values: Sequence | np.ndarray, name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """Row numbers of each distinct value, in their original order, and the sorted values."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is a ragged list; expected [N] with N > 0") from error
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}; expected [N] with N > 0")
    if (is_missing := missing(values)).any():
        row = int(is_missing.argmax())
        raise ValueError(f"{name}[{row}] is {list(values)[row]}; expected a number or text")
    try:
        distinct, inverse, sizes = np.unique(array, return_inverse=True, return_counts=True)
    except TypeError as error:  # objects without an order
        kinds = ", ".join(sorted({type(value).__name__ for value in array}))
        raise ValueError(f"{name} has values of the types {kinds}; expected one type") from error
    return cut(np.argsort(inverse, kind="stable"), sizes), distinct


def deal(
    pools: Sequence[np.ndarray], counts: np.ndarray, rng: np.random.Generator
) -> list[np.ndarray]:
    """Deals ``counts[j, c]`` rows of shuffled pool c to client j, in random order.

    Clients are served in order.  An exhausted pool is reshuffled and used again.
    """
    rows, owners = [], []
    for pool, wanted in zip(pools, counts.T, strict=True):
        passes = max(1, -(-wanted.sum() // len(pool)))
        stream = np.concatenate([rng.permutation(pool) for _ in range(passes)])
        rows.append(stream[: wanted.sum()])
        owners.append(np.repeat(np.arange(len(wanted)), wanted))
    order = rng.permutation(counts.sum())
    rows, owners = np.concatenate(rows)[order], np.concatenate(owners)[order]
    return cut(rows[np.argsort(owners, kind="stable")], counts.sum(axis=1))


Prior = Literal["labels", "uniform"]


def draw_shares(
    sizes: np.ndarray, alpha: float, prior: Prior, num_clients: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns ``[M, C]`` shares from Dir(alpha C p), p by sizes of classes, and ``alpha C p``."""
    if prior not in ("labels", "uniform"):
        raise ValueError(f'prior is {prior!r}; expected "labels" or "uniform"')
    weights = sizes if prior == "labels" else np.ones_like(sizes)
    parameters = alpha * (len(weights) * weights / weights.sum())  # alpha for equal weights
    if np.isinf(alpha):
        return np.tile(weights / weights.sum(), (num_clients, 1)), parameters
    return rng.dirichlet(parameters, num_clients), parameters


def draw_available(
    size: int,
    share: np.ndarray,
    available: np.ndarray,
    parameters: np.ndarray,
    rng: np.random.Generator,
    count: np.ndarray,
) -> None:
    """Adds ``size`` sequential class draws to ``count`` and takes them from ``available``."""
    # Drawing in batches and discarding draws that exceed a pool has the law of drawing one by one
    # with renormalisation. Each further batch means that a class is exhausted: at most C batches.
    while (remaining := size - count.sum()) > 0:
        p = np.where(available > 0, share, 0.0)
        if p.sum() == 0.0:
            # A tiny alpha underflows. Dirichlet shares renormalised over a subset are Dirichlet.
            # Later calls for the same client use the new shares, too.
            share[available > 0] = rng.dirichlet(parameters[available > 0])
            p = np.where(available > 0, share, 0.0)
        taken = np.minimum(rng.multinomial(remaining, p / p.sum()), available)
        count += taken
        available -= taken


def split(total: int, num_parts: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Splits ``total`` by Dir(alpha) into int ``[num_parts]``, rounding the cumulative shares."""
    if np.isinf(alpha):
        ends = np.arange(1, num_parts) / num_parts
    else:
        ends = np.cumsum(rng.dirichlet(np.full(num_parts, alpha)))[:-1]
    ends = np.minimum(np.round(ends * total).astype(np.int64), total)  # cumsum may exceed 1
    return np.diff(ends, prepend=0, append=total)


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """Splits ``total`` in proportion to weights by largest remainders, into int ``[M]``."""
    exact = total * (weights / weights.sum())
    sizes = np.floor(exact).astype(np.int64)
    largest = np.argsort(sizes - exact, kind="stable")  # ties: the first ones
    sizes[largest[: total - sizes.sum()]] += 1
    return sizes


def cut(rows: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Cuts an array into consecutive parts of the given sizes."""
    return np.split(rows, np.cumsum(sizes)[:-1])


def rows_of(assignment: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the row numbers of each client, int64, if no row occurs twice, for a division."""
    rows = [integers(f"assignment[{i}]", own, np.int64) for i, own in enumerate(assignment)]
    for i, own in enumerate(rows):
        if own.size and own.min() < 0:
            raise ValueError(f"assignment[{i}] has row {own.min()}; expected 0 or more")
    check_disjoint(rows, ", or it could be for training and for testing")
    return rows


def check_clients(num_clients: int, num_examples: int, min_size: int = 1) -> None:
    check_count(1, num_clients=num_clients)
    check_count(num_examples=num_examples, min_size=min_size)
    if num_examples < num_clients * min_size:
        raise ValueError(
            f"num_clients is {num_clients} with at least {min_size} examples each; "
            f"expected at most {num_examples} examples in total"
        )


def pools_for(
    labels: Sequence | np.ndarray, num_clients: int, *, min_size: int = 1, k: int | None = None,
    alpha: float = np.inf,
) -> list[np.ndarray]:  # fmt: skip
    """Returns the rows of each class, for clients of ``min_size`` examples and k classes each."""
    pools, _ = group_rows(labels, "labels")
    check_clients(num_clients, sum(map(len, pools)), min_size)
    if k is not None:
        check_count(k=k)
        if not 1 <= k <= len(pools):
            raise ValueError(
                f"k is {k}; expected 1 .. {len(pools)}, the number of classes in labels"
            )
    check_alpha(alpha)
    return pools


def check_alpha(alpha: float, name: str = "alpha") -> None:
    number = np.ndim(alpha) == 0 and np.asarray(alpha).dtype.kind in "iuf"
    if not (number and alpha > 0):
        raise ValueError(f"{name} is {alpha!r:.60}; expected a positive number (inf: no skew)")


def too_small(min_size: int, max_tries: int, alpha: float, num_clients: int) -> ValueError:
    """Returns the error of draws that all left some client with too few examples."""
    return ValueError(
        f"min_size is {min_size}, but none of {max_tries} draws with alpha={alpha} gave each of "
        f"{num_clients} clients that many; expected a smaller min_size or a larger alpha"
    )
