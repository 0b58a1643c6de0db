"""Rows for testing of every client of a table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedjax_sim as fs
from fedjax_sim.datasets import DataError
from fedjax_sim.datasets.division import report_lost, rows_for_testing


def table_of(sizes, seed=0):
    """Rows of users of the given sizes in random order, with two labels."""
    stream = np.random.default_rng(seed)
    user = stream.permutation(np.repeat(np.arange(len(sizes)), sizes))
    label = stream.integers(0, 2, len(user))
    return {"a": np.arange(len(user), dtype=float), "label": label, "user": user}


def test_all_300_users_are_clients_and_test():
    """Users of 2 to 6 rows: a fifth of each class would leave 298 and 177 of them."""
    sizes = 2 + np.arange(300) % 5
    data = fs.from_table(table_of(sizes), client_column="user")
    for part, rows in (("train", sizes - 1), ("test", np.ones(300, int))):  # round(6 / 5) = 1
        clients = data.clients(part)
        assert clients.num_clients == 300
        by_name = dict(zip(clients.client_ids, clients.sizes.tolist(), strict=True))
        assert [by_name[str(user)] for user in range(300)] == rows.tolist()


def test_users_with_one_row_train_and_are_named():
    sizes = np.array([1, 5, 1, 10] + [1] * 5)
    message = "table: 7 of 9 clients have one row, which is for training, and none for testing: "
    with pytest.warns(UserWarning, match=message) as caught:
        data = fs.from_table(table_of(sizes), client_column="user")
    names = str(caught[0].message).removeprefix(message).split(", ")
    assert len(names) == 6
    assert names[-1] == "..."
    assert set(names[:-1]) < {"0", "2", "4", "5", "6", "7", "8"}
    assert data.clients().num_clients == 9
    test = data.clients("test")
    assert dict(zip(test.client_ids, test.sizes.tolist(), strict=True)) == {
        str(user): {1: 0, 5: 1, 10: 2}[size] for user, size in enumerate(sizes)
    }


@pytest.mark.filterwarnings("ignore:own. .* classes have test rows only")  # another test
@given(st.lists(st.integers(2, 30), min_size=1, max_size=8), st.integers(1, 5), st.integers(0, 9))
def test_rows_of_each_client_are_spread_over_its_labels(sizes, num_labels, seed):
    """Each label of a client has its share of the client's test rows, rounded up or down."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.random.default_rng(seed).integers(0, num_labels, len(groups))
    chosen = rows_for_testing("own", labels, groups, [str(i) for i in range(len(sizes))])
    for client, size in enumerate(sizes):
        own = groups == client
        wanted = max(1, round(size / 5))
        assert chosen[own].sum() == wanted
        for label in range(num_labels):
            rows = own & (labels == label)
            assert abs(chosen[rows].sum() - wanted * rows.sum() / size) < 1


def test_every_row_of_a_client_is_as_likely_for_testing():
    """20,000 clients of 4 rows: 5,000 for each place, with a standard deviation of 61."""
    groups, labels = np.repeat(np.arange(20_000), 4), np.tile([0, 1, 1, 0], 20_000)
    chosen = rows_for_testing("own", labels, groups, ["user"] * 20_000)
    assert (abs(chosen.reshape(-1, 4).sum(0) - 5000) < 5 * 61).all()


def test_the_order_of_clients_is_that_of_the_table():
    table = {"a": [0.0] * 6, "label": [0] * 6, "user": ["eve", "ann", "bob"] * 2}
    assert fs.from_table(table, client_column="user").group_names == ("eve", "ann", "bob")


def test_clients_of_one_row_each_need_test_rows():
    with pytest.raises(DataError, match=r"each of the 4 clients has one row; expected .*two"):
        fs.from_table(table_of([1] * 4), client_column="user")


def test_classes_that_are_left_without_training_rows_are_named():
    """A client of two rows with a label each has one of them for testing."""
    table = {"a": [0.0, 1.0], "label": ["cat", "dog"], "user": ["x", "x"]}
    with pytest.warns(UserWarning, match="table: 1 of 2 classes have test rows only: (cat|dog)$"):
        fs.from_table(table, client_column="user")


def test_a_column_split_that_loses_clients_is_reported():
    table = {"a": range(5), "label": [0] * 5, "user": ["x", "x", "y", "z", "z"]}
    split = np.array(["train", "test", "test", "train", "train"])
    with pytest.warns(UserWarning, match="of 3 clients have no") as caught:
        fs.from_table({**table, "split": split}, client_column="user")
    assert [str(one.message) for one in caught] == [
        "table: 1 of 3 clients have no training rows: y",
        "table: 1 of 3 clients have no test rows: z",
    ]


def test_a_division_between_clients_loses_none():
    report_lost("table", ["x", "y"], ["z"])
