"""MNIST and data sets in its idx files, with writers from the label files of QMNIST."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_sim.datasets.dataset import DataError, Dataset, as_labels, number_groups, same_length
from fedjax_sim.datasets.formats.files import find_one, require, stream

_FILES = {
    ("train", "x"): "train-images-idx3-ubyte",
    ("train", "y"): "train-labels-idx1-ubyte",
    ("test", "x"): "t10k-images-idx3-ubyte",
    ("test", "y"): "t10k-labels-idx1-ubyte",
}
_QMNIST = {"train": "qmnist-train-labels-idx2-int", "test": "qmnist-test-labels-idx2-int"}
_CLASS, _WRITER = 0, 2  # columns of the QMNIST label files

# Of idx files: big-endian arrays of any rank behind a header of sizes.
_LARGEST_RANK = 8
_LONGEST_HEADER = 4 + 4 * _LARGEST_RANK
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

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


def parse_idx(data: bytes, where: object = "idx data") -> np.ndarray:
    """Returns the array of an uncompressed idx file, in native byte order."""
    header = _header(data, where)
    start, shape, dtype = header
    if len(data) != header.num_bytes:
        raise DataError(
            f"{where}: {len(data)} bytes; expected {header.num_bytes} for shape {shape} of {dtype}"
        )
    values = np.frombuffer(data, dtype, offset=start).reshape(shape)
    if dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError(f"{where}: has values that are not finite; expected finite numbers")
    return values.astype(dtype.newbyteorder("="))


def read_idx(path: Path) -> np.ndarray:
    """Reads an idx file, plain or compressed, and no more bytes than its header announces."""
    data = bytearray()
    for block in stream(path):
        data += block
        if len(data) >= _LONGEST_HEADER and len(data) > (header := _header(data, path)).num_bytes:
            raise DataError(
                f"{path}: more bytes than {header.num_bytes}; expected as many for shape "
                f"{header.shape} of {header.dtype}"
            )
    return parse_idx(bytes(data), path)


class _Header(NamedTuple):
    start: int  # of the values
    shape: list[int]
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self.start + math.prod(self.shape) * self.dtype.itemsize


def _header(data: bytes | bytearray, where: object) -> _Header:
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise DataError(
            f"{where}: begins with {data[:4].hex(' ') or 'nothing'}; expected the idx magic "
            f"00 00 TYPE RANK with TYPE one of {', '.join(f'{code:02x}' for code in _TYPES)}"
        )
    dtype, rank = np.dtype(_TYPES[data[2]]), data[3]
    start = 4 + 4 * rank
    if rank == 0 or rank > _LARGEST_RANK or len(data) < start:
        raise DataError(f"{where}: rank {rank} in {len(data)} bytes; expected 1 .. 8 sizes")
    shape = [int(size) for size in np.frombuffer(data, ">u4", rank, offset=4)]
    return _Header(start, shape, dtype)
