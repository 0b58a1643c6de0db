"""Data sets from arrays, lists and tables."""

import numpy as np
import pytest

from fedjax_sim.datasets import from_arrays, read_table, to_channels_last
from fedjax_sim.datasets.arrays import check_dataset
from fedjax_sim.datasets.dataset import DataError, Dataset

RNG = np.random.default_rng(0)


def test_text_labels_and_clients_are_numbered_and_remembered():
    labels = ["eel", "cat", "dog", "cat", "eel"] * 10
    clients = [f"writer {i % 7}" for i in range(50)]
    data = from_arrays([[float(i)] for i in range(50)], labels, clients=clients)
    assert data.class_names == ("cat", "dog", "eel")
    for part, groups in ((data.train, data.train_groups), (data.test, data.test_groups)):
        rows = part["x"][:, 0].astype(int)
        assert [data.class_names[y] for y in part["y"]] == [labels[i] for i in rows]
        assert [data.group_names[g] for g in groups] == [clients[i] for i in rows]
    together = np.concatenate([data.train["x"], data.test["x"]])
    assert sorted(together[:, 0].tolist()) == list(range(50))
    # A fifth of the 8 rows of the first writer and of the 7 of each other one: 2 (1.6) and 1 (1.4).
    assert np.bincount(data.test_groups).tolist() == [2, 1, 1, 1, 1, 1, 1]


def test_labels_may_be_any_integers():
    data = from_arrays(np.zeros((4, 1)), [5, 7, 5, -1], test=(np.zeros((1, 1)), [7]))
    assert data.train["y"].tolist() == [1, 2, 1, 0]
    assert (data.test["y"].tolist(), data.class_names) == ([2], ("-1", "5", "7"))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("shape", "axes"), [((3, 8, 9), (1, 2, 0)), ((8, 9, 3), (0, 1, 2))])
def test_images_get_their_channels_last(shape, axes, dtype):
    x = RNG.integers(0, 255, (6, *shape)).astype(dtype)
    scale = "none" if dtype == np.float32 else None
    layout = {np.uint8: None, np.float32: "channels_last" if shape[2] == 3 else "channels_first"}
    data = from_arrays(x, [0, 1] * 3, test=(x, [0, 1] * 3), layout=layout[dtype], scale=scale)
    assert data.test["x"].dtype == dtype
    np.testing.assert_array_equal(data.test["x"], np.moveaxis(x, [a + 1 for a in axes], [1, 2, 3]))


def test_images_without_channels_get_one_if_they_are_bytes():
    x = np.zeros((5, 8, 8), np.uint8)
    assert from_arrays(x, [0, 1, 0, 1, 0]).train["x"].shape[1:] == (8, 8, 1)
    assert from_arrays(x.astype(float), [0, 1, 0, 1, 0]).train["x"].shape[1:] == (8, 8)
    with pytest.raises(ValueError, match="on one side only"):
        to_channels_last(np.zeros((2, 3, 8, 3)))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".PARQUET"])
def test_tables_of_rows(tmp_path, suffix):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"a": [1.0, 2, 3, 4], "who": ["x", "y", "x", "y"], "b": [5, 6, 7, 8],
         "kind": ["cat", "dog", "cat", "dog"], "split": ["train", "train", "train", "test"]}
    )  # fmt: skip
    path = tmp_path / f"table{suffix}"
    if suffix.lower() == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    with pytest.warns(UserWarning, match=f"{suffix}: 1 of 2 clients have no test rows: x$"):
        data = read_table(path, label_column="kind", client_column="who")
    assert data.train["x"].tolist() == [[1, 5], [2, 6], [3, 7]]
    assert (data.train["y"].tolist(), data.class_names) == ([0, 1, 0], ("cat", "dog"))
    assert (data.train_groups.tolist(), data.group_names) == ([0, 1, 0], ("x", "y"))
    assert (data.test["x"].tolist(), data.test_groups.tolist()) == ([[4, 8]], [1])


def test_tables_of_arrays(tmp_path):
    path = tmp_path / "table.npz"
    x = RNG.integers(0, 255, (6, 1, 8, 8)).astype(np.uint8)
    np.savez(
        path, x=x[:4], y=["b", "a", "b", "a"], who=[1, 2, 2, 1], x_test=x[4:], y_test=["a", "b"]
    )
    data = read_table(path, client_column="who")
    assert data.test["x"].shape == (2, 8, 8, 1)
    assert (data.train["y"].tolist(), data.test["y"].tolist()) == ([1, 0, 1, 0], [0, 1])
    assert (data.train_groups.tolist(), data.group_names[:2]) == ([0, 1, 1, 0], ("1", "2"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "no column y or label; expected label_column, one of a, b"),
        ("a,label\n1,\n2,3\n", "column 'label' has no value in row 1"),
        ("a,label,split\n1,0,train\n2,1,valid\n", "column 'split' has train, valid; expected"),
        ("label\n1\n", "no columns besides label; expected features"),
        ("a,label\n1,0\n,1\n", "column 'a' has nan in row 2; expected finite numbers"),
        ("", "table.csv cannot be read: No columns to parse"),
        ("a,label\n", "has no rows; expected one per example"),
    ],
)
def test_damaged_tables_are_named(tmp_path, content, message):
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_table(path)


