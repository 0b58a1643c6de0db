"""The validation part, clients' own test examples, feature shift, and partitions of the user."""

import dataclasses

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.data import partition as partitions
from fedjax_sim.studies.setups.build import check, of_seed, resolve
from fedjax_sim.studies.setups.clients import clients
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.studies.setups.own_objects import load_dataset

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


@pytest.mark.parametrize(
    ("shared", "where"), [([range(9), range(8, 12)], "8 in client 0 and"), ([[1, 7, 7]], "7 twice")]
)
def test_a_row_of_several_clients_is_refused(shared, where):
    config = RunConfig(partition=lambda: [np.array(part) for part in shared])  # type: ignore
    with pytest.raises(ValueError, match=f"assignment has row {where}.*expected every row at most"):
        clients(config, DATA)


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


def test_the_clients_shown_of_a_partition_per_seed_are_those_of_the_first_seed():
    """``clients.png`` and config.json show a partition that a seed has."""
    config = RunConfig(
        partition_per_seed=True, partition_seed=10, seed=3, seeds=1, num_clients=8, cohort_size=2,
        algorithms=("fedavg",), model="softmax_regression",
    )  # fmt: skip
    first = clients(of_seed(config, 3), load_dataset(config)).data
    shown = resolve(config).problem
    np.testing.assert_array_equal(shown.data.examples["y"], first.examples["y"])
    np.testing.assert_array_equal(shown.data.sizes, first.sizes)


def test_the_partition_seeds_of_all_seeds_are_32_bit_words():
    config = RunConfig(partition_per_seed=True, partition_seed=2**32 - 7, seed=3, seeds=4)
    check(config)
    assert of_seed(config, 6).partition_seed == 2**32 - 1
    message = "partition_seed is 4294967290; expected .* 4294967289 with --partition-per-seed"
    with pytest.raises(ValueError, match=message):
        check(dataclasses.replace(config, partition_seed=2**32 - 6))


def own_rows(data) -> list[list[int]]:
    return [rows(data.client(i)) for i in range(data.num_clients)]


@pytest.mark.parametrize("of", ["clients", "pool"])
@pytest.mark.parametrize("partition", ["iid", "natural", "pfllib-dir"])
def test_every_client_has_test_examples(partition, of):
    """Training and test examples are divided together; nothing is in two parts."""
    config = dataclasses.replace(
        CONFIG, partition=partition, test_of="clients", validation_of=of, held_out_clients=0.25
    )
    data = DATA._replace(test_groups=np.zeros(1, np.int32))
    data.test["x"][:] = ROWS
    result = clients(config, data)
    own = result.test_of_clients
    assert result.data.num_clients == own.num_clients == 6
    assert result.held_out.num_clients == result.train_of_held_out.num_clients == 2
    assert len(result.held_out_clients) == 2
    parts = [
        result.data.examples, own.examples, result.valid, result.held_out.examples,
        result.train_of_held_out.examples,
    ]  # fmt: skip
    assert sorted(row for part in parts for row in rows(part)) == list(range(ROWS + 1))
    assert rows(result.test) == rows(own.examples)
    assert rows(result.train) == rows(result.data.examples)
    if of == "pool":
        for i in range(6):
            sizes = len(rows(result.data.client(i))), len(rows(own.client(i)))
            assert sizes[1] == (sum(sizes) + 3 * partition.startswith("pfllib")) // 4


def test_pfllib_has_one_stream_for_partition_and_test_examples():
    config = RunConfig(
        partition="pfllib-dir", test_of="clients", num_clients=5, alpha=0.5, partition_seed=1
    )
    result = clients(config, DATA)
    random = np.random.RandomState(1)
    labels = np.append(DATA.train["y"], DATA.test["y"])
    train, test = partitions.pfllib_split(
        partitions.pfllib_dirichlet(labels, 5, 0.5, random), random
    )
    values = np.append(DATA.train["x"], DATA.test["x"])
    for ours, expected in ((result.data, train), (result.test_of_clients, test)):
        assert own_rows(ours) == [sorted(values[own].astype(int)) for own in expected]


