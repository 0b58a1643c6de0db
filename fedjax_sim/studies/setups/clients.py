"""Clients of a comparison: the division of the training examples, and the validation part."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np
import pydantic

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
from fedjax_sim.studies.setups.fields import Count, Fraction, Inside, NotNegative, Seed, group
from fedjax_sim.studies.setups.partition import Division, Partition, Rows, divided
from fedjax_sim.types import Device

Examples = dict[str, np.ndarray]  # {"x": [N, ...], "y": [N]}


@group
class NoShift:
    """Examples as they are."""

    kind: Literal["none"] = "none"


@group
class Rotation:
    """Client i's images are rotated by i mod 4 quarter turns."""

    kind: Literal["rotation"] = "rotation"


@group
class Noise:
    """Gaussian noise of variance i / M times the last client's, for client i of M."""

    variance: NotNegative = 0.1
    """Variance of the noise of the last client, for features in [0, 1]."""
    kind: Literal["noise"] = "noise"


Shift = Annotated[NoShift | Rotation | Noise, pydantic.Field(discriminator="kind")]


@group
class Population:
    """Numbers of clients, and the examples that test and validate."""

    num_clients: Count = 100
    """Number of clients (not used by partition:natural)."""
    partition_seed: Seed = 0
    """Seed of the partition, which is the same for all seeds of the runs."""
    partition_per_seed: bool = False
    """Divide the examples once per seed, with the partition seed plus the seed; the seeds then run
    one after the other."""
    test_of: Literal["dataset", "clients"] = "dataset"
    """Test examples: those of the data set; or every client's own (as in PFLlib): training and test
    examples are merged, divided among the clients, and a fraction of each client's is kept for
    testing."""
    test_fraction: Inside = 0.25
    """With --test-of clients: fraction of a client's examples that is for testing."""
    validation: Fraction = 0.0
    """Fraction of the training examples that is kept out of training and evaluated as valid/loss
    and valid/accuracy, so that rates need not be chosen on the test examples."""
    validation_of: Literal["clients", "pool"] = "clients"
    """Draw the validation examples from every client, or from all examples before they are
    divided."""
    held_out_clients: Fraction = 0.0
    """Fraction of the clients that never train, drawn with the partition's seed; they are evaluated
    as held_out, and one by one with --per-client or --personal."""


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


def clients(
    population: Population,
    partition: Partition | Callable[[Dataset, int], Division],
    shift: Shift,
    storage: "Placement",
    dataset: Dataset,
) -> Clients:
    """Returns the training examples, divided among the clients.

    With ``test_of="clients"``, training and test examples are divided together, and a fraction of
    every client's is for testing.  With ``validation``, a fraction of every client's training
    examples, or of all, is kept out; with ``held_out_clients``, a fraction of the clients.
    The shift then changes the examples of each client.
    """
    seed, fraction = population.partition_seed, population.validation
    own_tests = population.test_of == "clients"
    dataset, pool, kept_out = pool_of(population, dataset)
    with _named(partition):
        assignment, names, tests = (
            partition(pool, seed)
            if callable(partition)
            else divided(
                partition,
                pool,
                population.num_clients,
                seed,
                population.test_fraction if own_tests else None,
            )
        )
        check_assignment({"y": pool.train["y"]}, assignment, disjoint=False)
        check_disjoint(assignment)
    examples = {key: pool.train[key] for key in ("x", "y")}
    everybody = _Everybody(examples, names, shift, seed)
    test, tested = dataset.test, np.empty(0, np.int64)
    if own_tests:
        assignment, tests, tested = _own_tests(population, assignment, tests)
    everyone = np.arange(len(assignment))
    chosen = _held_out(population, len(assignment))
    trained = np.setdiff1d(everyone, chosen)
    evaluated = assignment if tests is None else tests
    held_out = everybody.part(evaluated, chosen, "held-out test")
    train_of_held_out = everybody.part(assignment, chosen, "held-out train") if own_tests else None
    test_of_clients = None if tests is None else everybody.part(tests, trained, "test")
    if test_of_clients is not None:
        test = test_of_clients.examples
    held_rows = np.concatenate([np.empty(0, np.int64), *(assignment[i] for i in chosen)])
    valid_of_clients = None
    if fraction and population.validation_of == "clients":
        remaining, parts = train_test_split([assignment[i] for i in trained], fraction, seed)
        valid_of_clients = everybody.part(_at(parts, trained, everyone), trained, "valid")
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
    placed = _placed(everybody, storage, assignment, trained)
    if not isinstance(shift, NoShift):
        train = placed[0].examples
        valid = valid if valid_of_clients is None else valid_of_clients.examples
    return Clients(
        *placed, train, test, valid, test_of_clients, valid_of_clients, held_out,
        train_of_held_out, tuple(chosen.tolist()),
    )  # fmt: skip


