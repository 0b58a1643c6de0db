"""Clients of a comparison: the division of the training examples, and the validation part."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from fedjax_sim.data import (
    ClientSource,
    FederatedData,
    add_noise,
    assigned,
    check_assignment,
    check_disjoint,
    from_assignment,
    hold_out,
    noise_levels,
    rotate,
    train_test_split,
)
from fedjax_sim.datasets import Dataset, merged
from fedjax_sim.engine import ByClient, OnHost, by_client, make_mesh, on_host, workers
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.own_objects import partition_of
from fedjax_sim.studies.setups.partitions import Rows
from fedjax_sim.types import Device

Examples = dict[str, np.ndarray]  # {"x": [N, ...], "y": [N]}


class Clients(NamedTuple):
    """Clients' examples and their placement."""

    data: FederatedData  # the labels only, if placed by client
    source: FederatedData | ClientSource
    placement: ByClient | OnHost | None
    train: Examples  # training examples without the validation part and the clients held out
    test: Examples  # of the data set, or of all clients that train
    valid: Examples | None = None
    test_of_clients: FederatedData | None = None  # clients' own test examples
    valid_of_clients: FederatedData | None = None  # the validation part of every client
    held_out: FederatedData | None = None  # clients that never train: what they are evaluated on
    train_of_held_out: FederatedData | None = None  # the rest of it, with clients' own test parts
    held_out_clients: tuple[int, ...] = ()  # their numbers in the partition


def clients(config: RunConfig, dataset: Dataset) -> Clients:
    """Returns the training examples, divided among the clients.

    With ``--test-of clients``, training and test examples are divided together, and a fraction of
    every client's is for testing.  With ``--validation``, a fraction of every client's training
    examples, or of all, is kept out; with ``--held-out-clients``, a fraction of the clients.
    ``--feature-shift`` then changes the examples of each client.

    Raises:
        ValueError: a partition or a feature shift that the data set does not admit, strata that the
            devices do not divide, or a fraction that leaves no test or validation examples.
    """
    seed, fraction = config.partition_seed, config.validation
    own_tests = config.test_of == "clients"
    if own_tests:
        dataset = merged(dataset)
    kept_out = np.empty(0, np.int64)
    pool = dataset
    if fraction and config.validation_of == "pool":
        rows = np.arange(len(dataset.train["y"]))
        (remaining,), (kept_out,) = train_test_split([rows], fraction, seed)
        pool = _subset(dataset, np.sort(remaining))
    with _named(config):
        assignment, names, tests = partition_of(config)(config, pool)
        check_assignment({"y": pool.train["y"]}, assignment, disjoint=False)
        check_disjoint(assignment)
    population = _Population(config, {key: pool.train[key] for key in ("x", "y")}, names)
    test, tested = dataset.test, np.empty(0, np.int64)
    if own_tests:
        assignment, tests, tested = _own_tests(config, assignment, tests)
    everyone = np.arange(len(assignment))
    chosen = _held_out(config, len(assignment))
    trained = np.setdiff1d(everyone, chosen)
    evaluated = assignment if tests is None else tests
    held_out = population.part(evaluated, chosen, "test")
    train_of_held_out = population.part(assignment, chosen, "train") if own_tests else None
    test_of_clients = None if tests is None else population.part(tests, trained, "test")
    if test_of_clients is not None:
        test = test_of_clients.examples
    held_rows = np.concatenate([np.empty(0, np.int64), *(assignment[i] for i in chosen)])
    valid_of_clients = None
    if fraction and config.validation_of == "clients":
        remaining, parts = train_test_split([assignment[i] for i in trained], fraction, seed)
        valid_of_clients = population.part(_at(parts, trained, everyone), trained, "valid")
        # A row of several clients that is drawn for one of them trains none of them.
        kept_out = np.unique(np.concatenate(parts))
        assignment = _at(remaining, trained, everyone)
    if fraction and not len(kept_out):
        raise ValueError(
            f"validation is {fraction}, which leaves no validation examples; expected a larger "
            "fraction, or --validation-of pool"
        )
    train, valid = _without(dataset, kept_out)
    others = np.union1d(held_rows, tested)
    if pool is dataset:
        train, _ = _without(dataset, np.union1d(kept_out, others))
    else:  # `train` is the pool
        train = {key: np.delete(values, others, axis=0) for key, values in train.items()}
    placed = _placed(population, assignment, trained)
    if config.feature_shift != "none":
        train = placed[0].examples
        valid = valid if valid_of_clients is None else valid_of_clients.examples
    return Clients(
        *placed, train, test, valid, test_of_clients, valid_of_clients, held_out,
        train_of_held_out, tuple(chosen.tolist()),
    )  # fmt: skip


