"""The readers on the real files in the folder that FEDJAX_SIM_DATA names.

The expected numbers are those of the data sets' publishers, or of the sampled files.
"""

import gzip
import hashlib

import numpy as np
import pytest

from fedjax_sim.datasets import drop_duplicates, load
from fedjax_sim.datasets.cifar import CIFAR10, CIFAR100, parse_batch, parse_binary
from fedjax_sim.datasets.formats.files import read_tree
from fedjax_sim.datasets.shakespeare import decode
from fedjax_sim.datasets.shakespeare_tff import all_positions

pytestmark = pytest.mark.slow


@pytest.fixture
def real(real_data):
    def get(name, *folders):
        if not any((real_data / folder).is_dir() for folder in (name, *folders)):
            pytest.skip(f"FEDJAX_SIM_DATA has no folder {name}")
        return load(name, real_data, source="files")

    return get


def test_mnist(real):
    data = real("mnist")
    assert data.train["x"].shape == (60000, 28, 28, 1)
    assert data.test["x"].shape == (10000, 28, 28, 1)
    # Class counts of MNIST, as widely published.
    assert np.bincount(data.train["y"]).tolist() == [
        *(5923, 6742, 5958, 6131, 5842),
        *(5421, 5918, 6265, 5851, 5949),
    ]
    assert np.bincount(data.test["y"]).tolist() == [
        *(980, 1135, 1032, 1010, 982),
        *(892, 958, 1028, 974, 1009),
    ]
    # The first train images show 5 0 4 1 9; the mean pixel is the well-known 0.1307.
    assert data.train["y"][:5].tolist() == [5, 0, 4, 1, 9]
    assert data.train["x"].mean() / 255 == pytest.approx(0.1307, abs=5e-5)  # its four digits


def test_mnist_writers(real):
    data = real("mnist")
    sizes = np.bincount(data.train_groups)
    assert (len(sizes), sizes.min(), sizes.max(), np.median(sizes)) == (539, 19, 131, 116)
    assert len(np.unique(data.test_groups)) == 297
    # MNIST's test digits were written by other people.
    assert not set(data.train_groups) & set(data.test_groups)
    assert len(data.group_names) == len(set(data.group_names)) == 539 + 297


@pytest.mark.slow
def test_femnist(real):
    data = real("femnist")
    assert data.num_classes == 62
    assert data.train["x"].shape == (14708, 28, 28, 1)
    assert data.test["x"].shape == (1685 + 2403, 28, 28, 1)
    sizes = np.bincount(data.train_groups)
    assert (len(sizes), sizes.min(), sizes.max(), np.median(sizes)) == (105, 4, 165, 152)
    assert len(data.group_names) == len(np.unique(data.test_groups)) == 105 + 79
    assert (data.test_groups < 105).sum() == 1685
    assert "f3313_11" in data.group_names
    # Dark ink on a white ground, as LEAF has it.
    assert np.median(data.train["x"]) == 255
    assert data.train["x"].min() == 0
    assert len(drop_duplicates(data).train["y"]) == 14708 - 82


def test_a9a(real):
    data = real("a9a")
    assert data.train["x"].shape == (32561, 123)
    assert data.test["x"].shape == (16281, 123)
    assert np.count_nonzero(data.train["x"]) == 451592
    assert np.bincount(data.train["y"]).tolist() == [24720, 7841]
    assert np.bincount(data.test["y"]).tolist() == [12435, 3846]
    assert set(np.unique(data.train["x"])) == {0.0, 1.0}
    # The last feature occurs once in the train part and never in the test part.
    assert (data.train["x"][:, 122].sum(), data.test["x"][:, 122].sum()) == (1, 0)


