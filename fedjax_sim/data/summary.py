"""Summaries of partitions: label counts, sizes, and distances between label distributions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedjax_sim.data.federated import FederatedData, leaf_of
from fedjax_sim.types import Summary, shown

__all__ = ["PartitionSummary", "Spread", "label_counts", "summarize"]


@shown
class Spread(NamedTuple):
    """Minimum, median and maximum over the clients."""

    min: int
    median: float
    max: int

    def __str__(self) -> str:
        return f"min {self.min}, median {self.median:.12g}, max {self.max}"


@shown
class PartitionSummary(NamedTuple):
    """Key figures of a partition; ``print`` shows a table (see :func:`summarize`)."""

    num_clients: int
    num_examples: int  # rows of all clients, including repeated ones
    sizes: Spread  # examples per client
    classes: Spread | None  # distinct labels per client; None: the labels are numbers
    label_distance: float | None  # mean total variation from the pooled distribution, in [0, 1)

    def _summary(self) -> Summary:
        rows = {"examples per client": str(self.sizes)}
        if self.classes is not None:
            rows["classes per client"] = str(self.classes)
            rows["label distance"] = f"{self.label_distance:.3f} (0: equal)"
        title = f"Partition: {self.num_clients:,} clients, {self.num_examples:,} examples"
        return Summary(title, rows)


def label_counts(data: FederatedData, num_classes: int, label: str = "y") -> np.ndarray:
    """Number of examples of each class at each client, ``[M, C]`` int.

    Sequences have a label per position, ``[N, L]``; positions with a negative label, such as
    padding, are not counted.

    Args:
        data: examples with integer labels ``[N]`` or ``[N, L]`` under the key ``label``.
        num_classes: C.
        label: key of the labels in ``data.examples``.

    Raises:
        ValueError: no such key; labels that are not integers ``[N]`` in ``0..C-1``, or integers
            ``[N, L]`` below C.

    Example:
        >>> data = FederatedData({"y": np.array([0, 0, 1, 2, 2])}, np.array([0, 3, 5]))
        >>> label_counts(data, num_classes=3).tolist()
        [[2, 1, 0], [0, 0, 2]]
    """
    labels = leaf_of(data, label, "label")
    if labels.ndim not in (1, 2) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"label {label!r} has shape {labels.shape} and dtype {labels.dtype}; "
            "expected integers [N], or [N, L] of sequences"
        )
    owners = data.owners()
    if labels.ndim == 2:
        counted = labels >= 0
        owners, labels = np.repeat(owners, counted.sum(axis=1)), labels[counted]
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"num_classes is {num_classes} but label {label!r} has values "
            f"{labels.min()} .. {labels.max()}; expected 0 .. {num_classes - 1}"
        )
    cells = owners * num_classes + labels.astype(np.int64)
    counts = np.bincount(cells, minlength=data.num_clients * num_classes)
    return counts.reshape(data.num_clients, num_classes)


def has_classes(data: FederatedData, label: str = "y") -> bool:
    """Returns False if the labels are floating numbers, as in regression."""
    labels = data.examples.get(label) if isinstance(data.examples, dict) else None
    return labels is None or not np.issubdtype(np.asarray(labels).dtype, np.floating)


def summarize(data: FederatedData, num_classes: int, label: str = "y") -> PartitionSummary:
    """Sizes, classes per client, and the mean distance of the clients' label distributions.

    The distance of client i is the total variation ``1/2 sum_c |p_ic - p_c|`` between its label
    distribution and that of all examples; empty clients are excluded from the mean.  Labels that
    are floating numbers have neither classes nor a distance (None).

    Raises:
        ValueError: as :func:`label_counts`; no examples at all.

    Example:
        >>> data = FederatedData({"y": np.array([0, 0, 0, 1, 1, 1])}, np.array([0, 3, 6]))
        >>> print(summarize(data, num_classes=2))
        Partition: 2 clients, 6 examples
          examples per client  min 3, median 3, max 3
          classes per client   min 1, median 1, max 1
          label distance       0.500 (0: equal)
    """
    sizes = _spread(np.asarray(data.sizes))
    if data.num_examples and not has_classes(data, label):
        return PartitionSummary(data.num_clients, data.num_examples, sizes, None, None)
    counts = label_counts(data, num_classes, label)
    total = int(counts.sum())
    if total == 0:
        raise ValueError(f"data has {data.num_clients} clients and no examples; expected some")
    labels = counts.sum(axis=1)
    shares = counts[labels > 0] / labels[labels > 0, None]
    distances = 0.5 * np.abs(shares - counts.sum(axis=0) / total).sum(axis=1)
    return PartitionSummary(
        num_clients=data.num_clients,
        num_examples=data.num_examples,
        sizes=sizes,
        classes=_spread((counts > 0).sum(axis=1)),
        label_distance=float(distances.mean()),
    )


def _spread(values: np.ndarray) -> Spread:
    return Spread(int(values.min()), float(np.median(values)), int(values.max()))
