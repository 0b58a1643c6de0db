"""Per-client files of TensorFlow Federated: SQLite of today, HDF5 of earlier versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets import shakespeare_tff
from fedjax_sim.datasets.arrays import from_arrays
from fedjax_sim.datasets.dataset import DataError, Dataset, same_length

# Shapes of TensorFlow Federated's element types; SQLite has flat lists.
_SHAPES = {"pixels": (28, 28, 1), "image": (32, 32, 3)}
_LABEL, _TEXT = "label", "snippets"

Rows = dict[str, list[dict[str, Any]]]  # examples by client


def read_tff(
    path: str | Path, test: str | Path | None = None, *, name: str | None = None
) -> Dataset:
    """Reads the files that ``tff.simulation.datasets`` downloads, by client.

    EMNIST (``pixels`` float32 ``[28, 28, 1]``, background 1), CIFAR-100 (``image`` uint8 ``[32, 32,
    3]``) with the class ``label``, and Shakespeare (``snippets``), which becomes the task of
    :func:`fedjax_sim.datasets.shakespeare_tff.from_snippets`.  Other examples need one feature of
    numbers besides ``label`` (CIFAR-100's ``coarse_label`` is left out).  Neither TensorFlow nor
    TensorFlow Federated is needed; tensorflow-datasets reads the examples of SQLite.

    Args:
        path: a file ``.sqlite`` with the splits train and test (table ``examples``: ``split_name``,
            ``client_id``, ``serialized_example_proto``), decompressed; or a file ``.h5`` of the
            train part (``examples/CLIENT/FEATURE``).
        test: the ``.h5`` file of the test part.
        name: name of the data set; default: that of the file.

    Raises:
        DataError: another file, no split train or test, or other features.
        ImportError: tensorflow-datasets or h5py is not installed.

    Example:
        >>> data = read_tff("emnist_all.sqlite")  # doctest: +SKIP
        >>> data.clients().num_clients  # doctest: +SKIP
        3400
    """
    path = Path(path)
    for file in (path, *([] if test is None else [Path(test)])):
        if not file.is_file():
            raise DataError(f"{file} does not exist; expected a file .sqlite or .h5")
    if path.suffix.lower() in (".h5", ".hdf5"):
        if test is None:
            raise DataError(f"test is None; expected the .h5 file of the test part beside {path}")
        parts = {"train": _hdf5(path), "test": _hdf5(Path(test))}
    else:
        if test is not None:
            raise DataError(f"test is {str(test)!r}; expected None, {path} has both parts")
        parts = _sqlite(path)
    name = path.stem if name is None else name
    features = {feature for rows in parts["train"].values() for row in rows for feature in row}
    if features == {_TEXT}:
        train, test_part = (
            {c: [_text(r) for r in rows] for c, rows in p.items()} for p in parts.values()
        )
        return shakespeare_tff.from_snippets(train, test_part)
    chosen = sorted(features - {_LABEL, "coarse_label"})
    if _LABEL not in features or len(chosen) != 1:
        raise DataError(
            f"{path} has the features {', '.join(sorted(features))}; expected snippets, or label "
            "and one feature of numbers"
        )
    (x, y, clients), (x_test, y_test, test_clients) = (
        _columns(f"{path}: {part}", rows, chosen[0]) for part, rows in parts.items()
    )
    return from_arrays(
        x, y, test=(x_test, y_test), clients=clients, test_clients=test_clients, name=name
    )._replace(source="files")


def _sqlite(path: Path) -> dict[str, Rows]:
    query = (
        "SELECT split_name, client_id, serialized_example_proto FROM examples "
        "ORDER BY client_id, rowid"
    )
    parts: dict[str, Rows] = {"train": {}, "test": {}}
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as file:
            file.execute("PRAGMA trusted_schema = OFF")
            for split, client, message in file.execute(query):
                if split in parts:
                    rows = parts[split].setdefault(str(client), [])
                    rows.append(parse_example(message, f"{path}: {client}"))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of a damaged schema
        raise DataError(
            f"{path} cannot be read: {error}; expected a database of TensorFlow Federated, "
            "decompressed (unlzma)"
        ) from error
    if empty := [split for split, clients in parts.items() if not clients]:
        raise DataError(f"{path} has no split {' or '.join(empty)}; expected both parts")
    return parts


def _hdf5(path: Path) -> Rows:
    h5py = import_extra("h5py", "datasets")
    try:
        with h5py.File(path, "r") as file:
            clients = {
                str(client): {feature: np.asarray(values) for feature, values in group.items()}
                for client, group in file["examples"].items()
            }
    except (OSError, KeyError, AttributeError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read: {error}; expected a file of TensorFlow Federated"
        ) from error
    return {
        client: list(_rows(columns, f"{path}: {client}")) for client, columns in clients.items()
    }


def _rows(columns: dict[str, np.ndarray], where: str) -> Iterator[dict[str, Any]]:
    if any(map(len, columns.values())):  # TensorFlow Federated keeps clients without examples
        same_length(where, **columns)
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _text(row: dict[str, Any]) -> str:
    value = row[_TEXT]
    value = value[0] if isinstance(value, list) else value
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _columns(where: str, clients: Rows, feature: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    rows = [row for own in clients.values() for row in own]
    owners = [client for client, own in clients.items() for _ in own]
    try:
        x = np.stack([np.asarray(row[feature]) for row in rows])
        y = np.array([np.asarray(row[_LABEL]).item() for row in rows])
        x = x.reshape(len(x), *_SHAPES.get(feature, x.shape[1:]))
    except (ValueError, KeyError) as error:
        raise DataError(
            f"{where}: {feature} or {_LABEL} is missing or has another shape in an example"
        ) from error
    if feature == "image":
        if x.dtype.kind not in "iu" or x.min() < 0 or x.max() > 255:
            raise DataError(
                f"{where}: image has {x.dtype} {x.min()} .. {x.max()}; expected 0 .. 255"
            )
        x = x.astype(np.uint8)
    return x, y, owners


def parse_example(data: bytes, where: object = "tf.train.Example") -> dict[str, Any]:
    """Returns the features: float32 or int64 ``[n]``, or a list of bytes."""
    protocol = import_extra("tensorflow_datasets.proto", "datasets").tf_example_pb2
    try:
        example = protocol.Example.FromString(data)
    except Exception as error:  # protobuf's own kinds, which its implementations do not share
        raise DataError(f"{where}: {error}; expected the message tf.train.Example") from error
    return {name: _values(feature) for name, feature in example.features.feature.items()}


def _values(feature: Any) -> Any:
    kind = feature.WhichOneof("kind")
    if kind in (None, "bytes_list"):
        return list(feature.bytes_list.value)
    dtype = np.float32 if kind == "float_list" else np.int64
    return np.array(getattr(feature, kind).value, dtype)
