"""The validation part, clients' own test examples, shifts, and partitions."""

import itertools

import numpy as np
import pytest

from fedjax_sim import datasets
from fedjax_sim.data import partition as partitions
from fedjax_sim.studies.setups.build import of_seed, resolve
from fedjax_sim.studies.setups.checks import check_study
from fedjax_sim.studies.setups.partition import divided
from fedjax_sim.studies.setups.presets import options
from fedjax_sim.studies.setups.problem import clients_of, load_dataset
from fedjax_sim.studies.setups.study import Study

ROWS = 200
DATA = datasets.from_arrays(
    np.arange(ROWS, dtype=np.float32)[:, None],
    np.arange(ROWS) % 5,
    test=([[0.0]], [0]),
    clients=np.arange(ROWS) % 8,
)
VALIDATED = {"num_clients": 8, "validation": 0.25}


def clients(dataset=DATA, own=None, **values):
    """The clients of the options; ``own`` are the rows of a study."""
    return clients_of(Study(options(**values), rows=own), dataset)


def rows(part) -> list[int]:
    return sorted(part["x"][:, 0].astype(int).tolist())


@pytest.mark.parametrize("of", ["clients", "pool"])
@pytest.mark.parametrize("partition", ["iid", "dirichlet-by-class", "natural"])
def test_validation_examples_do_not_train(partition, of):
    result = clients(**VALIDATED, partition=partition, validation_of=of)
    assert result.valid is not None
    trained, valid = rows(result.data.examples), rows(result.valid)
    assert sorted(trained + valid) == list(range(ROWS))
    assert rows(result.train) == trained
    if of == "pool":
        assert len(valid) == ROWS // 4
        return
    whole = clients(partition=partition, num_clients=8)
    assert whole.valid is None
    for client, size in enumerate(np.asarray(whole.data.sizes)):
        before, after = (set(rows(x.data.client(client))) for x in (whole, result))
        assert after < before
        assert len(before) - len(after) == size // 4


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ([np.arange(9), np.arange(8, 12)], "assignment has row 8 in client 0 and"),
        ([np.array([1, 7, 7])], "assignment has row 7 twice"),
        ([np.array([1, 300])], "assignment"),
        ([np.array([0.5])], r"has float64\[1\] for client 0; expected row numbers, integers"),
        ([[[1], [2]]], r"has int64\[2, 1\] for client 0; expected row numbers"),
        (lambda dataset, seed: "rows", "is str; expected a list of row numbers per client"),
    ],
)
def test_rows_of_a_study_are_checked(own, message):
    with pytest.raises(ValueError, match=f"^rows of the study.* {message}"):
        clients(own=own)


def test_a_study_divides_the_examples():
    """By a list, or by a function of the data set and the seed of the partition."""

    def split(dataset, seed):
        return [np.array([i, len(dataset.train["y"]) - seed - i]) for i in range(3)]

    for own in (split, split(DATA, 7)):
        result = clients(own=own, partition_seed=7)
        assert rows(result.data.client(1)) == [1, 192]


def test_each_seed_has_a_partition():
    study = Study(options(partition_per_seed=True, partition_seed=10, seed=3, seeds=4))
    own = of_seed(study, 5).options
    assert (own.population.partition_seed, own.seed, own.seeds) == (15, 5, 1)
    assert not own.population.partition_per_seed


def test_the_clients_shown_of_a_partition_per_seed_are_those_of_the_first_seed():
    """``clients.png`` and config.json show a partition that a seed has."""
    study = Study(options(
        partition_per_seed=True, partition_seed=10, seed=3, seeds=1, num_clients=8, cohort_size=2,
        algorithms=("fedavg",), model="softmax_regression",
    ))  # fmt: skip
    first = clients_of(of_seed(study, 3), load_dataset(study)).data
    shown = resolve(study).problem.parts.data
    np.testing.assert_array_equal(shown.examples["y"], first.examples["y"])
    np.testing.assert_array_equal(shown.sizes, first.sizes)


def test_the_partition_seeds_of_all_seeds_are_32_bit_words():
    values = {"partition_per_seed": True, "seed": 3, "seeds": 4}
    study = Study(options(**values, partition_seed=2**32 - 7))
    check_study(study)
    assert of_seed(study, 6).options.population.partition_seed == 2**32 - 1
    message = "partition_seed is 4294967290; expected .* 4294967289 with --partition-per-seed"
    with pytest.raises(ValueError, match=message):
        check_study(Study(options(**values, partition_seed=2**32 - 6)))


def own_rows(data) -> list[list[int]]:
    return [rows(data.client(i)) for i in range(data.num_clients)]


@pytest.mark.parametrize("of", ["clients", "pool"])
@pytest.mark.parametrize("partition", ["iid", "natural", "pfllib-dir"])
def test_every_client_has_test_examples(partition, of):
    """Training and test examples are divided together; nothing is in two parts."""
    data = DATA._replace(test_groups=np.zeros(1, np.int32))
    data.test["x"][:] = ROWS
    result = clients(
        data, **VALIDATED, partition=partition, test_of="clients", validation_of=of,
        held_out_clients=0.25,
    )  # fmt: skip
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
    result = clients(
        partition="pfllib-dir", test_of="clients", num_clients=5, alpha=0.5, partition_seed=1
    )
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
def test_a_shift_belongs_to_a_client(shift):
    """Training, test and validation parts of one client are shifted alike; held-out ones, too."""
    values = {
        "partition": "iid", "num_clients": 8, "test_of": "clients", "validation": 0.25,
        "held_out_clients": 0.25,
    }  # fmt: skip
    plain = clients(image_data(), **values)
    values |= {"shift": shift} | ({"shift.variance": 4.0} if shift == "noise" else {})
    result = clients(image_data(), **values)
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
    again = clients(image_data(), **values)
    np.testing.assert_array_equal(result.data.examples["x"], again.data.examples["x"])