class _Population(NamedTuple):
    """All clients of a partition, whose examples may be shifted."""

    config: RunConfig
    examples: Examples
    names: tuple[str, ...] | None

    def part(self, rows: Rows, chosen: np.ndarray, name: str) -> FederatedData | None:
        """Returns the examples of some clients; None without clients.

        Args:
            rows: of all clients.
            chosen: numbers of the clients.
            name: train, valid or test, whose noise differs.
        """
        if not len(chosen):
            return None
        ids = None if self.names is None else tuple(self.names[i] for i in chosen)
        data = from_assignment(self.examples, [rows[i] for i in chosen], ids)
        try:
            return self._shifted(data, chosen, len(rows), name)
        except ValueError as error:
            raise ValueError(f"feature_shift is {self.config.feature_shift}: {error}") from error

    def _shifted(
        self, data: FederatedData, chosen: np.ndarray, num_clients: int, name: str
    ) -> FederatedData:
        if self.config.feature_shift == "rotation":
            return rotate(data, chosen % 4)
        if self.config.feature_shift == "noise":
            std = noise_levels(self.config.noise, num_clients)[chosen]
            return add_noise(data, std, [self.config.partition_seed, *name.encode()])
        return data


def _own_tests(
    config: RunConfig, assignment: Rows, tests: Rows | None
) -> tuple[Rows, Rows, np.ndarray]:
    """Returns the training and test rows of every client, and all test rows.

    Raises:
        ValueError: no test examples.
    """
    if tests is None:
        stream = np.random.default_rng([config.partition_seed, 1])
        assignment, tests = train_test_split(assignment, config.test_fraction, stream)
    tested = np.unique(np.concatenate(tests))
    if not len(tested):
        raise ValueError(
            f"test_fraction is {config.test_fraction}, which leaves no test examples; expected a "
            "larger fraction, or fewer clients"
        )
    return assignment, tests, tested


def _at(parts: Rows, clients: np.ndarray, everyone: np.ndarray) -> Rows:
    """Returns the rows of some clients at their numbers; the others have none."""
    placed = [np.empty(0, np.int64) for _ in everyone]
    for client, rows in zip(clients, parts, strict=True):
        placed[client] = rows
    return placed


def _held_out(config: RunConfig, num_clients: int) -> np.ndarray:
    """Returns the clients that never train.

    Raises:
        ValueError: a fraction that leaves no clients, or holds none out.
    """
    if not config.held_out_clients:
        return np.empty(0, np.int64)
    try:
        return hold_out(num_clients, config.held_out_clients, config.partition_seed)[1]
    except ValueError as error:
        raise ValueError(f"held_out_clients{str(error).removeprefix('fraction')}") from error


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
    population: _Population, assignment: Rows, trained: np.ndarray
) -> tuple[FederatedData, FederatedData | ClientSource, ByClient | OnHost | None]:
    config, examples = population.config, population.examples
    if config.num_strata is None:
        data = population.part(assignment, trained, "train")
        assert data is not None  # some clients train
        if config.examples_memory is None:
            return data, data, None
        memory = int(1e9 * config.examples_memory)
        return data, data, on_host(memory, states=config.states == "host")
    mesh = make_mesh(_owners(config.num_strata))
    placement = by_client(len(trained), mesh, num_strata=config.num_strata)
    labels = population._replace(examples={"y": examples["y"]}).part(assignment, trained, "train")
    assert labels is not None
    return labels, assigned(examples, [assignment[i] for i in trained]), placement


def _owners(num_strata: int) -> list[Device]:
    """The largest number of devices that divides the strata; all devices of several processes."""
    if jax.process_count() > 1:
        return jax.devices()
    devices = workers()
    return devices[: max(n for n in range(1, len(devices) + 1) if num_strata % n == 0)]
