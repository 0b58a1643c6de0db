"""Data sets from tables: CSV, Parquet and NumPy's npz files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.checks import did_you_mean
from fedjax_sim.datasets.arrays import from_arrays
from fedjax_sim.datasets.dataset import DataError, Dataset, import_extra

SUFFIXES = (".csv", ".parquet", ".npz")
LABELS = ("y", "label")  # default names of the labels' column
SPLIT = "split"  # column with "train" and "test", if there is one


def is_table(name: str) -> bool:
    """Returns True for the path of a table.

    Example:
        >>> is_table("data/table.csv"), is_table("mnist")
        (True, False)
    """
    return Path(name).suffix.lower() in SUFFIXES


def read_table(
    path: str | Path, *, label_column: str | None = None, client_column: str | None = None
) -> Dataset:
    """Reads a data set from a table.

    CSV and Parquet files have a row per example: a column of labels, optional columns of clients
    and of the split ("train" or "test"), and the features, numbers, in all other columns.  npz
    files have an array per column, with the examples ``x`` ``[N, ...]``, and optionally ``x_test``
    and the labels and clients of the test examples under names with ``_test``.  Without a test
    part, a fifth of each class is for testing.

    Args:
        path: the file.
        label_column: column of the labels, numbers or text; default: ``y`` or ``label``.
        client_column: column of the client of each example; default: no natural clients.

    Raises:
        DataError: a file that cannot be read, or lacks a column; features that are no numbers.
        ImportError: pandas, or pyarrow for Parquet, is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "table.csv"
        ...     _ = path.write_text("a,b,writer,label\\n1,2,ann,cat\\n3,4,bob,dog\\n5,6,ann,dog\\n")
        ...     data = read_table(path, client_column="writer")
        >>> data.class_names, data.train["x"].shape[1:], sorted(data.group_names)
        (('cat', 'dog'), (2,), ['ann', 'bob'])
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected a table ({', '.join(SUFFIXES)})")
    read = _read_npz if path.suffix.lower() == ".npz" else _read_rows
    return read(path, label_column, client_column)


def _read_rows(path: Path, label_column: str | None, client_column: str | None) -> Dataset:
    pandas = import_extra("pandas")
    try:
        frame = pandas.read_parquet(path) if path.suffix == ".parquet" else pandas.read_csv(path)
    except (ValueError, OSError) as error:  # pandas' errors are ValueErrors
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    label = _column(path, "label_column", label_column, frame.columns, LABELS)
    used = [label]
    if client_column is not None:
        used.append(_column(path, "client_column", client_column, frame.columns))
    if SPLIT in frame.columns:
        used.append(SPLIT)
    features = frame.drop(columns=used)
    for name, kind in features.dtypes.items():
        if kind.kind not in "biuf":
            first = features[name].iloc[0]
            raise DataError(
                f"{path}: column {name!r} has values such as {first!r}; expected numbers (the "
                "label and the client are named by --label-column and --client-column)"
            )
    for name in used:
        if frame[name].isna().any():
            row = int(frame[name].isna().to_numpy().argmax()) + 1
            raise DataError(f"{path}: column {name!r} has no value in row {row}; expected one")
    if not len(features.columns):
        raise DataError(f"{path}: no columns besides {', '.join(used)}; expected features")
    x = features.to_numpy(np.float32)
    y = frame[label].to_numpy()
    y = y.astype(str) if y.dtype == object else np.asarray(y)
    clients = None if client_column is None else frame[client_column].astype(str).to_numpy()
    if SPLIT not in frame.columns:
        return from_arrays(x, y, clients=clients, name=path.stem)
    splits = frame[SPLIT].astype(str).to_numpy()
    unknown = set(splits) - {"train", "test"}
    if unknown or len(set(splits)) < 2:
        raise DataError(
            f"{path}: column {SPLIT!r} has {', '.join(sorted(set(splits)))}; expected train and "
            "test"
        )
    train, test = splits == "train", splits == "test"
    return from_arrays(
        x[train],
        y[train],
        test=(x[test], y[test]),
        clients=None if clients is None else clients[train],
        test_clients=None if clients is None else clients[test],
        name=path.stem,
    )


def _read_npz(path: Path, label_column: str | None, client_column: str | None) -> Dataset:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and NumPy each raise their own
        raise DataError(f"{path} cannot be read: {error}") from error
    x = _column(path, "x", "x", arrays)
    label = _column(path, "label_column", label_column, arrays, LABELS)
    client = None
    if client_column is not None:
        client = _column(path, "client_column", client_column, arrays)
    test = test_clients = None
    if "x_test" in arrays:
        test = arrays["x_test"], arrays[_column(path, "labels of x_test", f"{label}_test", arrays)]
        test_clients = arrays.get(f"{client}_test")
        if client is not None and test_clients is None:
            test_clients = np.full(len(test[1]), "test")
    return from_arrays(
        arrays[x],
        arrays[label],
        test=test,
        clients=None if client is None else arrays[client],
        test_clients=test_clients,
        name=path.stem,
    )


def _column(
    path: Path, option: str, name: str | None, columns: Any, defaults: Sequence[str] = ()
) -> str:
    """Returns the column that an option names, or the first default that the table has."""
    names = [str(column) for column in columns]
    if name is None:
        present = [default for default in defaults if default in names]
        if present:
            return present[0]
        raise DataError(
            f"{path}: no column {' or '.join(defaults)}; expected --label-column, one of "
            f"{', '.join(names)}"
        )
    if name not in names:
        raise DataError(
            f"{option} is {name!r}; expected one of {', '.join(names)}, the columns of {path}"
            f"{did_you_mean(name, names)}"
        )
    return name
