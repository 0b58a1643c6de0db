"""Partitions by name.  One more is one row here.

Functions of the user are in :mod:`fedjax_sim.studies.setups.own_objects`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_sim.data import partition
from fedjax_sim.datasets import Dataset
from fedjax_sim.studies.setups.config import RunConfig

Rows = Sequence[np.ndarray]  # of each client


class Division(NamedTuple):
    """Rows of the clients."""

    rows: Rows
    names: tuple[str, ...] | None = None  # of the clients, if they have some
    test: Rows | None = None  # clients' own test examples, if the partition draws them


Partition = Callable[[RunConfig, Dataset], Division]


def _natural(config: RunConfig, dataset: Dataset) -> Division:
    if dataset.train_groups is None or dataset.group_names is None:
        raise ValueError(f"data set {dataset.name} does not say which client an example is from")
    names = np.asarray(dataset.group_names)[dataset.train_groups]
    return Division(*partition.by_group(names))


def _pachinko(config: RunConfig, dataset: Dataset) -> Division:
    if "coarse" not in dataset.train:
        raise ValueError(f"data set {dataset.name} has no coarse labels; expected cifar100")
    return Division(
        partition.pachinko(
            dataset.train["y"],
            dataset.train["coarse"],
            config.num_clients,
            config.partition_seed,
            alpha=config.alpha,
            beta=config.fine_alpha,
        )
    )


def _by_labels(rule: Callable[[RunConfig, np.ndarray], Rows]) -> Partition:
    def divide(config: RunConfig, dataset: Dataset) -> Division:
        return Division(rule(config, _classes(dataset)))

    return divide


def _classes(dataset: Dataset) -> np.ndarray:
    """Returns the classes of the training examples; refuses other labels."""
    labels = dataset.train["y"]
    if labels.ndim > 1 or dataset.target == "numbers":
        kind = "a label per position" if labels.ndim > 1 else "numbers as targets"
        raise ValueError(
            f"data set {dataset.name} has {kind}; expected a partition that does not need labels, "
            "such as contiguous, iid or natural"
        )
    return labels


def _by_size(rule: Callable[[RunConfig, int], Rows]) -> Partition:
    return lambda config, dataset: Division(rule(config, len(dataset.train["y"])))


def _pfllib(rule: Callable[[RunConfig, np.ndarray, np.random.RandomState], Rows]) -> Partition:
    """One stream of random numbers for the partition and the clients' test examples."""

    def divide(config: RunConfig, dataset: Dataset) -> Division:
        random = np.random.RandomState(config.partition_seed)
        rows = rule(config, _classes(dataset), random)
        if config.test_of == "dataset":
            return Division(rows)
        train, test = partition.pfllib_split(rows, random, train_ratio=1 - config.test_fraction)
        return Division(train, test=test)

    return divide


# Name -> description, and the rule.
PARTITIONS: dict[str, tuple[str, Partition]] = {
    "dirichlet": (
        "labels of each client Dirichlet(--alpha), on average as in the data; equal sizes",
        _by_labels(
            lambda c, y: partition.dirichlet(
                y, c.num_clients, c.alpha, c.partition_seed, disjoint=True
            )
        ),
    ),
    "dirichlet-by-class": (
        "each label split Dirichlet(--alpha) over the clients; ragged sizes",
        _by_labels(
            lambda c, y: partition.dirichlet_by_class(y, c.num_clients, c.alpha, c.partition_seed)
        ),
    ),
    "iid": (
        "at random; equal sizes",
        _by_size(lambda c, n: partition.iid(n, c.num_clients, c.partition_seed)),
    ),
    "contiguous": (
        "consecutive examples, such as the parts of a text; equal sizes",
        _by_size(lambda c, n: np.array_split(np.arange(n), c.num_clients)),
    ),
    "classes": (
        "--classes-per-client labels each; equal sizes",
        _by_labels(
            lambda c, y: partition.classes_per_client(
                y, c.num_clients, c.classes_per_client, c.partition_seed, method="pairs"
            )
        ),
    ),
    "label-quantity": (
        "--classes-per-client labels each, divided equally; ragged sizes",
        _by_labels(
            lambda c, y: partition.label_quantity(
                y, c.num_clients, c.classes_per_client, c.partition_seed
            )
        ),
    ),
    "shards": (
        "--classes-per-client shards of the sorted examples each; equal sizes",
        _by_labels(
            lambda c, y: partition.shards(y, c.num_clients, c.classes_per_client, c.partition_seed)
        ),
    ),
    "pachinko": (
        "coarse labels Dirichlet(--alpha), labels in them Dirichlet(--fine-alpha); equal sizes",
        _pachinko,
    ),
    "quantity": (
        "labels at random; sizes Dirichlet(--alpha)",
        _by_size(lambda c, n: partition.quantity_skew(n, c.num_clients, c.alpha, c.partition_seed)),
    ),
    "exponential": (
        "labels at random; sizes exponential",
        _by_size(lambda c, n: partition.exponential(n, c.num_clients, c.partition_seed)),
    ),
    "log-normal": (
        "labels at random; sizes log-normal (--size-sigma)",
        _by_size(
            lambda c, n: partition.log_normal(n, c.num_clients, c.size_sigma, c.partition_seed)
        ),
    ),
    "pfllib-dir": (
        "PFLlib's dir: as dirichlet-by-class, without further labels for full clients",
        _pfllib(lambda c, y, random: partition.pfllib_dirichlet(y, c.num_clients, c.alpha, random)),
    ),
    "pfllib-pat": (
        "PFLlib's pat: --classes-per-client labels each, in order; ragged sizes",
        _pfllib(
            lambda c, y, random: partition.pfllib_pathological(
                y, c.num_clients, c.classes_per_client, random
            )
        ),
    ),
    "pfllib-pat-balanced": (
        "PFLlib's pat with balance: --classes-per-client labels each, in order; equal sizes",
        _pfllib(
            lambda c, y, random: partition.pfllib_pathological(
                y, c.num_clients, c.classes_per_client, random, balance=True
            )
        ),
    ),
    "pfllib-exdir": (
        "PFLlib's exdir: --classes-per-client labels, split Dirichlet(--alpha, best about 100)",
        _pfllib(
            lambda c, y, random: partition.pfllib_extended_dirichlet(
                y, c.num_clients, c.classes_per_client, c.alpha, random
            )
        ),
    ),
    "natural": ("the data set's own clients (writers, ...)", _natural),
}
