"""Registry of data sets: loading by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.checks import check_choice, check_known, import_extra
from fedjax_sim.datasets import (
    cifar,
    leaf,
    linear,
    mnist,
    shakespeare,
    shakespeare_tff,
    tiny_imagenet,
)
from fedjax_sim.datasets.dataset import DataError, Dataset, drop_duplicates
from fedjax_sim.datasets.formats import prepared as prepared_format

DATA_DIR_VARIABLE = "FEDJAX_SIM_DATA"


class _Files(NamedTuple):
    """Files of a data set, and their reader."""

    read: Callable[[Path], Dataset | None]  # of a folder; None if it has no files of the data set
    folders: tuple[str, ...]  # to search in the data directory; "" is the directory itself
    wanted: str  # files that errors ask for
    # Files (and folders, with a slash) by which a folder shows that it has the data set, before
    # anything is read.
    patterns: tuple[str, ...]
    download: bool = False  # tensorflow-datasets offers it

    def within(self, root: Path) -> Iterator[Path]:
        """Yields the folders to search."""
        yield from (root / folder for folder in self.folders)


_CIFAR10, _CIFAR100, _MNIST = "cifar-10", "cifar-100", "train-images-idx3-ubyte*"
_PLAYS = ("data/train/", "train/*.json", "*_train.json", "shakespeare*.tar*")
_OF_PLAYS = leaf.WANTED.format("shakespeare")
# One more data set is one row.
_FILES: dict[str, _Files] = {
    "mnist": _Files(
        partial(mnist.from_folder, "mnist"), ("", "mnist"), mnist.WANTED, (_MNIST,), download=True
    ),
    "femnist": _Files(
        leaf.femnist, ("", "femnist"), leaf.WANTED.format("femnist"),
        ("data/train/", "train/*.json", "femnist*.tar*"),
    ),
    "cifar10": _Files(
        partial(cifar.from_folder, cifar.CIFAR10), ("", "cifar10", _CIFAR10),
        cifar.WANTED["cifar10"],
        (f"{_CIFAR10}-batches-*/", f"{_CIFAR10}-*.tar*"), download=True,
    ),
    "cifar100": _Files(
        partial(cifar.from_folder, cifar.CIFAR100), ("", "cifar100", _CIFAR100),
        cifar.WANTED["cifar100"],
        (f"{_CIFAR100}-binary/", f"{_CIFAR100}-python/", f"{_CIFAR100}-*.tar*"), download=True,
    ),
    "shakespeare": _Files(shakespeare.from_folder, ("", "shakespeare"), _OF_PLAYS, _PLAYS),
    "shakespeare_leaf": _Files(
        partial(shakespeare.from_folder, leaf=True), ("", "shakespeare_leaf", "shakespeare"),
        _OF_PLAYS, _PLAYS,
    ),
    "shakespeare_tff": _Files(
        shakespeare_tff.from_folder, ("", "shakespeare_tff", "shakespeare"), _OF_PLAYS, _PLAYS
    ),
    "tiny_imagenet": _Files(
        tiny_imagenet.from_folder,
        ("", "tiny_imagenet", "tiny-imagenet-200", "tiny_imagenet/tiny-imagenet-200"),
        tiny_imagenet.WANTED, ("wnids.txt",),
    ),
    "a9a": _Files(
        partial(linear.from_folder, "a9a"), ("", "a9a"), linear.WANTED["a9a"],
        ("a9a", "a9a.bz2", "a9a.*rows*"),
    ),
    "epsilon": _Files(
        partial(linear.from_folder, "epsilon"), ("", "epsilon", "epsilon-subset"),
        linear.WANTED["epsilon"], ("epsilon_normalized*",),
    ),
}  # fmt: skip
NAMES = ("digits", *_FILES)


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    source: str | None = None,
    download: bool = False,
    deduplicate: bool = False,
) -> Dataset:
    """Loads a data set by name.

    ================  =====================================  ==============  =====================
    name              examples, train + test                 classes         natural client
    ================  =====================================  ==============  =====================
    digits            1,438 + 359, uint8 [8, 8, 1]           10
    mnist             60,000 + 10,000, uint8 [28, 28, 1]     10              writer, with QMNIST's
                                                                             label files beside it
    femnist           as LEAF sampled it, uint8 [28, 28, 1]  62              writer
    cifar10           50,000 + 10,000, uint8 [32, 32, 3]     10
    cifar100          50,000 + 10,000, uint8 [32, 32, 3]     100, 20 coarse
    shakespeare       as LEAF sampled it, uint16 [80]        90, TFF's ids   role
    shakespeare_leaf  as LEAF sampled it, uint16 [80]        80, LEAF's ids  role
    shakespeare_tff   the same text, int32 [80], all next    90, TFF's ids   role
    tiny_imagenet     100,000 + 10,000, uint8 [64, 64, 3]    200
    a9a               32,561 + 16,281, float32 [123]         2
    epsilon           400,000 + 100,000, float32 [2000]      2
    ================  =====================================  ==============  =====================

    The labels of shakespeare_tff are int32 [80], the next character at every position
    (:mod:`fedjax_sim.datasets.shakespeare_tff`); those of all others are one class per example.
    ``digits`` is part of scikit-learn.  The other data sets are searched in ``data_dir``, then in
    the directory of tensorflow-datasets.  In each directory, ``load`` first looks for array_record
    files prepared by tensorflow-datasets (read without TensorFlow), then for the official raw files
    in the directory itself or in its folder NAME.  Data prepared by the builders of
    tensorflow-datasets have its fixed shuffled order; raw files keep their own order.  The test
    part of tiny_imagenet is its validation part, since the official test images have no labels.

    Args:
        name: one of :data:`NAMES`.
        data_dir: folder of the files; default: the environment variable ``FEDJAX_SIM_DATA``.
        source: "tfds" or "files" to accept only that form; default: both, in this order.
        download: if no files are found, let tensorflow-datasets download mnist, cifar10 or
            cifar100 into ``data_dir`` (its builders may need TensorFlow to write images).
        deduplicate: drop repeated train rows of each natural client; LEAF's FEMNIST has some
            (:func:`fedjax_sim.datasets.drop_duplicates`).

    Raises:
        ValueError: an unknown name or source.
        DataError: malformed files, or no files; the message names the expected files and folder.
        ImportError: a package of the extra ``datasets`` is required but not installed.

    Example:
        >>> load("digits").test["x"].shape
        (359, 8, 8, 1)
    """
    check_known(NAMES, name=name)
    check_choice(("tfds", "files", None), source=source)
    dataset = load_digits() if name == "digits" else _find(name, data_dir, source, download)
    return drop_duplicates(dataset) if deduplicate else dataset


def _find(name: str, data_dir: str | Path | None, source: str | None, download: bool) -> Dataset:
    given = data_folder(data_dir)
    notes = []
    for root in _roots(data_dir):
        prepared = prepared_format.find_prepared(root, name) if source != "files" else None
        if prepared is not None and prepared_format.is_readable(prepared):
            return prepared_format.read_prepared(prepared, name)
        if prepared is not None:
            notes.append(f"{prepared} is not in the array_record format and was skipped")
        dataset = _read_files(name, root) if source != "tfds" else None
        if dataset is not None:
            return dataset
    if download and _FILES[name].download:
        return prepared_format.download(name, given)
    wanted = _FILES[name].wanted
    if download:
        notes.append(f"tensorflow-datasets offers no download of {name}")
    if data_dir is None and not os.environ.get(DATA_DIR_VARIABLE):
        notes.append(f"data_dir is not given and {DATA_DIR_VARIABLE} is not set")
    raise DataError(
        "; ".join(
            [f"{name}: nothing found in {given}; expected {wanted} in {given / name}", *notes]
        )
    )


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Returns the folder in which data sets are searched first."""
    chosen = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    return Path(chosen).expanduser() if chosen else prepared_format.default_dir()


