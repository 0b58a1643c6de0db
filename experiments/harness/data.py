"""Parts of data sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import fedjax_sim as fs
from fedjax_sim.data import partition

__all__ = ["dirichlet_uniform_prior", "pooled_test", "subsample"]


def dirichlet_uniform_prior(
    dataset: fs.datasets.Dataset, seed: int, num_clients: int = 100, alpha: float = 0.1
) -> list[np.ndarray]:
    """The partition of committed results: clients have all labels equally often on average."""
    return partition.dirichlet(
        dataset.train["y"], num_clients, alpha, seed, disjoint=True, prior="uniform"
    )


def subsample(examples: Mapping[str, Any], count: int | None) -> dict[str, Any]:
    """Images and labels of ``count`` random examples, always the same ones; None: of all.

    Example:
        >>> y = np.arange(100)
        >>> subsample({"x": y, "y": y}, 5)["y"].tolist()
        [26, 30, 50, 61, 81]
    """
    rows = np.arange(len(examples["y"]))
    if count is not None and count < len(rows):
        rows = np.sort(np.random.default_rng(0).choice(len(rows), count, replace=False))
    return {key: examples[key][rows] for key in ("x", "y")}


def pooled_test(dataset: fs.datasets.Dataset) -> dict[str, np.ndarray]:
    """Test images and labels of the writers that train; of all writers if none of them trains."""
    if dataset.train_groups is None or dataset.test_groups is None:
        raise ValueError(f"dataset {dataset.name!r} has no writers; expected one that has them")
    known = np.isin(dataset.test_groups, dataset.train_groups)
    rows = known if known.any() else np.full(len(known), True)
    return {key: dataset.test[key][rows] for key in ("x", "y")}