def image_data(dtype=np.uint8):
    images = np.random.default_rng(0).integers(256, size=(80, 4, 4)).astype(dtype)
    return datasets.from_arrays(images, np.arange(80) % 4)


@pytest.mark.parametrize("shift", ["rotation", "noise"])
def test_feature_shift_belongs_to_a_client(shift):
    """Training, test and validation parts of one client are shifted alike; held-out ones, too."""
    config = RunConfig(
        partition="iid", num_clients=8, test_of="clients", validation=0.25, held_out_clients=0.25,
        feature_shift=shift, noise=4.0,
    )  # fmt: skip
    plain = clients(dataclasses.replace(config, feature_shift="none"), image_data())
    result = clients(config, image_data())
    kept = [i for i in range(8) if i not in result.held_out_clients]
    for name, numbers in {
        "data": kept, "test_of_clients": kept, "valid_of_clients": kept,
        "held_out": result.held_out_clients, "train_of_held_out": result.held_out_clients,
    }.items():  # fmt: skip
        before, after = getattr(plain, name), getattr(result, name)
        for place, number in enumerate(numbers):
            x, y = before.client(place)["x"], after.client(place)["x"]
            if shift == "rotation":
                np.testing.assert_array_equal(y, np.rot90(x, number, axes=(1, 2)))
            else:  # 16 values per image and at least one image
                std = (y - x / np.float32(255)).std()
                assert std == pytest.approx(np.sqrt(4.0 * (number + 1) / 8), rel=0.7)
    for name in ("train", "test", "valid"):
        assert getattr(result, name)["x"].dtype == (np.uint8 if shift == "rotation" else np.float32)
    assert result.train is result.data.examples
    again = clients(config, image_data())
    np.testing.assert_array_equal(result.data.examples["x"], again.data.examples["x"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_shift": "rotation"}, "feature_shift is rotation: 'x' has shape .200, 1."),
        ({"partition": "pachinko"}, "partition is 'pachinko': data set own has no coarse labels"),
        ({"partition": "shards", "num_clients": 101}, "partition is 'shards': num_clients is 101"),
        (
            {"test_of": "clients", "test_fraction": 0.01},
            "test_fraction is 0.01, which leaves no test examples",
        ),
    ],
)
def test_options_that_the_data_do_not_admit(options, message):
    config = dataclasses.replace(RunConfig(partition="iid", num_clients=8), **options)
    with pytest.raises(ValueError, match=message):
        clients(config, DATA)


def test_a_plain_text_is_divided_into_its_parts(tmp_path):
    """The clients' windows, one after the other, are the text; the last tenth is for testing."""
    text = "".join(chr(97 + i * i % 13) for i in range(2000))
    (tmp_path / "some.txt").write_text(text)
    config = RunConfig(dataset=str(tmp_path / "some.txt"), partition="contiguous", num_clients=3)
    dataset = load_dataset(config)
    assert (dataset.name, dataset.train["x"].shape) == ("some", (22, 80))
    data = clients(config, dataset).data
    assert data.sizes.tolist() == [8, 7, 7]
    assert dataset.class_names is not None
    read = "".join(dataset.class_names[i] for i in data.examples["x"].ravel())
    assert read == text[: 22 * 80]
    np.testing.assert_array_equal(data.examples["y"][:, :-1], data.examples["x"][:, 1:])
    with pytest.raises(ValueError, match="'dirichlet': data set some has a label per position; ex"):
        clients(dataclasses.replace(config, partition="dirichlet"), dataset)


def test_texts_that_cannot_be_read_are_refused(tmp_path):
    path = tmp_path / "some.txt"
    with pytest.raises(ValueError, match=r"some.txt cannot be read .*; expected plain text, UTF-8"):
        load_dataset(RunConfig(dataset=str(path)))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"some.txt cannot be read .*; expected plain text, UTF-8"):
        load_dataset(RunConfig(dataset=str(path)))
    path.write_text("short")
    with pytest.raises(ValueError, match=r"some.txt: .* has [45] characters; expected at least"):
        load_dataset(RunConfig(dataset=str(path)))