def folder_of(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Returns the folder with files of a data set besides digits, or None; reads nothing."""
    files = _FILES[name]
    for root in _roots(data_dir):
        prepared = prepared_format.find_prepared(root, name)
        if prepared is not None and prepared_format.is_readable(prepared):
            return prepared
        for folder in files.within(root):
            if any(_matches(folder, pattern) for pattern in files.patterns):
                return folder
    return None


def _matches(folder: Path, pattern: str) -> bool:
    return any(path.is_dir() == pattern.endswith("/") for path in folder.glob(pattern))


def _roots(data_dir: str | Path | None) -> tuple[Path, ...]:
    """Folders to search: the given one, and that of tensorflow-datasets."""
    return tuple(dict.fromkeys((data_folder(data_dir), prepared_format.default_dir())))


def _read_files(name: str, root: Path) -> Dataset | None:
    files = _FILES[name]
    found = (files.read(folder) for folder in files.within(root) if folder.is_dir())
    return next((dataset for dataset in found if dataset is not None), None)


def load_digits() -> Dataset:
    """Returns 1,797 scans of digits (Alpaydin and Kaynak, 1998), a fifth of them for testing."""
    bunch = import_extra("sklearn.datasets", "datasets").load_digits()
    x = np.rint(bunch["images"] * 255 / 16).astype(np.uint8)[..., None]
    y = bunch["target"].astype(np.int32)
    # The stream of RandomState is frozen, so the split is the same under every version of NumPy.
    shuffle = np.random.RandomState(0).permutation(len(y))
    is_test = np.zeros(len(y), bool)
    for label in range(10):
        rows = shuffle[y[shuffle] == label]
        is_test[rows[: round(len(rows) / 5)]] = True
    train, test = ({"x": x[rows], "y": y[rows]} for rows in (~is_test, is_test))
    return Dataset("digits", train, test, 10, None, None, None, source="scikit-learn")
