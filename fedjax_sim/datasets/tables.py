"""Data sets from tables: NumPy arrays, pandas, Hugging Face; CSV, Parquet and npz files."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.checks import INT32_MAX, did_you_mean
from fedjax_sim.datasets.arrays import from_arrays
from fedjax_sim.datasets.columns import Columns, check_names, columns_of
from fedjax_sim.datasets.dataset import DataError, Dataset, group_text, import_extra

SUFFIXES = (".csv", ".parquet", ".npz")
LABELS = ("y", "label")  # default names of the labels' column
EXAMPLES = "x"  # column with whole examples, if there is one
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
    """Reads a data set from a file with a table, see :func:`from_table`.

    CSV and Parquet files have a row per example.  npz files have an array per column, with the
    examples ``x`` ``[N, ...]``, and optionally ``x_test`` and the labels and clients of the test
    examples under names with ``_test``.

    Args:
        path: the file.
        label_column: column of the labels, numbers or text; default: ``y`` or ``label``.
        client_column: column of the client of each example; default: no natural clients.

    Raises:
        DataError: a file that cannot be read, or lacks a column; features that are no numbers; in
            CSV files a column without a name, or rows with more fields than the header.
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
    is_npz = path.suffix.lower() == ".npz"
    parts = _read_npz(path) if is_npz else {"train": _read_rows(path, client_column)}
    try:
        return _from_parts(parts, str(path), path.stem, label_column, client_column, None)
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise DataError(f"{path}: {error}") from error


def from_table(
    table: Any,
    *,
    test: Any = None,
    label_column: str | None = None,
    client_column: str | None = None,
    feature_columns: str | Sequence[str] | None = None,
    name: str = "table",
) -> Dataset:
    """Returns a data set from a table with a row per example and, if known, its client.

    A table is a dict of arrays ``[N, ...]``, a pandas DataFrame, or a data set of Hugging Face
    (``datasets.Dataset``, or ``datasets.DatasetDict`` with the parts "train" and "test").
    ``from_table(...).clients()`` are the clients, for ``fs.empirical_task``.

    The examples are the column ``x`` of arrays, else the only column of arrays (images,
    embeddings), else all columns besides labels, clients and split, which have to be numbers.  The
    test part is ``test``, the part "test", or the rows with ``split`` "test"; else a fifth of each
    class.  A ``test`` without the column of clients has no clients.  Labels and
    clients are numbered as in :func:`~fedjax_sim.datasets.from_arrays`; a ``ClassLabel`` of Hugging
    Face keeps its numbers and names.

    Args:
        table: training examples, or all examples.
        test: table of the test examples.
        label_column: column of the labels, numbers or text; default: ``y`` or ``label``.
        client_column: column of the client of each example; default: no natural clients.
        feature_columns: one column of arrays, or several columns of numbers.
        name: name of the data set.

    Raises:
        DataError: another kind of table, a column that it lacks, two columns of one name, features
            that are no numbers, a column ``x`` of single numbers beside other features, rows
            without label or client.

    Example:
        >>> table = {"a": [1.0, 2.0, 3.0], "b": [4, 5, 6], "writer": ["ann", "bob", "ann"],
        ...          "label": ["cat", "dog", "dog"], "split": ["train", "train", "test"]}
        >>> data = from_table(table, client_column="writer")
        >>> data.train["x"].tolist(), data.class_names, data.clients().client_ids
        ([[1.0, 4.0], [2.0, 5.0]], ('cat', 'dog'), ('ann', 'bob'))
    """
    if isinstance(table, Mapping) and {"train", "test"} <= set(table) and test is None:
        table, test = table["train"], table["test"]
    parts = {
        key: columns_of(part)
        for key, part in (("train", table), ("test", test))
        if part is not None
    }
    return _from_parts(parts, name, name, label_column, client_column, feature_columns)


