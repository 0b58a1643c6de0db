"""Clients of a comparison: the division of the training examples, and the validation part."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from fedjax_sim.cli.config import RunConfig
from fedjax_sim.cli.names import Rows
from fedjax_sim.cli.own_objects import partition_of
from fedjax_sim.data.federated import FederatedData, check_assignment, from_assignment
from fedjax_sim.data.partition import train_test_split
from fedjax_sim.data.source import ClientSource, assigned
from fedjax_sim.datasets import Dataset
from fedjax_sim.execution.devices import workers
from fedjax_sim.execution.offload import OnHost, on_host
from fedjax_sim.execution.placement import ByClient, by_client, make_mesh
from fedjax_sim.types import Device

Examples = dict[str, np.ndarray]  # {"x": [N, ...], "y": [N]}


class Clients(NamedTuple):
    """Clients' examples and their placement."""

    data: FederatedData  # the labels only, if placed by client
    source: FederatedData | ClientSource
    placement: ByClient | OnHost | None
    train: Examples  # training examples without the validation part and the clients held out
    valid: Examples | None
    valid_of_clients: FederatedData | None = None  # the validation part of every client
    held_out: FederatedData | None = None  # clients that never train


def clients(config: RunConfig, dataset: Dataset) -> Clients:
    """Returns the training examples, divided among the clients.

    With ``--validation``, a fraction of every client's examples, or of all, is kept out; with
    ``--held-out-clients``, a fraction of the clients.

    Raises:
        ValueError: a partition that the data set does not admit, strata that the devices do not
            divide, or a fraction that leaves no validation examples.
    """
    seed, fraction = config.partition_seed, config.validation
    kept_out = np.empty(0, np.int64)
    pool = dataset
    if fraction and config.validation_of == "pool":
        rows = np.arange(len(dataset.train["y"]))
        (remaining,), (kept_out,) = train_test_split([rows], fraction, seed)
        pool = _subset(dataset, np.sort(remaining))
    with _named(config):
        assignment, names = partition_of(config)(config, pool)
        check_assignment({"y": pool.train["y"]}, assignment)
    examples = {key: pool.train[key] for key in ("x", "y")}
    chosen = _held_out(config, len(assignment))
    held_out = _part(examples, assignment, names, chosen)
    held_rows = np.concatenate([np.empty(0, np.int64), *(assignment[i] for i in chosen)])
    trained = np.setdiff1d(np.arange(len(assignment)), chosen)
    assignment = [assignment[i] for i in trained]
    names = None if names is None else tuple(names[i] for i in trained)
    valid_of_clients = None
    if fraction and config.validation_of == "clients":
        assignment, parts = train_test_split(assignment, fraction, seed)
        valid_of_clients = from_assignment(examples, parts, names)
        kept_out = np.unique(np.concatenate(parts))
        assignment = [rows[~np.isin(rows, kept_out)] for rows in assignment]
    if fraction and not len(kept_out):
        raise ValueError(
            f"validation is {fraction}, which leaves no validation examples; expected a larger "
            "fraction, or --validation-of pool"
        )
    train, valid = _without(dataset, kept_out)
    if pool is dataset:
        train, _ = _without(dataset, np.union1d(kept_out, held_rows))
    else:  # `train` is the pool
        train = {key: np.delete(values, held_rows, axis=0) for key, values in train.items()}
    placed = _placed(config, examples, assignment, names)
    return Clients(*placed, train, valid, valid_of_clients, held_out)


def _held_out(config: RunConfig, num_clients: int) -> np.ndarray:
    """Returns the clients that never train.

    Raises:
        ValueError: a fraction that leaves no clients, or holds none out.
    """
    fraction = config.held_out_clients
    count = round(fraction * num_clients)
    if fraction and not 0 < count < num_clients:
        raise ValueError(
            f"held_out_clients is {fraction}, which is {count} of {num_clients} clients; expected "
            f"1 .. {num_clients - 1} clients"
        )
    return np.sort(np.random.default_rng(config.partition_seed).permutation(num_clients)[:count])


def _part(
    examples: Examples, assignment: Rows, names: tuple[str, ...] | None, clients: np.ndarray
) -> FederatedData | None:
    """Returns the examples of some clients; None without clients."""
    if not len(clients):
        return None
    ids = None if names is None else tuple(names[i] for i in clients)
    return from_assignment(examples, [assignment[i] for i in clients], ids)


@contextlib.contextmanager
def _named(config: RunConfig) -> Iterator[None]:
    """Context of the partition; its errors begin with the option."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith("partition "):
            raise
        raise ValueError(f"partition is {config.partition!r}: {error}") from error


def _subset(dataset: Dataset, rows: np.ndarray) -> Dataset:
    groups = dataset.train_groups
    return dataset._replace(
        train={key: values[rows] for key, values in dataset.train.items()},
        train_groups=None if groups is None else groups[rows],
    )


def _without(dataset: Dataset, kept_out: np.ndarray) -> tuple[Examples, Examples | None]:
    """Returns the training examples without some rows, and these rows, if there are any."""
    examples = {key: dataset.train[key] for key in ("x", "y")}
    if not len(kept_out):
        return examples, None
    remaining = np.delete(np.arange(len(examples["y"])), kept_out)
    train = {key: values[remaining] for key, values in examples.items()}
    return train, {key: values[kept_out] for key, values in examples.items()}


def _placed(
    config: RunConfig, examples: Examples, assignment: Rows, names: tuple[str, ...] | None
) -> tuple[FederatedData, FederatedData | ClientSource, ByClient | OnHost | None]:
    if config.num_strata is None:
        data = from_assignment(examples, assignment, names)
        if config.examples_memory is None:
            return data, data, None
        memory = int(1e9 * config.examples_memory)
        return data, data, on_host(memory, states=config.states == "host")
    mesh = make_mesh(_owners(config.num_strata))
    placement = by_client(len(assignment), mesh, num_strata=config.num_strata)
    labels = from_assignment({"y": examples["y"]}, assignment, names)
    return labels, assigned(examples, assignment), placement


def _owners(num_strata: int) -> list[Device]:
    """The largest number of devices that divides the strata; all devices of several processes."""
    if jax.process_count() > 1:
        return jax.devices()
    devices = workers()
    return devices[: max(n for n in range(1, len(devices) + 1) if num_strata % n == 0)]
