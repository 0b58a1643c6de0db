"""Client data: containers, minibatches, augmentation, partitions, summaries."""

from fedjax_sim.data import (
    augmentation,
    batches,
    federated,
    generated,
    partition,
    summary,
    task,
    tokens,
)

__all__ = [
    "augmentation",
    "batches",
    "federated",
    "generated",
    "partition",
    "summary",
    "task",
    "tokens",
]
