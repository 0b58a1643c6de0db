"""Data sets from tables: NumPy arrays, pandas, Hugging Face; CSV, Parquet and npz files."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.arrays import Form, unscaled
from fedjax_sim.datasets.columns import (
    Columns,
    Encode,
    Vocabulary,
    check_names,
    columns_of,
    numbers_of,
    one_hot,
    vocabularies,
    without,
    without_identifiers,
)
from fedjax_sim.datasets.dataset import DataError, Dataset, check_choice, check_listed, group_text
from fedjax_sim.datasets.division import report_lost
from fedjax_sim.datasets.features import Layout, Scale, scaled
from fedjax_sim.datasets.formats.npz import read_npz
from fedjax_sim.datasets.targets import Target, of_one_type

_CSV = (".csv", ".tsv")
SUFFIXES = (*_CSV, ".parquet", ".npz")
_SEPARATORS = (",", ";", "\t")
LABELS = ("y", "label")  # default names of the labels' column
EXAMPLES = "x"  # column with whole examples, if there is one
SPLIT = "split"  # column with "train" and "test", if there is one


def is_table(name: str) -> bool:
    """Returns True for the path of a table."""
    return Path(name).suffix.lower() in SUFFIXES


def read_table(
    path: str | Path,
    *,
    label_column: str | None = None,
    client_column: str | None = None,
    drop: str | Sequence[str] = (),
    scale: Scale | None = None,
    layout: Layout | None = None,
    target: Target | None = None,
    encode: Encode | None = None,
    separator: str | None = None,
    decimal: str = ".",
) -> Dataset:
    """Reads a data set from a file with a table, see :func:`from_table`.

    CSV, TSV and Parquet files have a row per example.  Spaces around the fields of a CSV file do
    not count.  npz files have an array per column, with the
    examples ``x`` ``[N, ...]``, and optionally ``x_test`` and the labels and clients of the test
    examples under names with ``_test``; or the names of Keras (``x_train``, ``y_train``, ...) or of
    MedMNIST (``train_images``, ``train_labels``, ...).

    Args:
        path: the file.
        label_column: column of the labels, numbers or text; default: ``y`` or ``label``.
        client_column: column of the client of each example; default: no natural clients.
        drop, scale, layout, target, encode: as for :func:`from_table`.
        separator: of the fields of a CSV file; default: the one of comma, semicolon and tab that
            its first line has.
        decimal: "." or ",", the decimal sign of a CSV file.

    Raises:
        DataError: a file that cannot be read, or lacks a column; features that are no numbers; in
            CSV files a column without a name, rows with more fields than the header, or several
            separators in the header; as :func:`from_table`.
        ImportError: pandas, or pyarrow for Parquet, is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "table.csv"
        ...     _ = path.write_text("a,writer,label\\n1,ann,x\\n3,bob,x\\n5,ann,x\\n7,bob,x\\n")
        ...     data = read_table(path, client_column="writer")
        >>> data.class_names, data.train["x"].shape[1:], sorted(data.group_names)
        (('x',), (1,), ['ann', 'bob'])
    """
    path = Path(path)
    parts = read_columns(path, client_column, drop, separator, decimal)
    form = Form(scale, layout, target, encode)
    try:
        return _from_parts(parts, str(path), path.stem, label_column, client_column, None, form)
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise DataError(f"{path}: {error}") from error


def read_columns(
    path: Path,
    client_column: str | None = None,
    drop: str | Sequence[str] = (),
    separator: str | None = None,
    decimal: str = ".",
) -> dict[str, Columns]:
    """Returns the columns of "train" and, if an npz file has it, "test", as :func:`read_table`."""
    if not path.is_file():
        raise DataError(f"{path} does not exist; expected a table ({', '.join(SUFFIXES)})")
    drop = [drop] if isinstance(drop, str) else drop
    if path.suffix.lower() not in _CSV:
        for name, value, default in (("separator", separator, None), ("decimal", decimal, ".")):
            if value != default:
                raise DataError(f"{path}: {name} is {value!r}; expected a CSV file with it")
    parts = (
        _read_npz(path)
        if path.suffix.lower() == ".npz"
        else {"train": _read_rows(path, client_column, drop, separator, decimal)}
    )
    return _without(str(path), parts, drop)


def from_table(
    table: Any,
    *,
    test: Any = None,
    label_column: str | None = None,
    client_column: str | None = None,
    feature_columns: str | Sequence[str] | None = None,
    drop: str | Sequence[str] = (),
    scale: Scale | None = None,
    layout: Layout | None = None,
    target: Target | None = None,
    encode: Encode | None = None,
    name: str = "table",
) -> Dataset:
    """Returns a data set from a table with a row per example and, if known, its client.

    A table is a dict of arrays ``[N, ...]``, a pandas DataFrame, a ``pyarrow.Table``, or a data set
    of Hugging Face (``datasets.Dataset``, or ``datasets.DatasetDict`` with the parts "train" and
    "test").
    ``from_table(...).clients()`` are the clients, for ``fs.empirical_task``.

    The examples are the column ``x`` of arrays, else the only column of arrays (images,
    embeddings), else all columns besides labels, clients and split, which have to be numbers.
    Columns that look like identifiers (integers or text under a name such as ``id``, ``user_id`` or
    ``index``; consecutive integers) are left out with a warning, unless ``feature_columns`` names
    them.  The
    test part is ``test``, the part "test", or the rows with ``split`` "test"; else a fifth of each
    class, or with a column of clients a fifth of the rows of each client (at least one of two or
    more).  A ``test`` without the column of clients has no clients.  Labels and clients are
    numbered as in :func:`~fedjax_sim.datasets.from_arrays`; a ``ClassLabel`` of Hugging Face keeps
    its numbers and names, and a pandas ``Categorical`` the order of its categories.

    Args:
        table: training examples, or all examples.
        test: table of the test examples.
        label_column: column of the labels, numbers or text; default: ``y`` or ``label``.
        client_column: column of the client of each example; default: no natural clients.
        feature_columns: one column of arrays, or several columns of numbers.
        drop: columns to leave out, such as row numbers.
        scale, layout, target: as for :func:`~fedjax_sim.datasets.from_arrays`.
        encode: "one_hot" makes a column of zeros and ones of every category of features that are
            text or a ``Categorical``: of the declared categories, or of those of the training
            examples.
        name: name of the data set.

    Raises:
        DataError: another kind of table, a column that it lacks, two columns of one name, features
            that are no numbers, with the first such value and its row, a test example of a category
            that no training example has, a column ``x`` of single numbers beside other features,
            rows without label or client.

    Warns:
        UserWarning: clients without training or without test rows, by number and name.

    Example:
        >>> table = {"a": [1.0, 2.0, 3.0, 7.0], "b": [4, 5, 6, 8],
        ...          "writer": ["ann", "bob", "ann", "bob"], "label": ["cat", "dog", "dog", "cat"],
        ...          "split": ["train", "train", "test", "test"]}
        >>> data = from_table(table, client_column="writer")
        >>> data.train["x"].tolist(), data.class_names, data.clients().client_ids
        ([[1.0, 4.0], [2.0, 5.0]], ('cat', 'dog'), ('ann', 'bob'))
    """
    if isinstance(table, Mapping) and {"train", "test"} <= set(table) and test is None:
        table, test = table["train"], table["test"]
    parts = {
        key: columns_of(part)
        for key, part in (("train", table), ("test", test))
        if part is not None or key == "train"
    }
    parts = _without(name, parts, [drop] if isinstance(drop, str) else drop)
    form = Form(scale, layout, target, encode)
    return _from_parts(parts, name, name, label_column, client_column, feature_columns, form)


def _without(where: str, parts: dict[str, Columns], drop: Sequence[str]) -> dict[str, Columns]:
    return {key: without(where, part, drop, some=key == "test") for key, part in parts.items()}


def _read_rows(
    path: Path, client_column: str | None, drop: Sequence[str], separator: str | None, decimal: str
) -> Columns:
    pandas = import_extra("pandas", "datasets")
    names = []
    try:
        if path.suffix.lower() in _CSV:
            form = {
                "sep": separator or _separator(path), "decimal": decimal, "skipinitialspace": True,
            }  # fmt: skip
            header = pandas.read_csv(
                path, header=None, nrows=1, dtype=str, keep_default_na=False, **form
            )
            raw = header.iloc[0].tolist()
            names = [name.strip() for name in raw]
            # Names of clients as they are written: as numbers, "01" and "1" would be one client.
            dtype = {name: str for name in raw if name.strip() == client_column}
            # index_col: fields beyond the header are an error, not an index in the first column.
            with warnings.catch_warnings():
                warnings.simplefilter("error", pandas.errors.ParserWarning)
                frame = pandas.read_csv(path, dtype=dtype, index_col=False, **form)
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
    if names:
        read = [name or f"Unnamed: {at}" for at, name in enumerate(names)]  # as pandas names them
        check_names(path, [r if r in drop else name for r, name in zip(read, names, strict=True)])
        frame.columns = read
        for name in read:
            if frame[name].dtype.kind not in "biuf":
                frame[name] = frame[name].map(lambda v: v.strip() if isinstance(v, str) else v)
    return columns_of(frame)


def _separator(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        line = next((line for line in file if line.strip()), "")  # as pandas, after empty ones
    if path.suffix.lower() == ".tsv":
        return "\t"
    found = [mark for mark in _SEPARATORS if len(next(csv.reader([line], delimiter=mark), [])) > 1]
    if len(found) > 1:
        raise DataError(
            f"{path}: the first line has {' and '.join(map(repr, found))}; expected separator=, "
            "the one between its fields"
        )
    return found[0] if found else ","


def _read_npz(path: Path) -> dict[str, Columns]:
    return {key: columns_of(part) for key, part in read_npz(path).items()}


def _from_parts(
    parts: dict[str, Columns],
    where: str,
    name: str,
    label_column: str | None,
    client_column: str | None,
    feature_columns: str | Sequence[str] | None,
    form: Form,
) -> Dataset:
    check_choice("encode", form.encode, Encode)
    train = parts["train"]
    label = _column(where, "label_column", label_column, train.names, LABELS)
    if client_column is not None:
        _column(where, "client_column", client_column, train.names)
    used = [column for column in (label, client_column) if column is not None]
    has_split = SPLIT in train.names and "test" not in parts
    # Rows of a table that was divided by its column may be given with it.
    names_part = has_split or _names_parts(train)
    features = _feature_columns(
        where, train, [*used, SPLIT] if names_part else used, feature_columns, form.encode
    )
    vocabulary: dict[str, Vocabulary] = {}
    if not isinstance(features, str):
        vocabulary = vocabularies(where, parts, features, form.encode)
    categories = None if form.target == "numbers" else train.categories(label)
    values = {}
    for key, part in parts.items():
        own = where if key == "train" else f"{where}: test"
        x = _examples(own, part, features, vocabulary)
        y = _labels(own, part, label, categories)
        clients = None  # a test table may not say from whom its examples are
        if client_column is not None and (client_column in part.names or key == "train"):
            clients = _values(own, part, "client_column", client_column)
        values[key] = (x, y, clients)
    if has_split:
        values = _by_split(
            where, _values(where, train, "split", SPLIT).astype(str), values["train"]
        )
        if client_column is not None:
            report_lost(where, values["train"][2], values["test"][2])
    x, y, clients = values["train"]
    *test, test_clients = values.get("test", (None, None, None))
    test = None if test[0] is None else test
    dataset = unscaled(x, y, test, clients, test_clients, form, name)
    dataset = scaled(one_hot(dataset, features, vocabulary), form.scale)
    names = train.class_names(label) if categories is None else list(map(group_text, categories))
    return _with_class_names(dataset, names)


def _names_parts(table: Columns) -> bool:
    """Returns whether the table has a column that says "train" or "test" of each row."""
    if SPLIT not in table.names or table.is_array(SPLIT):
        return False
    return set(map(group_text, table.read(SPLIT).tolist())) <= {"train", "test"}


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
    where: str,
    table: Columns,
    used: list[str],
    given: str | Sequence[str] | None,
    encode: Encode | None,
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
    return whole[0] if whole else without_identifiers(where, table, others, encode)


def _examples(
    where: str, table: Columns, features: str | list[str], vocabulary: Mapping[str, Vocabulary]
) -> np.ndarray:
    if isinstance(features, str):
        values = table.read(_column(where, "feature_columns", features, table.names))
        if values.dtype == object and table.is_array(features):  # arrays in a column of objects
            try:
                return np.stack([np.asarray(value) for value in values])
            except ValueError as error:
                raise DataError(
                    f"{where}: column {features!r} has arrays of several shapes; expected one "
                    "(lists of tokens: from_tokens)"
                ) from error
        return values
    columns = []
    for name in features:
        _column(where, "feature_columns", name, table.names)
        values = numbers_of(where, table, name, vocabulary.get(name))
        if columns and len(values) != len(columns[0]):
            raise DataError(
                f"{where}: column {name!r} has {len(values)} rows; expected {len(columns[0])}, as "
                f"{features[0]!r}"
            )
        columns.append(values)
    return np.stack(columns, axis=1)


def _values(where: str, table: Columns, option: str, name: str) -> np.ndarray:
    """Returns a column of labels, clients or splits."""
    _column(where, option, name, table.names)
    is_missing = table.is_missing(name)
    if is_missing.any():
        row = int(is_missing.argmax()) + 1
        raise DataError(f"{where}: column {name!r} has no value in row {row}; expected one")
    return of_one_type(table.read(name))


def _labels(where: str, table: Columns, name: str, categories: Sequence[Any] | None) -> np.ndarray:
    """Returns the column of labels; declared categories as their numbers."""
    values = _values(where, table, "label_column", name)
    if categories is None:
        return values
    numbers = {group_text(value): number for number, value in enumerate(categories)}
    for row, value in enumerate(values, 1):
        if group_text(value) not in numbers:
            raise DataError(
                f"{where}: column {name!r} has {group_text(value)!r} in row {row}; expected one "
                f"of {', '.join(numbers)}, the declared categories"
            )
    return np.array([numbers[group_text(value)] for value in values], np.int64)


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
    check_listed(option, name, names, f"the columns of {where}")
    return name
