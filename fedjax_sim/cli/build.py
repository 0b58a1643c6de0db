"""From the names of a configuration to the functions they stand for.

Here and in :mod:`fedjax_sim.cli.registry` names become functions, and nowhere else: the
library itself has no registries.  A further model or partition on the command line is a row of a
dict here.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim import models
from fedjax_sim.cli.config import RunConfig
from fedjax_sim.data import partition
from fedjax_sim.data.batches import Batches, epochs, with_replacement
from fedjax_sim.data.federated import FederatedData, from_assignment
from fedjax_sim.data.source import ClientSource, assigned
from fedjax_sim.datasets import Dataset
from fedjax_sim.engine import Weighting, uniform_weights, weight_by_examples
from fedjax_sim.execution import strategies
from fedjax_sim.execution.devices import workers
from fedjax_sim.execution.offload import OnHost, on_host
from fedjax_sim.execution.placement import ByClient, by_client, make_mesh
from fedjax_sim.execution.strategies import Execution
from fedjax_sim.models import Model
from fedjax_sim.models.convolution.lowering import Convolution
from fedjax_sim.timelines import sampling
from fedjax_sim.types import Device, Task, Timeline

# Name -> shape of the examples it takes (None: any) and its builder from (shape, classes, conv).
MODELS: dict[
    str, tuple[tuple[int, ...] | None, Callable[[tuple[int, ...], int, Convolution], Model]]
] = {
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
_AUTO = {
    (8, 8, 1): "mlp_small",
    (28, 28, 1): "femnist_cnn",
    (32, 32, 3): "lenet5",
    (64, 64, 3): "vit_tiny_64",
}

Rows = list[np.ndarray]  # of each client

# Name -> what it is, and (config, dataset) -> rows, with the clients' names if they have some.
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


def model(
    config: RunConfig, dataset: Dataset, conv: Convolution = models.auto
) -> tuple[str, Model]:
    """The model's name and the model; "auto" chooses by the examples' shape.

    Raises:
        ValueError: a model that takes examples of another shape.
    """
    shape = dataset.train["x"].shape[1:]
    name = _AUTO.get(shape, "softmax_regression") if config.model == "auto" else config.model
    taken, build = MODELS[name]
    if taken not in (None, shape):
        raise ValueError(
            f"model is {name!r}, which takes examples of shape {list(taken)}; expected one for "
            f"{list(shape)}, the shape of {dataset.name}"
        )
    return name, _built(build, shape, dataset.num_classes, conv)


@functools.cache
def _built(build: Callable, shape: tuple[int, ...], classes: int, conv: Convolution) -> Model:
    """One object for equal arguments, so that a problem made anew does not compile anew."""
    return build(shape, classes, conv)


@contextlib.contextmanager
def arithmetic(config: RunConfig) -> Iterator[None]:
    """What is made and run within has the configured precision."""
    products = {"float32": "float32", "tf32": "tensorfloat32"}.get(config.precision)
    with contextlib.ExitStack() as settings:
        if products is not None:
            settings.enter_context(jax.default_matmul_precision(products))
        if config.precision == "float64":
            settings.enter_context(jax.enable_x64(True))
        yield


class Clients(NamedTuple):
    """Clients' examples, and where they go."""

    data: FederatedData  # of placed ones the labels only
    source: FederatedData | ClientSource
    placement: ByClient | OnHost | None


def clients(config: RunConfig, dataset: Dataset) -> Clients:
    """The training examples, divided among the clients.

    Raises:
        ValueError: a partition that the data set does not admit, or strata that the devices do not
            divide.
    """
    try:
        found = PARTITIONS[config.partition][1](config, dataset)
    except ValueError as error:
        raise ValueError(f"partition is {config.partition!r}: {error}") from error
    assignment, names = found if isinstance(found, tuple) else (found, None)
    examples = {key: dataset.train[key] for key in ("x", "y")}
    if config.num_strata is None:
        data = from_assignment(examples, assignment, names)
        if config.examples_memory is None:
            return Clients(data, data, None)
        memory = int(1e9 * config.examples_memory)
        return Clients(data, data, on_host(memory, states=config.states == "host"))
    mesh = make_mesh(_owners(config.num_strata))
    placement = by_client(len(assignment), mesh, num_strata=config.num_strata)
    labels = from_assignment({"y": examples["y"]}, assignment, names)
    return Clients(labels, assigned(examples, assignment), placement)


def _owners(num_strata: int) -> list[Device]:
    """As many devices as divide the strata; of several processes all."""
    if jax.process_count() > 1:
        return jax.devices()
    found = workers()
    return found[: max(n for n in range(1, len(found) + 1) if num_strata % n == 0)]


def batches(config: RunConfig) -> Batches:
    """The minibatch rule: local steps if given, else local epochs."""
    if config.local_steps is not None:
        return with_replacement(config.batch_size, config.local_steps)
    return epochs(config.local_epochs, config.batch_size)


def timelines(config: RunConfig, task: Task, keys: Array) -> Timeline:
    """One schedule per key, ``[n, T, S]``."""
    rounds, size, steps = config.rounds, config.cohort_size, task.num_steps
    num_clients = task.num_clients

    def schedule(key: Array) -> Timeline:
        sample_key, dropout_key = jax.random.split(key)
        match config.sampling:
            case "uniform":
                drawn = sampling.uniform(sample_key, rounds, num_clients, size, steps)
            case "weighted":
                sizes = np.asarray(task.num_examples)
                drawn = sampling.weighted(sample_key, rounds, sizes, size, steps)
            case "bernoulli":
                share = size / num_clients
                drawn = sampling.bernoulli(sample_key, rounds, num_clients, share, steps)
            case "cyclic":
                drawn = sampling.cyclic(rounds, num_clients, size, steps)
            case "full":
                drawn = sampling.full(rounds, num_clients, steps)
            case "stratified":
                drawn = sampling.stratified(
                    sample_key, rounds, num_clients, size, steps, num_strata=config.num_strata or 1
                )
        if config.dropout:
            drawn = sampling.dropout(dropout_key, drawn, config.dropout)
        return drawn

    drawn = jax.jit(jax.vmap(schedule))(keys)
    if config.num_strata is None or config.sampling == "stratified":
        return drawn
    return sampling.arrange_by_stratum(drawn, num_clients, config.num_strata)


def execution(config: RunConfig) -> Execution:
    """The strategy that executes a round's clients."""
    match config.execution:
        case "vmapped":
            return strategies.vmapped()
        case "chunked":
            return strategies.chunked(config.chunk_size)
        case "sequential":
            return strategies.sequential()
        case "auto":
            return strategies.auto()


def weighting(config: RunConfig) -> Weighting:
    """The weights of the clients' uploads."""
    return weight_by_examples if config.weighting == "examples" else uniform_weights


def _natural(dataset: Dataset) -> tuple[Rows, tuple[str, ...]]:
    if dataset.train_groups is None or dataset.group_names is None:
        raise ValueError(f"data set {dataset.name} does not say which client an example is from")
    return partition.by_group(np.asarray(dataset.group_names)[dataset.train_groups])
