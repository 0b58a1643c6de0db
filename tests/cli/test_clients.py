"""The validation part, and partitions of the user."""

import dataclasses

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.cli.build import of_seed
from fedjax_sim.cli.clients import clients
from fedjax_sim.cli.config import RunConfig

ROWS = 200
DATA = datasets.from_arrays(
    np.arange(ROWS, dtype=np.float32)[:, None],
    np.arange(ROWS) % 5,
    test=([[0.0]], [0]),
    clients=np.arange(ROWS) % 8,
)
CONFIG = RunConfig(num_clients=8, validation=0.25, alpha=1.0)


def rows(part) -> list[int]:
    return sorted(part["x"][:, 0].astype(int).tolist())


@pytest.mark.parametrize("of", ["clients", "pool"])
@pytest.mark.parametrize("partition", ["iid", "dirichlet-by-class", "natural"])
def test_validation_examples_do_not_train(partition, of):
    config = dataclasses.replace(CONFIG, partition=partition, validation_of=of)
    result = clients(config, DATA)
    assert result.valid is not None
    trained, valid = rows(result.data.examples), rows(result.valid)
    assert sorted(trained + valid) == list(range(ROWS))
    assert rows(result.train) == trained
    if of == "pool":
        assert len(valid) == ROWS // 4
        return
    whole = clients(dataclasses.replace(config, validation=0.0), DATA)
    assert whole.valid is None
    for client, size in enumerate(np.asarray(whole.data.sizes)):
        before, after = (set(rows(x.data.client(client))) for x in (whole, result))
        assert after < before
        assert len(before) - len(after) == size // 4


def test_a_row_of_several_clients_trains_nobody_if_it_is_for_validation():
    config = RunConfig(validation=0.5, partition=lambda: [np.arange(40)] * 3)  # type: ignore
    result = clients(config, DATA)
    assert result.valid is not None
    assert not set(rows(result.valid)) & set(rows(result.data.examples))


def test_functions_divide_with_names():
    def split(num_clients, seed):
        return [np.array([i, i + seed]) for i in range(num_clients)], ["a", "b", "c"]

    config = RunConfig(partition=split, num_clients=3, partition_seed=7)  # type: ignore
    result = clients(config, DATA)
    assert result.data.client_ids == ("a", "b", "c")
    assert rows(result.data.client(1)) == [1, 8]


def test_each_seed_has_a_partition():
    config = RunConfig(partition_per_seed=True, partition_seed=10, seed=3, seeds=4)
    own = of_seed(config, 5)
    assert (own.partition_seed, own.seed, own.seeds, own.partition_per_seed) == (15, 5, 1, False)