def test_clients_of_test_examples_need_those_of_training_examples():
    x, y = [[0.0], [1.0]], [0, 1]
    own = {"test": (x, y), "clients": ["ann", "bob"], "test_clients": ["ann", "eve"]}
    assert from_arrays(x, y, **own).group_names == ("ann", "bob", "eve")
    for missing in ("test", "clients"):
        with pytest.raises(DataError, match=f"test_clients has 2 .*; expected {missing} with them"):
            from_arrays(x, y, **{**own, missing: None})


@pytest.mark.parametrize(
    ("x", "y", "test", "message"),
    [
        ([[0.0], [1.0]], [0.0, np.inf], None, r"train labels have inf at \[1\]; expected finite"),
        ([[0.0], [1.0]], [2.0, 1.0], None, "train labels are whole floats such as 2.0; expected"),
        ([[0.0], [1e300]], [0, 1], None, "train examples have NaN or infinity at"),
        (np.ma.masked_less([[0], [-9]], 0), [0, 1], None, r"NaN or infinity at \[1, 0\]"),
        ([[0.0], [1.0]], np.ma.masked_less([0, -9], 0), None, r"train labels\[1\] has no value"),
        ([[0.0], [1.0]], [0, 1], ([[0.0, 1.0]], [0]), r"test examples have shape \[2\]; expected"),
        (np.zeros((2, 1), np.uint8), [0, 1], ([[0.0]], [0]), "dtype float64 and .* uint8"),
        ([[0.0]], [0], None, "own has 1 example; expected at least 2"),
    ],
)
def test_arrays_that_would_change_silently_are_refused(x, y, test, message):
    with pytest.raises(DataError, match=message):
        from_arrays(np.asanyarray(x), y, test=test)


def test_unsigned_and_signed_labels_have_integer_names():
    x, y = [[0.0], [1.0]], np.array([3, 7])
    assert from_arrays(x, y.astype(np.uint64), test=(x, y)).class_names == ("3", "7")


def test_pixels_and_floats_are_refused_in_own_data_sets():
    own = from_arrays(np.zeros((4, 2, 2), np.uint8), [0, 1, 0, 1])
    mixed = own._replace(test={**own.test, "x": own.test["x"].astype(np.float32)})
    with pytest.raises(DataError, match="expected uint8 in both or in neither"):
        check_dataset(mixed)


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">u2"])
def test_arrays_of_another_byte_order(dtype):
    data = from_arrays(np.array([[1], [2], [300]], dtype), np.array([5, 9, 9], ">i8"))
    assert data.train["x"].dtype.isnative
    assert sorted([*data.train["x"][:, 0], *data.test["x"][:, 0]]) == [1, 2, 300]
    assert data.class_names == ("5", "9")


@pytest.mark.parametrize(
    ("part", "groups", "message"),
    [
        ("train", [0, 1], "train_groups has 2 entries; expected one per train example"),
        ("test", [0, 1], "test_groups has 2 entries; expected one per test example"),
        ("train", [0, 1, 2], r"train_groups has int64 0 \.\. 2; expected integers 0 \.\. 1"),
        ("test", [0, -1, 1], r"test_groups has int64 -1 \.\. 1; expected integers 0 \.\. 1"),
        ("test", [0.0, 1.0, 1.0], r"test_groups has float64 0\.0 \.\. 1\.0; expected integers"),
    ],
)
def test_clients_of_a_users_data_set_are_positions_in_their_names(part, groups, message):
    """Examples of clients without a name would belong to none, without a word."""
    arrays = {"x": np.zeros((3, 2), np.float32), "y": np.array([0, 1, 0], np.int32)}
    own = {"train": np.array([0, 1, 1]), "test": np.array([1, 0, 0])}
    whole = Dataset("own", arrays, arrays, 2, *own.values(), ("ann", "bob"), "files")
    assert check_dataset(whole) is whole
    own[part] = np.array(groups)
    with pytest.raises(DataError, match=message):
        check_dataset(Dataset("own", arrays, arrays, 2, *own.values(), ("ann", "bob"), "files"))
