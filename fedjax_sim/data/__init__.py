"""Client data: containers, minibatches, augmentation, partitions, summaries."""

from fedjax_sim.data import (
    augmentation,
    batches,
    feature_shift,
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
    "feature_shift",
    "federated",
    "generated",
    "partition",
    "summary",
    "task",
    "tokens",
]
