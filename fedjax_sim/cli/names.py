"""Models, partitions and presets by name.  One more on the command line is one row here.

Data sets by name are in :mod:`fedjax_sim.datasets`, algorithms in :mod:`fedjax_sim.cli.registry`.
"""

import pathlib
from collections.abc import Callable

import numpy as np

from fedjax_sim import models
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.data import partition
from fedjax_sim.datasets import Dataset
from fedjax_sim.models import Model
from fedjax_sim.models.convolution.lowering import Convolution

Shape = tuple[int, ...]
Rows = list[np.ndarray]  # of each client

# Name -> shape of the examples it takes (None: any) and its builder from (shape, classes, conv).
MODELS: dict[str, tuple[Shape | None, Callable[[Shape, int, Convolution], Model]]] = {
    "digits_cnn": ((8, 8, 1), lambda _, classes, conv: models.digits_cnn(classes, conv)),
    "femnist_cnn": ((28, 28, 1), lambda _, classes, conv: models.femnist_cnn(classes, conv)),
    "lenet5": ((32, 32, 3), lambda _, classes, conv: models.lenet5(classes, conv=conv)),
    "mlp": (None, lambda shape, classes, _: models.mlp(shape, (200, 200), classes)),
    "mlp_small": (None, lambda shape, classes, _: models.mlp(shape, (64,), classes)),
    "resnet18": ((32, 32, 3), lambda _, classes, conv: models.resnet18(classes, conv=conv)),
    "resnet20": ((32, 32, 3), lambda _, classes, conv: models.resnet20(classes, conv=conv)),
    "softmax_regression": (
        None,
        lambda shape, classes, _: models.softmax_regression(shape, classes),
    ),
    "vgg11": ((32, 32, 3), lambda _, classes, conv: models.vgg11(classes, conv=conv)),
    "vit_tiny": ((32, 32, 3), lambda _, classes, __: models.vit_tiny((32, 32, 3), classes)),
    "vit_tiny_64": (
        (64, 64, 3),
        lambda _, classes, __: models.vit_tiny((64, 64, 3), classes, patch_size=8),
    ),
}
# Shape of the examples -> model that "auto" chooses; softmax_regression for all others.
AUTO_MODELS: dict[Shape, str] = {
    (8, 8, 1): "mlp_small",
    (28, 28, 1): "femnist_cnn",
    (32, 32, 3): "lenet5",
    (64, 64, 3): "vit_tiny_64",
}


def _natural(dataset: Dataset) -> tuple[Rows, tuple[str, ...]]:
    if dataset.train_groups is None or dataset.group_names is None:
        raise ValueError(f"data set {dataset.name} does not say which client an example is from")
    return partition.by_group(np.asarray(dataset.group_names)[dataset.train_groups])


# Name -> description, and (options, dataset) -> rows, with the clients' names if they have some.
PARTITIONS: dict[
    str, tuple[str, Callable[[RunConfig, Dataset], Rows | tuple[Rows, tuple[str, ...]]]]
] = {
    "dirichlet": (
        "labels of each client Dirichlet(--alpha); equal sizes",
        lambda c, d: partition.dirichlet(
            d.train["y"], c.num_clients, c.alpha, c.partition_seed, disjoint=True
        ),
    ),
    "dirichlet-by-class": (
        "each label split Dirichlet(--alpha) over the clients; ragged sizes",
        lambda c, d: partition.dirichlet_by_class(
            d.train["y"], c.num_clients, c.alpha, c.partition_seed
        ),
    ),
    "iid": (
        "at random; equal sizes",
        lambda c, d: partition.iid(len(d.train["y"]), c.num_clients, c.partition_seed),
    ),
    "classes": (
        "--classes-per-client labels each; equal sizes",
        lambda c, d: partition.classes_per_client(
            d.train["y"], c.num_clients, c.classes_per_client, c.partition_seed, method="pairs"
        ),
    ),
    "quantity": (
        "labels at random; sizes Dirichlet(--alpha)",
        lambda c, d: partition.quantity_skew(
            len(d.train["y"]), c.num_clients, c.alpha, c.partition_seed
        ),
    ),
    "natural": ("the data set's own clients (writers, ...)", lambda c, d: _natural(d)),
}

# Name -> a comparison.
PRESETS: dict[str, RunConfig] = {
    "quickstart": RunConfig(),
    "asynchronous": RunConfig(
        output=pathlib.Path("results/asynchronous"),
        algorithms=("fedavg", "favano", "quafl", "fedbuff", "fedasync", "async_sgd"),
        clock="geometric",
        num_clients=30,
        local_steps=5,
        horizon=1000.0,
        seeds=3,
    ),
    "femnist": RunConfig(
        output=pathlib.Path("results/femnist"),
        dataset="femnist",
        partition="natural",
        rounds=200,
        local_epochs=1,
        batch_size=20,
        seeds=1,
        eval_every=10,
    ),
}
