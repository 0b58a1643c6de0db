"""Columns of text, identifiers, and the forms of CSV files."""

import warnings

import numpy as np
import pandas as pd
import pytest

import fedjax_sim as fs
from fedjax_sim.datasets import DataError, from_arrays, read_table

TABLE = {"a": [1.0, 2.0, 3.0, 4.0], "city": ["Oslo", "Rome", "Oslo", "Lima"], "y": [0, 1, 0, 1]}


def read(tmp_path, text, suffix=".csv", **options):
    path = tmp_path / f"table{suffix}"
    path.write_text(text)
    return read_table(path, **options)


def rows(data):
    """Training and test examples with their class, sorted: the division is none of these tests'."""
    return sorted(
        (*x, y)
        for part in (data.train, data.test)
        for x, y in zip(part["x"].tolist(), part["y"].tolist(), strict=True)
    )


def test_text_becomes_one_column_per_category_of_the_training_rows():
    data = fs.from_table(TABLE, test=TABLE, encode="one_hot")  # Lima, Oslo, Rome
    assert data.train["x"].tolist() == [[1, 0, 1, 0], [2, 0, 0, 1], [3, 0, 1, 0], [4, 1, 0, 0]]
    train = {name: values[:3] for name, values in TABLE.items()}
    assert fs.from_table(train, test=train, encode="one_hot").train["x"].shape == (3, 3)
    message = "column 'city' of the test examples has 'Lima', which no training example has"
    with pytest.raises(DataError, match=message):
        fs.from_table(train, test=TABLE, encode="one_hot")
    split = {**TABLE, "split": ["train"] * 3 + ["test"]}
    with pytest.raises(DataError, match=message):
        fs.from_table(split, encode="one_hot")


def test_declared_categories_keep_their_order_and_number():
    sizes = pd.Categorical(["mid", "low", "high", "mid"], ["low", "mid", "high", "top"])
    frame = pd.DataFrame({"a": [1.0, 2, 3, 4], "size": sizes, "y": [0, 1, 0, 1]})
    data = fs.from_table(frame, test=frame.iloc[:1], encode="one_hot")
    assert data.train["x"][:, 1:].argmax(1).tolist() == [1, 0, 2, 1]
    assert data.train["x"].shape == (4, 5)  # "top" too
    labels = fs.from_table(frame[["a", "size"]], test=frame, label_column="size")
    assert labels.class_names == ("low", "mid", "high", "top")
    assert (labels.train["y"].tolist(), labels.test["y"].tolist()) == ([1, 0, 2, 1],) * 2
    other = frame.assign(size=pd.Categorical(["top"] * 4, ["top", "low", "mid", "high"]))
    assert fs.from_table(frame, test=other, label_column="size").test["y"].tolist() == [3] * 4
    with pytest.raises(DataError, match=r"declares the categories \['top', .*expected \['low'"):
        fs.from_table(frame, test=other, encode="one_hot")
    unknown = frame.assign(size=["low", "huge", "low", "low"])
    with pytest.raises(DataError, match="test: column 'size' has 'huge' in row 2; expected one of"):
        fs.from_table(frame, test=unknown, encode="one_hot")
    with pytest.raises(DataError, match="test: column 'size' has 'huge' in row 2; expected one of"):
        fs.from_table(frame, test=unknown, label_column="size")


def test_encoded_columns_are_scaled_with_the_others():
    data = fs.from_table(TABLE, test=TABLE, encode="one_hot", scale="standardise")
    np.testing.assert_allclose(data.train["x"].mean(0), 0, atol=1e-7)
    np.testing.assert_allclose(data.train["x"].std(0), 1, rtol=1e-6)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"city": TABLE["city"]}, {}, "'city' has 'Oslo' in row 1; expected numbers: encode='one_"),
        ({"b": [1, 2, "?", 4]}, {}, "column 'b' has '\\?' in row 3; expected numbers"),
        ({"b": ["1", "2", "1_0", "4"]}, {}, "column 'b' has '1_0' in row 3; expected numbers"),
        ({"b": ["1,5", "2", "3,5", "4"]}, {}, "'b' has '1,5' in row 1; .*decimal=','"),
        ({"b": [1.0, 2.0, np.inf, 4.0]}, {}, "column 'b' has inf in row 3; expected finite"),
        ({"b": ["x", None, "x", "y"]}, {"encode": "one_hot"}, "'b' has no value in row 2"),
        ({}, {"encode": "label"}, "encode is 'label'; expected one of one_hot"),
        ({}, {"drop": "b"}, "drop is 'b'; expected one of a, y"),
    ],
)
def test_bad_values_are_named_with_column_and_row(columns, options, message):
    table = pd.DataFrame({"a": TABLE["a"], **columns, "y": TABLE["y"]})
    with pytest.raises(DataError, match=message):
        fs.from_table(table, **options)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("id", np.arange(30)[::-1]),
        ("Patient_ID", np.repeat([7, 8, 9], 10)),  # repeated ones, too
        ("userId", np.arange(30).astype(str)),
        ("Unnamed: 0", np.arange(30)),
        ("number", np.arange(5, 35)),  # consecutive
    ],
)
def test_identifiers_are_no_features_without_being_named(name, values):
    table = {name: values, "a": np.linspace(0, 1, 30), "y": np.arange(30) % 2}
    with pytest.warns(UserWarning, match=f"columns '{name}' look like identifiers of rows and are"):
        data = fs.from_table(table)
    assert data.train["x"].shape[1] == 1
    assert fs.from_table(table, drop=name).train["x"].shape[1] == 1
    with pytest.raises(DataError, match="look like identifiers of rows; expected feature_columns"):
        fs.from_table(table, drop="a")
    if values.dtype.kind == "i":
        both = fs.from_table(table, feature_columns=[name, "a"], scale="none")
        assert both.train["x"].shape[1] == 2


