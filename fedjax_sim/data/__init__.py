"""Client data: containers, minibatches, augmentation, partitions, summaries."""

from fedjax_sim.data import augmentation, batches, federated, partition, summary, task, tokens

__all__ = ["augmentation", "batches", "federated", "partition", "summary", "task", "tokens"]
