import gzip

import numpy as np
import pytest
from idx_files import write_idx

from fedjax_sim.datasets import DataError, load
from fedjax_sim.datasets.mnist import parse_idx


def table(folder, split):
    path = folder / f"qmnist-{split}-labels-idx2-int.gz"
    return parse_idx(gzip.decompress(path.read_bytes()))


def test_images_labels_and_writers(mnist_dir):
    data = load("mnist", mnist_dir)
    assert data.train["x"].shape == (200, 28, 28, 1)
    assert data.train["x"].dtype == np.uint8
    assert data.test["y"].shape == (50,)
    assert data.test["y"].dtype == np.int32
    assert (data.name, data.num_classes, data.source) == ("mnist", 10, "files")
    np.testing.assert_array_equal(data.train["y"], table(mnist_dir, "train")[:, 0])
    names = np.array(data.group_names).astype(int)
    np.testing.assert_array_equal(names[data.train_groups], table(mnist_dir, "train")[:, 2])
    np.testing.assert_array_equal(names[data.test_groups], table(mnist_dir, "test")[:50, 2])
    assert sorted(names) == list(range(100, 107))
    # Train's five writers are numbered first, so that they can serve as the clients as they are.
    assert sorted(set(data.train_groups)) == [0, 1, 2, 3, 4]


def test_uncompressed_files_and_the_parent_folder_do_as_well(mnist_dir):
    reference = load("mnist", mnist_dir)
    for path in mnist_dir.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    data = load("mnist", mnist_dir.parent)
    np.testing.assert_array_equal(data.train["x"], reference.train["x"])
    assert data.group_names == reference.group_names


def test_no_writers_without_qmnist_labels(mnist_dir):
    (mnist_dir / "qmnist-test-labels-idx2-int.gz").unlink()
    data = load("mnist", mnist_dir)
    assert data.train_groups is not None
    assert data.test_groups is None
    (mnist_dir / "qmnist-train-labels-idx2-int.gz").unlink()
    data = load("mnist", mnist_dir)
    assert (data.train_groups, data.test_groups, data.group_names) == (None, None, None)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("train-images-idx3-ubyte", np.zeros((200, 28, 27), np.uint8), "expected uint8"),
        ("train-images-idx3-ubyte", np.zeros((200, 28, 28), np.int32), "expected uint8"),
        ("train-images-idx3-ubyte", np.zeros((199, 28, 28), np.uint8), "lengths"),
        ("t10k-labels-idx1-ubyte", np.full(50, 10, np.uint8), r"expected 0 \.\. 9"),
        ("t10k-labels-idx1-ubyte", np.zeros(50, np.int32), "expected uint8"),
        ("t10k-labels-idx1-ubyte", np.zeros((50, 1), np.uint8), "shape"),
        ("qmnist-train-labels-idx2-int", np.zeros((200, 7), np.int32), "expected int32"),
        ("qmnist-train-labels-idx2-int", np.zeros((201, 8), np.int32), "expected 200"),
        ("qmnist-test-labels-idx2-int", np.zeros((49, 8), np.int32), "expected 50"),
        ("qmnist-test-labels-idx2-int", np.zeros((50, 8), np.int32), "classes differ"),
    ],
)
def test_refuses(mnist_dir, file, array, message):
    write_idx(mnist_dir / f"{file}.gz", array)
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", mnist_dir)
    assert str(mnist_dir) in str(caught.value)


def test_a_missing_companion_is_named(mnist_dir):
    (mnist_dir / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz is missing"):
        load("mnist", mnist_dir)
