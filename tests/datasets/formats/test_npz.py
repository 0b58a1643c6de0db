"""npz files of Keras and MedMNIST, and labels with an axis too many."""

import numpy as np
import pandas as pd
import pytest

from fedjax_sim.datasets import DataError, from_arrays, from_table, read_table

STREAM = np.random.default_rng(0)
X = {
    part: STREAM.integers(0, 256, (n, 28, 28)).astype(np.uint8)
    for part, n in (("train", 6), ("test", 3), ("val", 2))
}
Y = {part: np.arange(len(x)).astype(np.uint8) % 2 for part, x in X.items()}


def saved(folder, **arrays):
    np.savez(folder / "file.npz", **arrays)
    return folder / "file.npz"


def check(data):
    for part, examples in (("train", data.train), ("test", data.test)):
        np.testing.assert_array_equal(examples["x"][..., 0], X[part])
        assert (examples["y"].dtype, examples["y"].tolist()) == (np.int32, Y[part].tolist())
    assert data.class_names == ("0", "1")


def test_names_of_keras(tmp_path):
    """https://keras.io/api/datasets/mnist: (x_train, y_train), (x_test, y_test)."""
    path = saved(
        tmp_path, x_train=X["train"], y_train=Y["train"], x_test=X["test"], y_test=Y["test"]
    )
    check(read_table(path))


def test_names_of_medmnist(tmp_path):
    """https://github.com/MedMNIST/MedMNIST: labels are [N, 1]; there is a validation part."""
    arrays = {f"{part}_images": x for part, x in X.items()}
    arrays |= {f"{part}_labels": y[:, None] for part, y in Y.items()}
    path = saved(tmp_path, **arrays)
    with pytest.warns(UserWarning, match="1 validation part is left out: 2 examples"):
        check(read_table(path))


def test_our_own_names(tmp_path):
    path = saved(tmp_path, x=X["train"], y=Y["train"], x_test=X["test"], y_test=Y["test"])
    check(read_table(path))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": X["train"], "x": X["train"]}, "two arrays are x of train; expected one"),
        ({"images": X["train"]}, "has the arrays images; expected x, x_train or train_images"),
        ({"x_test": X["test"]}, "has the arrays x_test; expected x, x_train or train_images"),
        ({"x_train": X["train"], "y_test": Y["test"]}, "has y_test; expected x_test with them"),
        ({"x_train": X["train"]}, "no column y or label"),
    ],
)
def test_other_names_are_refused(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        read_table(saved(tmp_path, **arrays))


def test_labels_with_one_column():
    expected = [1, 0, 1]
    for labels in ([[1], [0], [1]], np.array([[1], [0], [1]], np.uint8)):
        data = from_arrays(np.zeros((3, 2)), labels, test=(np.zeros((1, 2)), [[0]]))
        assert data.train["y"].tolist() == expected
        table = {"x": np.zeros((3, 2)), "y": labels}
        assert from_table(table, test=table).train["y"].tolist() == expected


def test_lists_in_a_column_of_objects_are_no_classes():
    """As text they would be the classes '[1]' and '[0]'."""
    table = pd.DataFrame({"a": [0.0, 1.0, 2.0], "y": [[1], [0], [1]]})
    with pytest.raises(DataError, match=r"a label or client is \[1\]; expected one value per row"):
        from_table(table, test=table)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_one_hot_labels_are_refused_with_the_remedy(tmp_path, dtype):
    labels = np.eye(3)[[0, 2, 1, 1]].astype(dtype)
    message = r"labels are one-hot, \w+\[4, 3\]; expected .*: labels.argmax\(axis=1\)"
    with pytest.raises(DataError, match=message):
        from_arrays(np.zeros((4, 2)), labels)
    with pytest.raises(DataError, match=message):
        read_table(saved(tmp_path, x_train=np.zeros((4, 2)), y_train=labels))


def test_several_labels_per_example_are_refused():
    """ChestMNIST has 14 findings per image."""
    with pytest.raises(DataError, match=r"labels are int64\[2, 3\]; expected one class per"):
        from_arrays(np.zeros((2, 2)), np.array([[0, 1, 1], [0, 0, 0]]))
