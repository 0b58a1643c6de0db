"""MNIST and data sets in its idx files, with writers from the label files of QMNIST."""

from pathlib import Path

import numpy as np

from fedjax_sim.datasets.dataset import DataError, Dataset, as_labels, number_groups, same_length
from fedjax_sim.datasets.formats.files import find_one, require
from fedjax_sim.datasets.formats.idx import read_idx

_FILES = {
    ("train", "x"): "train-images-idx3-ubyte",
    ("train", "y"): "train-labels-idx1-ubyte",
    ("test", "x"): "t10k-images-idx3-ubyte",
    ("test", "y"): "t10k-labels-idx1-ubyte",
}
_QMNIST = {"train": "qmnist-train-labels-idx2-int", "test": "qmnist-test-labels-idx2-int"}
_CLASS, _WRITER = 0, 2  # columns of the QMNIST label files

WANTED = "train-images-idx3-ubyte.gz and its three companions, with or without .gz"


def from_folder(name: str, folder: Path) -> Dataset | None:
    """Reads ten classes from a folder with files named as MNIST's; None if it has none of them."""
    # With the label files of QMNIST (Yadav and Bottou, 2019), the natural client is the NIST number
    # of the writer: QMNIST's train labels are in the order of MNIST's train images, and the first
    # 10,000 of its test labels in the order of MNIST's test images.
    paths = {part: find_one(folder, _variants(file)) for part, file in _FILES.items()}
    if all(path is None for path in paths.values()):
        return None
    arrays = {}
    for part, file in _FILES.items():
        path = require(paths[part], folder, _variants(file))
        arrays[part] = _images(path) if part[1] == "x" else _labels(path)
    splits = {
        split: {"x": arrays[split, "x"], "y": arrays[split, "y"]} for split in ("train", "test")
    }
    for split, part in splits.items():
        same_length(f"{folder}: {name} {split}", images=part["x"], labels=part["y"])
    train, test = (_writers(folder, split, part["y"]) for split, part in splits.items())
    groups = (None, None, None) if train is None else number_groups(train, test)
    return Dataset(name, splits["train"], splits["test"], 10, *groups, source="files")


def _variants(name: str) -> tuple[str, ...]:
    return (f"{name}.gz", name)


def _images(path: Path) -> np.ndarray:
    images = read_idx(path)
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28):
        raise DataError(f"{path}: {images.dtype} {images.shape}; expected uint8 [N, 28, 28]")
    return images[..., None]


def _labels(path: Path) -> np.ndarray:
    labels = read_idx(path)
    if labels.dtype != np.uint8:
        raise DataError(f"{path}: {labels.dtype}; expected uint8 labels")
    return as_labels(labels, 10, path)


def _writers(folder: Path, split: str, labels: np.ndarray) -> np.ndarray | None:
    path = find_one(folder, _variants(_QMNIST[split]))
    if path is None:
        return None
    table = read_idx(path)
    if table.dtype != np.int32 or table.ndim != 2 or table.shape[1] != 8:
        raise DataError(f"{path}: {table.dtype} {table.shape}; expected int32 [N, 8]")
    # QMNIST's test part continues beyond MNIST's; its train part does not.
    if len(table) < len(labels) or (split == "train" and len(table) != len(labels)):
        raise DataError(f"{path}: {len(table)} rows; expected {len(labels)}, as MNIST {split} has")
    table = table[: len(labels)]
    if not np.array_equal(table[:, _CLASS], labels):
        raise DataError(f"{path}: its classes differ from MNIST's {split} labels; expected equal")
    return table[:, _WRITER]