def _read_rows(path: Path, client_column: str | None) -> Columns:
    pandas = import_extra("pandas")
    names = []
    try:
        if path.suffix.lower() == ".csv":
            header = pandas.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
            names = header.iloc[0].tolist()
            # Names of clients as they are written: as numbers, "01" and "1" would be one client.
            dtype = {} if client_column is None else {client_column: str}
            # index_col: fields beyond the header are an error, not an index in the first column.
            with warnings.catch_warnings():
                warnings.simplefilter("error", pandas.errors.ParserWarning)
                frame = pandas.read_csv(path, dtype=dtype, index_col=False)
        else:
            frame = pandas.read_parquet(path)
    except pandas.errors.ParserWarning as error:
        raise DataError(
            f"{path}: rows have more fields than the header; expected {len(names)}, its names"
        ) from error
    except ImportError:  # of pyarrow
        raise
    except Exception as error:  # pandas and pyarrow raise a dozen kinds
        reason = (str(error).splitlines() or [""])[0]
        raise DataError(f"{path} cannot be read: {reason or type(error).__name__}") from error
    check_names(path, names)
    return columns_of(frame)


def _read_npz(path: Path) -> dict[str, Columns]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and NumPy each raise their own
        raise DataError(f"{path} cannot be read: {error}") from error
    _column(str(path), "x", EXAMPLES, arrays)
    tests = {name: arrays.pop(name) for name in [*arrays] if name.endswith("_test")}
    parts = {"train": arrays}
    if tests and f"{EXAMPLES}_test" not in tests:
        raise DataError(f"{path} has {', '.join(tests)}; expected {EXAMPLES}_test with them")
    if tests:
        parts["test"] = {name.removesuffix("_test"): values for name, values in tests.items()}
    return {key: columns_of(part) for key, part in parts.items()}


def _from_parts(
    parts: dict[str, Columns],
    where: str,
    name: str,
    label_column: str | None,
    client_column: str | None,
    feature_columns: str | Sequence[str] | None,
) -> Dataset:
    train = parts["train"]
    label = _column(where, "label_column", label_column, train.names, LABELS)
    if client_column is not None:
        _column(where, "client_column", client_column, train.names)
    used = [column for column in (label, client_column) if column is not None]
    has_split = SPLIT in train.names and "test" not in parts
    features = _feature_columns(
        where, train, [*used, SPLIT] if has_split else used, feature_columns
    )
    values = {}
    for key, part in parts.items():
        own = where if key == "train" else f"{where}: test"
        x = _examples(own, part, features)
        y = _values(own, part, "label_column", label)
        clients = None  # a test table may not say from whom its examples are
        if client_column is not None and (client_column in part.names or key == "train"):
            clients = _values(own, part, "client_column", client_column)
        values[key] = (x, y, clients)
    if has_split:
        values = _by_split(
            where, _values(where, train, "split", SPLIT).astype(str), values["train"]
        )
    x, y, clients = values["train"]
    test = values.get("test")
    dataset = from_arrays(
        x, y, clients=clients, name=name,
        test=None if test is None else test[:2],
        test_clients=None if test is None else test[2],
    )  # fmt: skip
    return _with_class_names(dataset, train.class_names(label))


def _by_split(where: str, splits: np.ndarray, whole: tuple) -> dict[str, tuple]:
    if set(splits) != {"train", "test"}:
        raise DataError(
            f"{where}: column {SPLIT!r} has {', '.join(sorted(set(splits)))}; expected train and "
            "test"
        )
    if len(splits) != len(whole[0]):
        raise DataError(
            f"{where}: column {SPLIT!r} has {len(splits)} rows; expected {len(whole[0])}"
        )
    return {
        key: tuple(None if column is None else column[splits == key] for column in whole)
        for key in ("train", "test")
    }