def test_parts_of_clients_have_noise_of_their_own():
    """Held-out clients' draws are not those of the clients that train."""
    values = {
        "partition": "iid", "num_clients": 8, "test_of": "clients", "validation": 0.25,
        "held_out_clients": 0.25,
    }  # fmt: skip
    plain = clients(image_data(), **values)
    result = clients(image_data(), **values | {"shift": "noise", "shift.variance": 4.0})
    parts = ("data", "test_of_clients", "valid_of_clients", "held_out", "train_of_held_out")
    drawn = {}
    for name in parts:
        before, after = getattr(plain, name).examples["x"], getattr(result, name).examples["x"]
        drawn[name] = (after - before / np.float32(255)).reshape(len(after), -1)
    for one, other in itertools.combinations(parts, 2):
        rows = min(len(drawn[one]), len(drawn[other]))
        both = np.corrcoef(drawn[one][:rows].ravel(), drawn[other][:rows].ravel())
        # At least 4 images of 16 values; draws of one stream have a correlation above .9.
        assert abs(both[0, 1]) < 0.5, (one, other)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shift": "rotation"}, "shift is 'rotation': 'x' has shape .200, 1."),
        ({"partition": "pachinko"}, "partition is 'pachinko': data set own has no coarse labels"),
        ({"partition": "shards", "num_clients": 101}, "partition is 'shards': num_clients is 101"),
        (
            {"test_of": "clients", "test_fraction": 0.01},
            "test_fraction is 0.01, which leaves no test examples",
        ),
    ],
)
def test_options_that_the_data_do_not_admit(values, message):
    with pytest.raises(ValueError, match=message):
        clients(**{"partition": "iid", "num_clients": 8} | values)


LABELS = DATA.train["y"]
# The rule of every option, called as the library's function.
RULES = [
    (
        {"partition": "dirichlet", "alpha": 0.5},
        lambda: partitions.dirichlet(LABELS, 4, 0.5, 3, disjoint=True),
    ),
    (
        {"partition": "dirichlet-by-class", "alpha": 0.5},
        lambda: partitions.dirichlet_by_class(LABELS, 4, 0.5, 3),
    ),
    ({"partition": "iid"}, lambda: partitions.iid(ROWS, 4, 3)),
    ({"partition": "contiguous"}, lambda: np.split(np.arange(ROWS), 4)),
    (
        {"partition": "classes"},
        lambda: partitions.classes_per_client(LABELS, 4, 2, 3, method="pairs"),
    ),
    (
        {"partition": "label-quantity", "classes_per_client": 3},
        lambda: partitions.label_quantity(LABELS, 4, 3, 3),
    ),
    ({"partition": "shards", "classes_per_client": 5}, lambda: partitions.shards(LABELS, 4, 5, 3)),
    ({"partition": "quantity", "alpha": 0.5}, lambda: partitions.quantity_skew(ROWS, 4, 0.5, 3)),
    ({"partition": "exponential"}, lambda: partitions.exponential(ROWS, 4, 3)),
    (
        {"partition": "log-normal", "size_sigma": 0.5},
        lambda: partitions.log_normal(ROWS, 4, 0.5, 3),
    ),
    (
        {"partition": "pfllib-dir", "alpha": 0.5},
        lambda: partitions.pfllib_dirichlet(LABELS, 4, 0.5, RANDOM()),
    ),
    ({"partition": "pfllib-pat"}, lambda: partitions.pfllib_pathological(LABELS, 4, 2, RANDOM())),
    (
        {"partition": "pfllib-pat", "balanced": True},
        lambda: partitions.pfllib_pathological(LABELS, 4, 2, RANDOM(), balance=True),
    ),
    (
        {"partition": "pfllib-exdir", "alpha": 100.0},
        lambda: partitions.pfllib_extended_dirichlet(LABELS, 4, 2, 100.0, RANDOM()),
    ),
    ({"partition": "natural"}, lambda: partitions.by_group(np.arange(ROWS) % 8)[0]),
]


def RANDOM():
    return np.random.RandomState(3)


@pytest.mark.parametrize(("values", "rule"), RULES, ids=[str(values) for values, _ in RULES])
def test_partitions_are_the_functions_of_the_library(values, rule):
    run = options(**values)
    found = divided(run.partition, DATA, 4, 3, None)
    for ours, expected in zip(found.rows, rule(), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_natural_clients_are_in_the_order_of_their_names():
    """As text; a name that two groups have is one client, and groups without examples are none."""
    data = DATA._replace(
        train_groups=np.array([0, 1, 2, 1, 3] * 40, np.int32),
        group_names=("10", "9", "b", "10", "unseen"),
    )
    result = clients(data, partition="natural")
    assert result.data.client_ids == ("10", "9", "b")
    assert rows(result.data.client(0)) == [i for i in range(ROWS) if i % 5 in (0, 4)]
    assert rows(result.data.client(1)) == [i for i in range(ROWS) if i % 5 in (1, 3)]
