"""Client data: containers, minibatch rules, partitions, summaries and synthetic problems."""

from fedjax_sim.data import batches, federated, partition, summary, synthetic, task

__all__ = ["batches", "federated", "partition", "summary", "synthetic", "task"]
