"""Data sets in LEAF's json format whose examples are numbers, such as FedProx's synthetic one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.datasets.arrays import from_arrays
from fedjax_sim.datasets.dataset import DataError, Dataset
from fedjax_sim.datasets.formats.files import read_bytes
from fedjax_sim.datasets.formats.leaf import (
    Examples,
    Users,
    divided,
    has_parts,
    joined_users,
    parse_json,
    read_parts,
    users_of,
)

_WANTED = "a json file, or a folder with train/*.json and test/*.json, as LEAF writes them"


def read_leaf(path: str | Path, *, name: str | None = None) -> Dataset:
    """Reads a data set in LEAF's json format: vectors of numbers with a label each, by user.

    Each file is ``{"users": [names], "num_samples": [n], "user_data": {name: {"x": [n, ...]
    numbers, "y": [n] labels}}}``.  A folder has ``train/*.json`` and ``test/*.json``, in itself or
    in its folder ``data``.  In a single file, a fifth of each user's samples is for testing
    (:func:`~fedjax_sim.datasets.from_arrays`).  Examples become float32; labels are numbers or
    text.  Images of FEMNIST and text of Shakespeare: ``load("femnist")``, ``load("shakespeare")``.

    Source: Caldas et al., "LEAF: A benchmark for federated settings", 2018; the data of Li et al.,
    "Federated optimization in heterogeneous networks" (FedProx), 2020, have this form.

    Args:
        path: the file or folder.
        name: name of the data set; default: that of the file or folder.

    Raises:
        DataError: no such files, a malformed one, a user in two files of one part, examples that
            are no numbers or of several shapes, labels as :func:`~fedjax_sim.datasets.from_arrays`.

    Warns:
        UserWarning: users without samples.

    Example:
        >>> import json, tempfile
        >>> data = {"f_0": {"x": [[0.5, 1], [2, 3]], "y": [1.0, 1.0]},
        ...         "f_1": {"x": [[4, 5], [6, 7]], "y": [1.0, 1.0]}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "synthetic.json"
        ...     _ = file.write_text(json.dumps(
        ...         {"users": ["f_0", "f_1"], "num_samples": [2, 2], "user_data": data}))
        ...     dataset = read_leaf(file)
        >>> dataset.name, dataset.group_names, dataset.train["x"].shape, dataset.test["x"].shape
        ('synthetic', ('f_0', 'f_1'), (2, 2), (2, 2))
    """
    path = Path(path)
    name = path.stem if name is None else name
    if path.is_file():
        users = users_of(parse_json(read_bytes(path), path), path, _numbers)
        x, y, clients = divided(path, {"all": joined_users(path, "all", {path.name: users})})["all"]
        return from_arrays(
            x, _classes(y), clients=clients, scale="none", layout="as_given", name=name
        )._replace(source="files")
    location = next((folder for folder in (path / "data", path) if has_parts(folder)), None)
    if location is None:
        raise DataError(f"{path} has no data of LEAF; expected {_WANTED}")

    def parse(data: bytes, where: str, part: str) -> Users:
        del part
        return users_of(parse_json(data, where), where, _numbers)

    (x, y, clients), (x_test, y_test, test_clients) = read_parts(location, parse).values()
    return from_arrays(
        x, _classes(y), test=(x_test, _classes(y_test)), clients=clients,
        test_clients=test_clients, scale="none", layout="as_given", name=name,
    )._replace(source="files")  # fmt: skip


def _classes(y: np.ndarray) -> np.ndarray:
    """Returns whole numbers as integers; FedProx writes classes as floats."""
    is_whole = y.dtype.kind == "f" and (y == np.rint(y)).all() and np.abs(y).max() < 2**53
    return y.astype(np.int64) if is_whole else y


def _numbers(x: Any, y: Any, where: str) -> Examples:
    try:
        examples, labels = np.asarray(x), np.asarray(y)
    except (ValueError, OverflowError):
        raise DataError(f"{where}: x or y is ragged; expected examples of one shape") from None
    if examples.dtype.kind not in "biuf" or examples.ndim < 2:
        raise DataError(
            f"{where}: x has {examples.dtype}{list(examples.shape)}; expected vectors of numbers "
            '(windows of text: load("shakespeare"))'
        )
    if labels.ndim != 1 or len(labels) != len(examples):
        raise DataError(
            f"{where}: y has {list(labels.shape)} entries; expected {len(examples)}, one per sample"
        )
    return examples.astype(np.float32), labels