def _feature_columns(
    where: str, table: Columns, used: list[str], given: str | Sequence[str] | None
) -> str | list[str]:
    """Returns one column of whole examples, or the columns of numbers."""
    if isinstance(given, str):
        return _column(where, "feature_columns", given, table.names)
    if given is not None:
        if not given:
            raise DataError("feature_columns is empty; expected the name of a column or more")
        return [_column(where, "feature_columns", name, table.names) for name in given]
    others = [name for name in table.names if name not in used]
    if EXAMPLES in others:
        if len(others) > 1 and not table.is_array(EXAMPLES):
            raise DataError(
                f"{where}: column {EXAMPLES!r} has one value per row, and there are {len(others)} "
                f"columns of features ({', '.join(others)}); expected feature_columns, or another "
                f"name than {EXAMPLES!r}"
            )
        return EXAMPLES
    if not others:
        raise DataError(f"{where}: no columns besides {', '.join(used)}; expected features")
    whole = [name for name in others if table.is_array(name)]
    if len(whole) > 1:
        columns = ", ".join(whole)
        raise DataError(f"{where}: columns {columns} hold arrays; expected one as feature_columns")
    return whole[0] if whole else others


def _examples(where: str, table: Columns, features: str | list[str]) -> np.ndarray:
    if isinstance(features, str):
        values = table.read(_column(where, "feature_columns", features, table.names))
        if values.dtype == object and table.is_array(features):  # arrays in a column of objects
            try:
                return np.stack([np.asarray(value) for value in values])
            except ValueError as error:
                raise DataError(
                    f"{where}: column {features!r} has arrays of several shapes; expected one"
                ) from error
        return values
    columns = [table.read(_column(where, "feature_columns", c, table.names)) for c in features]
    for name, values in zip(features, columns, strict=True):
        if values.dtype.kind not in "biuf" or values.ndim != 1:
            if not len(values):
                raise DataError(f"{where} has no rows; expected one per example")
            raise DataError(
                f"{where}: column {name!r} has values such as {values[0]!r}; expected numbers "
                "(label_column and client_column name the label and the client)"
            )
        if len(values) != len(columns[0]):
            raise DataError(
                f"{where}: column {name!r} has {len(values)} rows; expected {len(columns[0])}, as "
                f"{features[0]!r}"
            )
    with np.errstate(over="ignore"):  # from_arrays refuses infinities
        return np.stack(columns, axis=1, dtype=np.float32, casting="unsafe")


def _values(where: str, table: Columns, option: str, name: str) -> np.ndarray:
    """Returns a column of labels, clients or splits."""
    _column(where, option, name, table.names)
    is_missing = table.is_missing(name)
    if is_missing.any():
        row = int(is_missing.argmax()) + 1
        raise DataError(f"{where}: column {name!r} has no value in row {row}; expected one")
    values = table.read(name)
    if values.dtype != object:
        return values
    if all(_is_integer(v) for v in values):
        return values.astype(np.int64)  # 10 comes after 9, as in a column of integers
    return np.array([group_text(v) for v in values])


def _is_integer(value: Any) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and bool(abs(value) <= INT32_MAX)


def _with_class_names(dataset: Dataset, names: Sequence[str] | None) -> Dataset:
    """Returns the data set with the labels' own numbers, which are positions in ``names``."""
    if names is None or dataset.class_names is None:
        return dataset
    numbers = np.array([int(name) for name in dataset.class_names], np.int32)
    if numbers.min() < 0 or numbers.max() >= len(names):
        raise DataError(
            f"{dataset.name}: labels are in {numbers.min()} .. {numbers.max()}; expected 0 .. "
            f"{len(names) - 1}"
        )
    train, test = ({**part, "y": numbers[part["y"]]} for part in (dataset.train, dataset.test))
    return dataset._replace(
        train=train, test=test, num_classes=len(names), class_names=tuple(names)
    )


def _column(
    where: str, option: str, name: str | None, columns: Any, defaults: Sequence[str] = ()
) -> str:
    """Returns the column that an option names, or the first default that the table has."""
    names = [str(column) for column in columns]
    if name is None:
        present = [default for default in defaults if default in names]
        if present:
            return present[0]
        raise DataError(
            f"{where}: no column {' or '.join(defaults)}; expected label_column, one of "
            f"{', '.join(names)}"
        )
    if name not in names:
        raise DataError(
            f"{option} is {name!r}; expected one of {', '.join(names)}, the columns of {where}"
            f"{did_you_mean(name, names)}"
        )
    return name
