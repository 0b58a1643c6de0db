"""Tables with a column of clients: NumPy, pandas and Hugging Face's data sets."""

import importlib

import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from fedjax_sim.datasets import DataError, from_arrays, read_table

RNG = np.random.default_rng(0)
NUMBERS = {
    "a": np.array([1.0, 2, 3, 4]),
    "who": np.array(["x", "y", "x", "y"]),
    "b": np.array([5, 6, 7, 8]),
    "kind": np.array(["cat", "dog", "cat", "dog"]),
}
IMAGES = RNG.integers(0, 255, (6, 8, 8)).astype(np.uint8)


def test_clients_of_integers_and_floats_are_the_same():
    """Columns of integers become floating where a row of the whole table has no value."""
    test = {"a": [0.0], "label": [0], "who": np.array([2.0])}
    train = {"a": [0.0, 1.0], "label": [0, 1], "who": np.array([1, 2])}
    data = fs.from_table(train, test=test, client_column="who")
    assert data.group_names == ("1", "2")
    objects = {"a": [0.0] * 4, "label": [0] * 4, "who": np.array([1, 1.0, 1, 1.0], object)}
    assert fs.from_table(objects, client_column="who").group_names == ("1",)


class Feature:
    """Type of a column in the interface of Hugging Face's data sets."""

    def __init__(self, names=None):
        if names:
            self.names = names


class Interface:
    """The part of ``datasets.Dataset`` that a table needs."""

    def __init__(self, columns, names=None):
        self.columns_by_name, self.names = columns, names or {}
        self.column_names = list(columns)
        self.features = {name: Feature(self.names.get(name)) for name in columns}

    def __len__(self):
        return len(next(iter(self.columns_by_name.values())))

    def select_columns(self, names):
        return Interface({name: self.columns_by_name[name] for name in names}, self.names)

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __getitem__(self, rows):
        return {name: values[rows] for name, values in self.columns_by_name.items()}


def interface(columns, names=None):
    return Interface(columns, names)


def hugging_face(columns, names=None):
    # The folder of these tests is a namespace package of the same name.
    pytest.importorskip("datasets.arrow_dataset")
    library = importlib.import_module("datasets")
    image = pytest.importorskip("PIL.Image")
    names = names or {}
    rows, features = {}, {}
    for name, values in columns.items():
        if name in names:
            rows[name], features[name] = list(values), library.ClassLabel(names=names[name])
        elif values.ndim == 3:
            rows[name] = [image.fromarray(value) for value in values]
            features[name] = library.Image()
        elif values.dtype.kind == "U":
            rows[name], features[name] = values.tolist(), library.Value("string")
        else:
            rows[name], features[name] = values.tolist(), library.Value(str(values.dtype))
    return library.Dataset.from_dict(rows, features=library.Features(features))


def frame(columns, names=None):
    return pd.DataFrame({k: list(v) if v.ndim > 1 else v for k, v in columns.items()})


KINDS = {"numpy": lambda columns: columns, "pandas": frame}
LIBRARIES = {"interface": interface, "hugging face": hugging_face}


@pytest.mark.parametrize("kind", [*KINDS, *LIBRARIES])
def test_columns_of_numbers(kind):
    table = (KINDS | LIBRARIES)[kind](NUMBERS)
    data = fs.from_table(table, test=table, label_column="kind", client_column="who", name="mine")
    assert data.name == "mine"
    assert data.train["x"].tolist() == [[1, 5], [2, 6], [3, 7], [4, 8]]
    assert data.train["x"].dtype == np.float32
    assert (data.train["y"].tolist(), data.class_names) == ([0, 1, 0, 1], ("cat", "dog"))
    assert data.train_groups is not None
    assert (data.train_groups.tolist(), data.group_names) == ([0, 1, 0, 1], ("x", "y"))
    clients = data.clients()
    assert isinstance(clients, fs.FederatedData)
    assert (clients.client_ids, clients.sizes.tolist()) == (("x", "y"), [2, 2])
    assert clients.client(1)["x"].tolist() == [[2, 6], [4, 8]]
    chosen = fs.from_table(table, test=table, label_column="kind", feature_columns=["b"])
    assert chosen.train["x"].tolist() == [[5], [6], [7], [8]]


@pytest.mark.parametrize("kind", [*KINDS, *LIBRARIES])
def test_a_column_of_images_and_rows_for_testing(kind):
    labels = np.array(["b", "a", "b", "a", "a", "b"])
    split = np.array(["train"] * 4 + ["test"] * 2)
    table = (KINDS | LIBRARIES)[kind](
        {"image": IMAGES, "label": labels, "split": split, "id": np.arange(6)}
    )
    data = fs.from_table(table)  # the other column, id, is no feature
    np.testing.assert_array_equal(data.train["x"][..., 0], IMAGES[:4])
    np.testing.assert_array_equal(data.test["x"][..., 0], IMAGES[4:])
    assert (data.train["y"].tolist(), data.test["y"].tolist()) == ([1, 0, 1, 0], [0, 1])
    assert data.train_groups is None