def test_text_that_differs_in_every_row_is_no_category():
    table = {"note": [f"n{i}" for i in range(20)], "a": np.linspace(0, 1, 20), "y": [0, 1] * 10}
    with pytest.warns(UserWarning, match="columns 'note' look like identifiers"):
        assert fs.from_table(table, encode="one_hot").train["x"].shape[1] == 1


def test_numbers_are_not_taken_for_identifiers():
    """Distinct integers, floats under such a name, integers with a gap, or few rows."""
    some = RNG.permutation(1000)[:30]
    table = {
        "income": some, "index": np.linspace(1, 2, 30), "gap": np.r_[:29, 40],
        "y": np.arange(30) % 2,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fs.from_table(table, scale="none").train["x"].shape[1] == 3


RNG = np.random.default_rng(0)
WANTED = [(1.5, 2, 0), (2.5, 4, 1), (3.5, 6, 0)]


@pytest.mark.parametrize(
    ("text", "suffix", "options"),
    [
        ("a;b;y\n1.5;2;no\n2.5;4;yes\n3.5;6;no\n", ".csv", {}),
        ("a\tb\ty\n1.5\t2\tno\n2.5\t4\tyes\n3.5\t6\tno\n", ".csv", {}),
        ("a\tb\ty\n1.5\t2\tno\n2.5\t4\tyes\n3.5\t6\tno\n", ".tsv", {}),
        ("a;b;y\n1,5;2;no\n2,5;4;yes\n3,5;6;no\n", ".csv", {"decimal": ","}),
        ("a|b|y\n1.5|2|no\n2.5|4|yes\n3.5|6|no\n", ".csv", {"separator": "|"}),
        (" a , b , y \n 1.5 , 2 , no \n2.5, 4 ,yes\n 3.5,6, no\n", ".csv", {}),
        (",a,b,y\n0,1.5,2,no\n1,2.5,4,yes\n2,3.5,6,no\n", ".csv", {"drop": "Unnamed: 0"}),
        ("n,a,b,y\n0,1.5,2,no\n1,2.5,4,yes\n2,3.5,6,no\n", ".csv", {"drop": ["n"]}),
    ],
)
def test_forms_of_csv_files(tmp_path, text, suffix, options):
    data = read(tmp_path, text, suffix, **options)
    assert rows(data) == WANTED
    assert data.class_names == ("no", "yes")


def test_signs_of_csv_files_are_refused_for_other_files(tmp_path):
    """They were ignored."""
    np.savez(tmp_path / "a.npz", x=np.ones((3, 2), np.float32), y=[0, 1, 1])
    with pytest.raises(DataError, match="separator is ';'; expected a CSV file with it"):
        read_table(tmp_path / "a.npz", separator=";")
    with pytest.raises(DataError, match="decimal is ','; expected a CSV file with it"):
        read_table(tmp_path / "a.npz", decimal=",")


def test_padded_names_of_clients_are_one_client(tmp_path):
    text = "a, who ,y\n1, 01 ,0\n2,01,0\n3, 1,1\n4,1 ,1\n"
    data = read(tmp_path, text, client_column="who")
    assert data.group_names is not None
    assert sorted(data.group_names) == ["01", "1"]


def test_a_decimal_comma_and_several_separators_are_named(tmp_path):
    with pytest.raises(DataError, match=r"column 'a' has '1,5' in row 1; .*: decimal=','"):
        read(tmp_path, "a;y\n1,5;0\n2,5;1\n")
    with pytest.raises(DataError, match="the first line has ',' and ';'; expected separator="):
        read(tmp_path, "a;b,c;y\n1;2,3;0\n")


@pytest.mark.parametrize("kind", ["pyarrow", "parquet"])
def test_tables_of_pyarrow(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    size = pd.Categorical(["mid", "low", "mid", "low"], ["mid", "low"])
    frame = pd.DataFrame({**TABLE, "size": size, "city": ["Oslo", "Rome", "Oslo", "Rome"]})
    if kind == "pyarrow":
        data = fs.from_table(
            pyarrow.Table.from_pandas(frame), label_column="size", client_column="city", drop="y"
        )
    else:
        frame.to_parquet(tmp_path / "table.parquet")
        data = read_table(
            tmp_path / "table.parquet", label_column="size", client_column="city", drop="y"
        )
    assert rows(data) == [(1, 0), (2, 1), (3, 0), (4, 1)]
    assert data.class_names == ("mid", "low")  # as declared, not sorted
    assert data.group_names is not None
    assert set(data.group_names) == {"Oslo", "Rome"}


@pytest.mark.parametrize("value", [None, pd.NA, float("nan")])
def test_a_row_without_a_value_is_no_category(value):
    frame = pd.DataFrame({"a": [1.0, 2, 3, 4], "b": pd.Series([True, value, False, True])})
    for column in (frame["b"], frame["b"].astype("boolean"), pd.Series(["u", value, "v", "u"])):
        with pytest.raises(DataError, match="column 'b' has no value in row 2; expected one"):
            fs.from_table(frame.assign(b=column, y=[0, 1, 0, 1]), encode="one_hot")
    with pytest.raises(DataError, match="column 'b' has no value in row 2; expected one"):
        fs.from_table(frame.assign(b=frame["b"].astype("boolean"), y=[0, 1, 0, 1]))


def test_text_of_pandas_is_a_label():
    labels = pd.Series(["cat", "dog"] * 2)
    assert from_arrays([[1.0]] * 4, labels).class_names == ("cat", "dog")