def pool_of(population: Population, dataset: Dataset) -> tuple[Dataset, Dataset, np.ndarray]:
    """Returns all examples, those that are divided, and the rows of a validation part of the pool.

    Those that are divided are without that part; clients' own test examples are among them.
    """
    if population.test_of == "clients":
        dataset = merged(dataset)
    if not population.validation or population.validation_of != "pool":
        return dataset, dataset, np.empty(0, np.int64)
    rows = np.arange(len(dataset.train["y"]))
    (remaining,), (kept_out,) = train_test_split(
        [rows], population.validation, population.partition_seed
    )
    return dataset, _subset(dataset, np.sort(remaining)), kept_out


class Placement(NamedTuple):
    """Storage of the clients' examples and states."""

    num_strata: int | None = None
    examples_memory: float | None = None  # gigabytes
    states_on_host: bool = False


class _Everybody(NamedTuple):
    """All clients of a partition, whose examples may be shifted."""

    examples: Examples
    names: tuple[str, ...] | None
    shift: Shift
    seed: int

    def part(self, rows: Rows, chosen: np.ndarray, name: str) -> FederatedData | None:
        """Returns the examples of some clients; None without clients."""
        if not len(chosen):
            return None
        ids = None if self.names is None else tuple(self.names[i] for i in chosen)
        data = from_assignment(self.examples, [rows[i] for i in chosen], ids)
        try:
            return self._shifted(data, chosen, len(rows), name)
        except ValueError as error:
            raise ValueError(f"shift is {self.shift.kind!r}: {error}") from error

    def _shifted(
        self, data: FederatedData, chosen: np.ndarray, num_clients: int, name: str
    ) -> FederatedData:
        match self.shift:
            case NoShift():
                return data
            case Rotation():
                return rotate(data, chosen % 4)
            case Noise():
                std = noise_levels(self.shift.variance, num_clients)[chosen]
                return add_noise(data, std, [self.seed, *name.encode()])


def _own_tests(
    population: Population, assignment: Rows, tests: Rows | None
) -> tuple[Rows, Rows, np.ndarray]:
    """Returns the training and test rows of every client, and all test rows."""
    if tests is None:
        stream = np.random.default_rng([population.partition_seed, 1])
        assignment, tests = train_test_split(assignment, population.test_fraction, stream)
    tested = np.unique(np.concatenate(tests))
    if not len(tested):
        raise ValueError(
            f"test_fraction is {population.test_fraction}, which leaves no test examples; expected "
            "a larger fraction, or fewer clients"
        )
    return assignment, tests, tested


def _at(parts: Rows, clients: np.ndarray, everyone: np.ndarray) -> Rows:
    """Returns the rows of some clients at their numbers; the others have none."""
    placed = [np.empty(0, np.int64) for _ in everyone]
    for client, rows in zip(clients, parts, strict=True):
        placed[client] = rows
    return placed


def _held_out(population: Population, num_clients: int) -> np.ndarray:
    """Returns the clients that never train."""
    if not population.held_out_clients:
        return np.empty(0, np.int64)
    try:
        return hold_out(num_clients, population.held_out_clients, population.partition_seed)[1]
    except ValueError as error:
        raise ValueError(f"held_out_clients{str(error).removeprefix('fraction')}") from error


@contextlib.contextmanager
def _named(partition: Partition | Callable[[Dataset, int], Division]) -> Iterator[None]:
    """Context of the partition; its errors begin with the option, or with the part of a study."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(("partition ", "rows of the study")):
            raise
        own = callable(partition)
        name = "rows of the study" if own else f"partition is {partition.kind!r}"
        raise ValueError(f"{name}: {error}") from error


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
    everybody: _Everybody, storage: Placement, assignment: Rows, trained: np.ndarray
) -> tuple[FederatedData, FederatedData | ClientSource, ByClient | OnHost | None]:
    examples = everybody.examples
    if storage.num_strata is None:
        data = everybody.part(assignment, trained, "train")
        assert data is not None  # some clients train
        if storage.examples_memory is None:
            return data, data, None
        memory = int(1e9 * storage.examples_memory)
        return data, data, on_host(memory, states=storage.states_on_host)
    mesh = make_mesh(_owners(storage.num_strata))
    placement = by_client(len(trained), mesh, num_strata=storage.num_strata)
    labels = everybody._replace(examples={"y": examples["y"]}).part(assignment, trained, "train")
    assert labels is not None
    return labels, assigned(examples, [assignment[i] for i in trained]), placement


def _owners(num_strata: int) -> list[Device]:
    """The largest number of devices that divides the strata; all devices of several processes."""
    if jax.process_count() > 1:
        return jax.devices()
    devices = workers()
    return devices[: max(n for n in range(1, len(devices) + 1) if num_strata % n == 0)]