@pytest.mark.parametrize("kind", LIBRARIES)
def test_class_labels_keep_numbers_and_names(kind):
    def table(labels):
        columns = {"image": IMAGES[: len(labels)], "label": np.array(labels)}
        return LIBRARIES[kind](columns, {"label": ["dog", "cat", "owl", "ant"]})

    data = fs.from_table({"train": table([3, 1, 3]), "test": table([1])})
    assert data.train["y"].tolist() == [3, 1, 3]  # as in the source, although 0 and 2 are absent
    assert data.test["y"].tolist() == [1]
    assert (data.num_classes, data.class_names) == (4, ("dog", "cat", "owl", "ant"))


def test_without_a_test_part_a_fifth_of_each_class_is_for_testing():
    labels = np.arange(20) % 2
    data = fs.from_table({"x": np.arange(20.0)[:, None], "y": labels})
    whole = from_arrays(np.arange(20.0)[:, None], labels)
    for part in ("train", "test"):
        np.testing.assert_array_equal(getattr(data, part)["x"], getattr(whole, part)["x"])


def test_clients_of_all_parts():
    data = fs.from_table(
        {"x": np.arange(4.0)[:, None], "y": [0, 1, 0, 1], "c": ["d", "a", "d", "b"]},
        test={"x": np.arange(3.0)[:, None], "y": [0, 1, 0], "c": ["b", "e", "b"]},
        client_column="c",
    )
    train, test, unseen = (data.clients(part) for part in ("train", "test", "unseen"))
    assert train.client_ids == test.client_ids == ("d", "a", "b")
    assert (train.sizes.tolist(), test.sizes.tolist()) == ([2, 1, 1], [0, 0, 2])
    assert (unseen.client_ids, unseen.client(0)["x"].tolist()) == (("e",), [[1.0]])


BOTH = {"label_column": "kind", "client_column": "who"}
TWO = {"a": [1, 2], "y": [0, 1]}


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ([1, 2], {}, "table is list; expected a dict of arrays, a pandas"),
        (None, {}, "table is NoneType; expected a dict of arrays, a pandas"),
        (NUMBERS, {}, "no column y or label; expected label_column, one of"),
        (NUMBERS, {"label_column": "knid"}, "'knid'; .*did you mean kind"),
        (NUMBERS, {"label_column": "kind"}, "column 'who' has 'x' in row 1"),
        (NUMBERS, BOTH | {"client_column": "h"}, "client_column is 'h'; expected one of a, who, b"),
        (NUMBERS, BOTH | {"feature_columns": ["c"]}, "feature_columns is 'c'"),
        ({"v": IMAGES, "w": IMAGES, "y": range(6)}, {}, "columns v, w hold arrays; expected one a"),
        (pd.DataFrame({"a": [1, 2], "y": [0, None]}), {}, "column 'y' has no value in row 2"),
        (TWO | {"y": ["cat", np.nan]}, {}, "column 'y' has no value in row 2"),
        (TWO | {"c": np.array(["x", np.nan], object)}, {"client_column": "c"}, "'c' .* in row 2"),
        (TWO | {"c": pd.Series([None, 3], dtype="Int64")}, {"client_column": "c"}, "'c' .* row 1"),
        (
            TWO | {"c": np.array(["NaT", "2020"], "M8[D]")},
            {"client_column": "c"},
            "'c' .* in row 1",
        ),
        (TWO | {"split": ["train", "dev"]}, {}, "'split' has dev, train; expected train and test"),
        (pd.DataFrame({"i": [np.ones(2), np.ones(3)], "y": [0, 1]}), {}, "'i' has arrays of sever"),
        (TWO | {"b": [3]}, {}, "column 'b' has 1 rows; expected 2"),
        ({"x": [[1, 2], [3]], "y": [0, 1]}, {}, "table: column 'x' is ragged"),
        ({"x": [1, 2], "z": [3, 4], "y": [0, 1]}, {}, r"column 'x' has one value .*\(x, z\)"),
        (TWO, {"feature_columns": []}, "feature_columns is empty; expected the name of a column"),
    ],
)
def test_bad_tables_are_named(table, options, message):
    with pytest.raises(DataError, match=message):
        fs.from_table(table, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y": [0, None]}, r"train labels\[1\] has no value"),
        ({"y": [0, 1], "clients": ["x", np.nan]}, r"train clients\[1\] has no value"),
        ({"y": [0, 1], "clients": [(1, 2)] * 2}, r"train clients have shape \[2, 2\]"),
    ],
)
def test_bad_labels_and_clients_are_named(options, message):
    with pytest.raises(DataError, match=message):
        from_arrays([[1.0]] * 2, **options)


