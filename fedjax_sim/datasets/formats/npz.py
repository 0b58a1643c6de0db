"""Parts and columns of an npz file: our own names, those of Keras, and those of MedMNIST."""

from collections.abc import Container
from pathlib import Path

import numpy as np

from fedjax_sim.data import archives
from fedjax_sim.datasets.dataset import DataError
from fedjax_sim.datasets.division import report

EXAMPLES = "x"
_PARTS = ("train", "test", "val")
_MEDMNIST = {"images": "x", "labels": "y"}


def read_npz(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Returns the columns of the parts "train" and, if there is one, "test", without validation."""
    # Names are COLUMN and COLUMN_test; COLUMN_train and COLUMN_test, as Keras has them; or
    # train_images, train_labels, ..., as MedMNIST.
    try:
        arrays = archives.read_npz(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise DataError(str(error)) from error
    return parts_of(str(path), arrays)


def parts_of(where: str, arrays: dict[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Returns the columns of each part by the names of arrays, see :func:`read_npz`."""
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, values in arrays.items():
        part, column = _place(name, arrays)
        columns = parts.setdefault(part, {})
        if column in columns:
            raise DataError(f"{where}: two arrays are {column} of {part}; expected one")
        columns[column] = values
    if EXAMPLES not in parts.get("train", {}):
        raise DataError(
            f"{where} has the arrays {', '.join(arrays)}; expected {EXAMPLES}, {EXAMPLES}_train or "
            "train_images, the examples"
        )
    if EXAMPLES not in parts.get("test", {EXAMPLES}):
        names = ", ".join(name for name in arrays if _place(name, arrays)[0] == "test")
        raise DataError(f"{where} has {names}; expected {EXAMPLES}_test with them")
    if "val" in parts:
        count = len(parts.pop("val").get(EXAMPLES, ()))
        report(where, "validation part is left out", [f"{count} examples"])
    return {part: parts[part] for part in ("train", "test") if part in parts}


def _place(name: str, names: Container[str]) -> tuple[str, str]:
    """Returns the part and the column of an array."""
    first, _, rest = name.partition("_")
    if first in _PARTS and rest in _MEDMNIST:
        return first, _MEDMNIST[rest]
    column, _, last = name.rpartition("_")
    is_part = last == "test" or (last in _PARTS and f"{EXAMPLES}_{last}" in names)
    return (last, column) if column and is_part else ("train", name)