def test_epsilon_sample(real):
    data = real("epsilon", "epsilon-subset")
    assert data.train["x"].shape == data.test["x"].shape == (100, 2000)
    assert np.bincount(data.train["y"]).tolist() == [54, 46]
    assert np.bincount(data.test["y"]).tolist() == [64, 36]
    # Rows have unit norm, to the six digits that the text gives of each of 2000 values.
    np.testing.assert_allclose(np.linalg.norm(data.train["x"], axis=1), 1, atol=1e-5)


@pytest.mark.slow
def test_cifar10(real):
    data = real("cifar10", "cifar-10")
    assert data.train["x"].shape == (50000, 32, 32, 3)
    assert np.bincount(data.train["y"]).tolist() == [5000] * 10
    assert np.bincount(data.test["y"]).tolist() == [1000] * 10
    # First train images: frog, truck, truck, deer, automobile; first test images: cat, ship.
    assert data.train["y"][:5].tolist() == [6, 9, 9, 4, 1]
    assert data.test["y"][:2].tolist() == [3, 8]
    # The channel means everybody normalises with, to their four digits.
    means = data.train["x"].mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=1e-4)
    # The same as official binary records.
    x, y = data.test["x"][:100], data.test["y"][:100]
    records = np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(100, -1)], 1)
    part = parse_binary(records.astype(np.uint8).tobytes(), CIFAR10)
    np.testing.assert_array_equal(part["x"], x)
    np.testing.assert_array_equal(part["y"], y)


@pytest.mark.slow
def test_cifar100(real, real_data):
    data = real("cifar100", "cifar-100")
    assert data.train["x"].shape == (50000, 32, 32, 3)
    assert np.bincount(data.train["y"]).tolist() == [500] * 100
    assert np.bincount(data.train["coarse"]).tolist() == [2500] * 20
    assert np.bincount(data.test["y"]).tolist() == [100] * 100
    # Each fine class lies in one coarse class, five in each.
    pairs = set(zip(data.train["y"].tolist(), data.train["coarse"].tolist(), strict=True))
    assert len(pairs) == 100

    # The archive holds what surrounds the pixels in the official pickle: put together, it is the
    # file that Python 2 wrote and Krizhevsky published, and must read as the strips do.
    wanted = ["cifar-100/test.head.gz", "cifar-100/test.tail"]
    frame = read_tree(real_data / "cifar-100" / CIFAR100.strips, lambda name: name in wanted)
    head, tail = (frame[name] for name in wanted)
    official = gzip.decompress(head) + data.test["x"].transpose(0, 3, 1, 2).tobytes() + tail
    assert hashlib.md5(official).hexdigest() == "f0ef6b0ae62326f3e7ffdfab6717acfc"
    part = parse_batch(official, CIFAR100)
    for leaf, column in data.test.items():
        np.testing.assert_array_equal(part[leaf], column)


def test_shakespeare(real):
    data = real("shakespeare")
    assert data.train["x"].shape == (44_259, 80)
    assert data.test["x"].shape == (10_672, 80)
    assert len(data.group_names) == 5
    # Consecutive windows of one role: the next character ends the next window.
    first = data.train_groups == 0
    x, y = data.train["x"][first], data.train["y"][first]
    np.testing.assert_array_equal(x[1:, -1], y[:-1])


def test_shakespeare_in_both_tasks(real):
    windows, leaf = real("shakespeare"), real("shakespeare_leaf", "shakespeare")
    for part in ("train", "test"):
        ours, theirs = getattr(windows, part), getattr(leaf, part)
        assert ours["x"].shape == theirs["x"].shape
        text = "".join(leaf.class_names[i] for i in theirs["x"][0])
        assert text == decode(ours["x"][0])
    sequences = all_positions(windows)
    assert sequences.group_names == windows.group_names
    # One text per role: its 80 first characters and the next ones, begin and end, cut into 81.
    texts = np.bincount(windows.train_groups) + 80 + 2
    assert np.bincount(sequences.train_groups).tolist() == (-(-texts // 81)).tolist()
    assert (sequences.train["y"] < 0).sum() <= 5 * 80