def test_parts_without_clients():
    data = fs.from_table(NUMBERS, test=NUMBERS, **BOTH)
    with pytest.raises(ValueError, match="part is 'dev'"):
        data.clients("dev")  # type: ignore
    with pytest.raises(ValueError, match="part is 'unseen', but all clients of table have train"):
        data.clients("unseen")
    with pytest.raises(ValueError, match="own does not say which client"):
        from_arrays([[1.0]] * 5, [0] * 5).clients()


def read_csv(tmp_path, text, **options):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return read_table(path, **options)


def test_clients_of_a_csv_file_are_named_as_it_writes_them(tmp_path):
    """As numbers, 001, 01 and 1 would be one client."""
    text = "a,who,label\n1,001,x\n2,1,x\n3,01,x\n4,1,x\n5,2,y\n"
    with pytest.warns(UserWarning, match="3 of 4 clients have one row, .*: 001, 01, 2$"):
        data = read_csv(tmp_path, text, client_column="who")
    assert data.group_names == ("001", "1", "01", "2")


def test_a_comma_at_the_end_of_each_row_moves_no_column(tmp_path):
    data = read_csv(tmp_path, "a,label\n7,0,\n8,1,\n9,1,\n")
    assert sorted([*data.train["x"][:, 0], *data.test["x"][:, 0]]) == [7, 8, 9]
    assert data.class_names == ("0", "1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",a,label\n0,1,x\n1,2,y\n", "table.csv: column 1 has no name; .*index=False"),
        ("a,label,label\n1,0,1\n2,1,0\n", "table.csv: column 'label' occurs twice"),
        ("a,label\n1,0,9\n2,1,7\n", "table.csv: rows have more fields than the header; expected 2"),
    ],
)
def test_columns_of_a_csv_file_that_are_not_those_of_its_header(tmp_path, text, message):
    """pandas would rename the first two, and take the first field of the third as an index."""
    with pytest.raises(DataError, match=message):
        read_csv(tmp_path, text)


@pytest.mark.parametrize("names", [["a", "a", "b", "y"], [1, "1", "b", "y"]])
def test_columns_of_one_name_are_refused(names):
    """Otherwise one of them, or b, would be lost."""
    frame = pd.DataFrame([[1, 2, 3, 0], [4, 5, 6, 1]], columns=names)
    with pytest.raises(DataError, match=f"table: column '{names[0]}' occurs twice"):
        fs.from_table(frame)


def test_objects_that_are_integers_are_ordered_as_numbers():
    column = pd.Series([10, 2, 10, 9], dtype=object)
    data = fs.from_table(pd.DataFrame({"a": [1.0, 2, 3, 4], "y": column}))
    assert data.class_names == ("2", "9", "10")


def test_bytes_are_the_text_that_they_encode():
    """Tables of HDF5 have text as bytes."""
    names = np.array(["cät".encode(), b"dog", "cät".encode()])
    table = {"a": [1.0, 2, 3], "y": names, "who": names}
    data = fs.from_table(table, test=table, client_column="who")
    assert data.class_names == data.group_names == ("cät", "dog")


def test_a_test_table_without_clients_has_none():
    """Its rows are not those of a client with the name of the part."""
    train = {"a": [1.0, 2.0], "y": [0, 1], "who": ["test", "x"]}
    data = fs.from_table(train, test={"a": [3.0], "y": [1]}, client_column="who")
    assert (data.group_names, data.test_groups) == (("test", "x"), None)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.float32(1)}, "column 'x' is one value"),
        ({"split": np.array(["train", "test"])}, "column 'split' has 2 rows; expected 4"),
        ({"y_test": np.zeros(4)}, "has y_test; expected x_test with them"),
    ],
)
def test_arrays_of_a_file_that_do_not_fit_together(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **({"x": np.ones((4, 2)), "y": np.array([0, 1, 1, 0])} | arrays))
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "a.npz")


def test_a_column_split_beside_test_examples_is_no_feature():
    frame = pd.DataFrame(
        {"a": [1.0, 2.0, 3.0], "label": [0, 1, 0], "split": ["train"] * 2 + ["test"]}
    )
    parts = [frame.loc[frame["split"] == part] for part in ("train", "test")]
    data = fs.from_table(parts[0], test=parts[1])
    assert (data.train["x"].tolist(), data.test["x"].tolist()) == ([[1.0], [2.0]], [[3.0]])
    numbers = [part.assign(split=[1.0] * len(part)) for part in parts]
    assert fs.from_table(numbers[0], test=numbers[1]).train["x"].shape == (2, 2)


def test_the_separator_is_that_of_the_first_line_with_text(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("\n\na;label\n1,5;x\n2;y\n3;x\n4;y\n")
    assert sorted(read_table(path, decimal=",").train["x"].ravel().tolist()) == [1.5, 2.0, 4.0]
