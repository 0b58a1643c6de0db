"""Test rows within each client, and reports of clients without rows of one part."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedjax_sim.datasets.dataset import DataError

TEST_SHARE = 5  # a fifth of the rows
_MOST_NAMES = 5  # in a warning


def rows_for_testing(
    where: str, labels: np.ndarray, groups: np.ndarray, names: Sequence[str]
) -> np.ndarray:
    """Returns the mask of the rows for testing: of each client a fifth, spread over its labels."""
    # A systematic sample of a client's rows in the order of their labels, with random ties and a
    # random start. A client with one row has it for training.
    stream = np.random.RandomState(0)
    sizes = np.bincount(groups)
    counts = np.where(sizes > 1, np.maximum(1, np.rint(sizes / TEST_SHARE)), 0).astype(np.int64)
    if not counts.any():
        raise DataError(
            f"{where}: each of the {len(sizes)} clients has one row; expected clients with two or "
            "more, or test rows (test, or a column split)"
        )
    order = np.lexsort((stream.permutation(len(labels)), labels, groups))
    client = groups[order]
    place = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[client]
    place += (stream.random_sample(len(sizes)) * sizes).astype(np.int64)[client]
    chosen = np.zeros(len(labels), bool)
    # k of any n places in a row, as evenly as possible.
    chosen[order] = place * counts[client] % sizes[client] < counts[client]
    report(
        where,
        f"of {len(sizes)} clients have one row, which is for training, and none for testing",
        [names[i] for i in np.flatnonzero(counts == 0).tolist()],
    )
    lost = np.setdiff1d(labels, labels[~chosen])
    report(where, f"of {len(np.unique(labels))} classes have test rows only", lost)
    return chosen


def report_lost(where: str, train: Sequence[Any], test: Sequence[Any]) -> None:
    """Warns of clients that a division of rows has left without training or without test rows."""
    # A division between clients, whose parts have no client in common, loses none.
    trained, tested = dict.fromkeys(train), dict.fromkeys(test)
    if trained.keys().isdisjoint(tested):
        return
    total = len(trained | tested)
    for these, others, lacking in ((tested, trained, "training"), (trained, tested, "test")):
        report(
            where,
            f"of {total} clients have no {lacking} rows",
            [name for name in these if name not in others],
        )


def report(where: str, message: str, names: Iterable[Any]) -> None:
    """Warns with the number and the first names of what is lost, if anything is."""
    texts = [str(name) for name in names]
    if texts:
        listed = ", ".join([*texts[:_MOST_NAMES], *(["..."] if len(texts) > _MOST_NAMES else [])])
        warnings.warn(f"{where}: {len(texts)} {message}: {listed}", UserWarning, stacklevel=2)
