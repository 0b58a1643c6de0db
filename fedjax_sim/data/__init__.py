"""Client data: containers, minibatches, augmentation, partitions, summaries, synthetic problems."""

from fedjax_sim.data import augmentation, batches, federated, partition, summary, synthetic, task

__all__ = ["augmentation", "batches", "federated", "partition", "summary", "synthetic", "task"]
