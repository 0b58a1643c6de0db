"""Files of PFLlib's clients, written as its dataset/utils/dataset_utils.py writes them."""

import pathlib
import pickle

import numpy as np
import pytest

from fedjax_sim.datasets import DataError, read_pfllib
from fedjax_sim.datasets.formats.pickles import parse_pickle

STREAM = np.random.default_rng(0)
SIZES = {"train": {0: 3, 1: 2, 10: 4}, "test": {0: 1, 1: 1, 10: 2}}


def write(folder, change=lambda part, number, one: one):
    """PFLlib: with open(path + str(i) + '.npz', 'wb') as f: np.savez_compressed(f, data=a_dict)."""
    written = {}
    for part, sizes in SIZES.items():
        (folder / part).mkdir(parents=True)
        for number, n in sizes.items():
            one = {
                "x": STREAM.normal(size=(n, 1, 28, 28)).astype(np.float32),
                "y": STREAM.integers(0, 3, n) if n != 4 else np.arange(4) % 3,
            }
            written[part, number] = one
            with (folder / part / f"{number}.npz").open("wb") as file:
                np.savez_compressed(file, data=change(part, number, one))
    return written


def test_clients_of_all_files(tmp_path):
    written = write(tmp_path / "MNIST")
    data = read_pfllib(tmp_path / "MNIST")
    assert (data.name, data.group_names, data.class_names) == (
        "MNIST", ("0", "1", "10"), ("0", "1", "2")
    )  # fmt: skip
    for part in SIZES:
        clients = data.clients(part)
        for i, number in enumerate(SIZES[part]):
            one = written[part, number]
            x = clients.client(i)["x"]
            np.testing.assert_array_equal(x[..., 0], one["x"][:, 0])
            assert clients.client(i)["y"].tolist() == one["y"].tolist()


class Evil:
    """A pickle that would make a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(self.path),)


@pytest.mark.parametrize("place", ["y", "more", "whole"])
def test_no_code_of_a_file_runs(tmp_path, place):
    marker = tmp_path / "marker"

    def change(part, number, one):
        evil = Evil(marker)
        return np.array(evil, dtype=object) if place == "whole" else {**one, place: evil}

    write(tmp_path / "MNIST", change)
    # The marker is what numpy.load(allow_pickle=True) would have made.
    with pytest.raises(DataError, match=r"0\.npz: (names|uses)"):
        read_pfllib(tmp_path / "MNIST")
    assert not marker.exists()
    np.load(tmp_path / "MNIST" / "train" / "0.npz", allow_pickle=True)["data"]
    assert marker.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one["x"], r"0.npz: data is float32\[3, 1, 28, 28\]; expected a dict of x"),
        (lambda one: {"x": one["x"]}, "0.npz has x; expected x and y"),
        (lambda one: {**one, "y": one["y"][:-1]}, "lengths are {'x': 3, 'y': 2}"),
        (lambda one: {**one, "y": one["y"] / 2}, r"y float64\[3\]; expected numbers"),
        (lambda one: {**one, "x": np.array([[1], "a"], object)}, "array of values other than"),
        (lambda one: {**one, "x": [[1.0], [1.0, 2.0]]}, "x or y is ragged"),
        (lambda one: {**one, "x": one["x"][..., :3]}, "clients have examples of several shapes"),
    ],
)
def test_other_contents_are_refused(tmp_path, change, message):
    write(
        tmp_path / "a",
        lambda part, number, one: change(one) if (part, number) == ("train", 0) else one,
    )
    with pytest.raises(DataError, match=message):
        read_pfllib(tmp_path / "a")


def test_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"has no train/\*.npz"):
        read_pfllib(tmp_path)
    write(tmp_path / "a")
    (tmp_path / "a" / "train" / "1.npz").unlink()
    with pytest.raises(DataError, match=r"clients 1 have no train/\*.npz"):
        read_pfllib(tmp_path / "a")
    (tmp_path / "a" / "train" / "0.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"0.npz cannot be read: .*; expected PFLlib's array data"):
        read_pfllib(tmp_path / "a")


def test_other_readers_take_no_dict_in_an_array():
    boxed = pickle.dumps(np.array({"labels": [1]}, dtype=object), protocol=4)
    assert parse_pickle(boxed, boxed=True) == {"labels": [1]}
    with pytest.raises(DataError, match="not a dict"):
        parse_pickle(boxed)
    with pytest.raises(DataError, match="not a dict"):
        parse_pickle(pickle.dumps({"labels": [1]}, protocol=4), boxed=True)
