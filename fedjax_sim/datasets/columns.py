"""Columns of tables of several libraries, and columns of text as zeros and ones per category."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from fedjax_sim.data import missing, with_nan
from fedjax_sim.datasets.dataset import DataError, Dataset, check_listed, group_text
from fedjax_sim.datasets.targets import is_number, reads_as_number

Encode = Literal["one_hot"]
_IDENTIFIER = re.compile(
    r"(?i:id|ids|uid|uuid|guid|idx|index|row|rowid|unnamed: \d+)|.*(_id|_ID|Id)"
)
_SOME_ROWS = 20  # from which different values in all rows are no accident


class Columns(NamedTuple):
    """A table whose columns are read when they are needed."""

    names: list[str]
    read: Callable[[str], np.ndarray]
    is_missing: Callable[[str], np.ndarray]  # rows without a value
    is_array: Callable[[str], bool]  # an array per row
    class_names: Callable[[str], Sequence[str] | None]  # of labels that are positions among them
    # Declared, in their order.
    categories: Callable[[str], Sequence[Any] | None] = lambda name: None


def columns_of(table: Any) -> Columns:
    """Returns the columns of a dict of arrays, or of a table of pandas, pyarrow or Hugging Face."""
    if hasattr(table, "column_names") and hasattr(table, "with_format"):  # Hugging Face
        if not hasattr(table, "__len__"):
            raise DataError(
                f"table is a {type(table).__name__}, a stream; expected rows that can be read more "
                "than once: load_dataset without streaming=True, or datasets.Dataset.from_list("
                "list(stream.take(n)))"
            )

        def read(name: str) -> np.ndarray:
            return np.asarray(table.select_columns([name]).with_format("numpy")[:][name])

        def names_of(name: str) -> Sequence[str] | None:
            return getattr(table.features[name], "names", None)

        def is_array(name: str) -> bool:
            return len(table) > 0 and np.ndim(table.with_format("numpy")[0][name]) > 0

        names = list(table.column_names)
        return Columns(names, read, lambda name: missing(read(name)), is_array, names_of)
    if hasattr(table, "column_names") and hasattr(table, "to_pandas"):  # pyarrow
        check_names("table", list(table.column_names))
        table = table.to_pandas()
    if hasattr(table, "columns") and hasattr(table, "isna"):  # pandas
        check_names("table", [str(name) for name in table.columns])
        by_name = {str(name): table[name] for name in table.columns}
        return Columns(
            list(by_name),
            lambda name: by_name[name].to_numpy(),
            lambda name: by_name[name].isna().to_numpy(),
            lambda name: len(table) > 0 and np.ndim(by_name[name].iloc[0]) > 0,
            lambda name: None,
            lambda name: getattr(getattr(by_name[name], "cat", None), "categories", None),
        )
    if isinstance(table, Mapping):
        check_names("table", [str(name) for name in table])
        given = {str(name): values for name, values in table.items()}
        arrays = {name: _column(name, values) for name, values in given.items()}
        return Columns(
            list(arrays),
            arrays.__getitem__,
            lambda name: missing(given[name]),
            lambda name: arrays[name].ndim > 1,
            lambda name: None,
        )
    raise DataError(
        f"table is {type(table).__name__}; expected a dict of arrays, a pandas DataFrame, a "
        "pyarrow.Table or a data set of Hugging Face"
    )


def _column(name: str, values: Any) -> np.ndarray:
    try:
        array = with_nan(values)
    except ValueError as error:
        raise DataError(
            f"table: column {name!r} is ragged; expected rows of one shape (lists of tokens: "
            "from_tokens)"
        ) from error
    if array.ndim == 0:
        raise DataError(f"table: column {name!r} is one value; expected one per example")
    return array


def without(where: str, table: Columns, drop: Sequence[str], *, some: bool = False) -> Columns:
    """Returns a table without some columns, of which it may lack some if ``some`` is True."""
    for name in drop:
        if not some:
            check_listed("drop", name, table.names, f"the columns of {where}")
    return table._replace(names=[name for name in table.names if name not in drop])


def check_names(where: object, names: Sequence[str]) -> None:
    """Refuses columns without a name, and two columns of one name."""
    for number, name in enumerate(names, start=1):
        if not name.strip():
            raise DataError(
                f"{where}: column {number} has no name; expected one (pandas' to_csv writes row "
                f"numbers without a name unless index=False; drop='Unnamed: {number - 1}' leaves "
                "them out)"
            )
        if name in names[: number - 1]:
            raise DataError(f"{where}: column {name!r} occurs twice; expected distinct names")


class Vocabulary(NamedTuple):
    """Categories of a column, whose codes are positions among them."""

    values: tuple[str, ...]
    declared: bool  # by the table; otherwise those of the training examples count


def identifiers(table: Columns, names: Sequence[str], encode: Encode | None) -> list[str]:
    """Returns the columns that name their row instead of describing it: ids, row numbers, names."""
    return [name for name in names if _is_identifier(name, table, encode)]


def _is_identifier(name: str, table: Columns, encode: Encode | None) -> bool:
    if table.is_array(name):
        return False
    values = table.read(name)
    if values.dtype.kind in "iu":
        consecutive = len(values) >= _SOME_ROWS and bool((np.diff(values) == 1).all())
        return consecutive or _IDENTIFIER.fullmatch(name.strip()) is not None
    if values.dtype.kind not in "OUS":
        return False
    if _IDENTIFIER.fullmatch(name.strip()) is not None:
        return True
    different = encode is not None and len(values) >= _SOME_ROWS and _as_numbers(values) is None
    return different and len(set(map(group_text, values))) == len(values)


def without_identifiers(
    where: str, table: Columns, names: list[str], encode: Encode | None
) -> list[str]:
    """Returns the columns of features without identifiers, of which a warning tells."""
    found = identifiers(table, names, encode)
    if not found:
        return names
    text = ", ".join(map(repr, found))
    if len(found) == len(names):
        raise DataError(
            f"{where}: columns {text} look like identifiers of rows; expected feature_columns, "
            "which names the features"
        )
    warnings.warn(
        f"{where}: columns {text} look like identifiers of rows and are no features; expected them "
        "in feature_columns to use them, or in drop",
        stacklevel=5,
    )
    return [name for name in names if name not in found]


def vocabularies(
    where: str, parts: Mapping[str, Columns], names: Sequence[str], encode: Encode | None
) -> dict[str, Vocabulary]:
    """Returns the categories of those columns of features that are text or categorical."""
    found: dict[str, Vocabulary] = {}
    for name in names:
        declared = parts["train"].categories(name)
        columns = {key: part.read(name) for key, part in parts.items() if name in part.names}
        are_numbers = all(_as_numbers(column) is not None for column in columns.values())
        if are_numbers and (declared is None or encode is None):
            continue
        if encode is None:
            key = next((key for key in columns if _as_numbers(columns[key]) is None), "train")
            _refuse_text(where if key == "train" else f"{where}: {key}", name, columns[key])
        if declared is None:
            texts = {group_text(value) for column in columns.values() for value in column}
            found[name] = Vocabulary(tuple(sorted(texts)), declared=False)
            continue
        for part in parts.values():
            other = part.categories(name)
            if other is not None and list(other) != list(declared):
                raise DataError(
                    f"{where}: column {name!r} declares the categories {list(other)} for testing; "
                    f"expected {list(declared)}, as in training"
                )
        found[name] = Vocabulary(tuple(map(group_text, declared)), declared=True)
    return found


def numbers_of(where: str, table: Columns, name: str, vocabulary: Vocabulary | None) -> np.ndarray:
    """Returns a column of features as float64 numbers, or as the codes of its categories."""
    values = table.read(name)
    if values.ndim != 1:
        raise DataError(f"{where}: column {name!r} has arrays; expected one number per row")
    if not len(values):
        raise DataError(f"{where} has no rows; expected one per example")
    if values.dtype.kind not in "biuf" and (is_missing := table.is_missing(name)).any():
        row = int(is_missing.argmax()) + 1
        raise DataError(f"{where}: column {name!r} has no value in row {row}; expected one")
    if vocabulary is None:
        numbers = _as_numbers(values)
        if numbers is None:
            _refuse_text(where, name, values)
        if not np.isfinite(numbers).all():
            row = int(np.argmin(np.isfinite(numbers)))
            raise DataError(
                f"{where}: column {name!r} has {numbers[row]} in row {row + 1}; expected finite "
                "numbers"
            )
        return numbers
    position = {value: code for code, value in enumerate(vocabulary.values)}
    codes = np.array([position.get(group_text(value), -1) for value in values], np.float64)
    if (codes < 0).any():
        row = int(codes.argmin())
        raise DataError(
            f"{where}: column {name!r} has {group_text(values[row])!r} in row {row + 1}; "
            "expected one of "
            f"{', '.join(vocabulary.values)}, its declared categories"
        )
    return codes


def one_hot(
    dataset: Dataset, features: Sequence[str], vocabulary: Mapping[str, Vocabulary]
) -> Dataset:
    """Returns the data set with a column of zeros and ones per category, where there are codes."""
    if not vocabulary:
        return dataset
    x, test = dataset.train["x"], dataset.test["x"]
    columns: list[np.ndarray] = []
    test_columns: list[np.ndarray] = []
    for at, name in enumerate(features):
        if name not in vocabulary:
            columns.append(x[:, at : at + 1])
            test_columns.append(test[:, at : at + 1])
            continue
        values, declared = vocabulary[name]
        codes = np.arange(len(values)) if declared else np.unique(x[:, at])
        unseen = np.setdiff1d(test[:, at], codes)
        if len(unseen):
            names = ", ".join(repr(values[int(code)]) for code in unseen)
            raise DataError(
                f"{dataset.name}: column {name!r} of the test examples has {names}, which no "
                "training example has; expected declared categories (pandas.Categorical), or other "
                "test examples"
            )
        columns.append(x[:, at : at + 1] == codes)
        test_columns.append(test[:, at : at + 1] == codes)
    parts = {
        "train": {**dataset.train, "x": np.concatenate(columns, axis=1, dtype=np.float64)},
        "test": {**dataset.test, "x": np.concatenate(test_columns, axis=1, dtype=np.float64)},
    }
    return dataset._replace(**parts)


def _as_numbers(values: np.ndarray) -> np.ndarray | None:
    """A column as float64; None if it is no numbers."""
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if values.dtype.kind != "O" or not all(map(is_number, values)):
        return None
    return values.astype(np.float64)


def _refuse_text(where: str, name: str, values: np.ndarray) -> NoReturn:
    at = next((at for at, value in enumerate(values) if not reads_as_number(value)), 0)
    row, value = at + 1, values[at]
    if missing([value]).any():
        raise DataError(f"{where}: column {name!r} has no value in row {row}; expected one")
    text = group_text(value)
    comma = re.fullmatch(r"\s*[-+]?\d+,\d+\s*", text) is not None
    remedy = (
        "decimal=',' of read_table (--decimal ,) reads decimal commas"
        if comma
        else ("encode='one_hot' (--encode one_hot) makes a column of zeros and ones per category")
    )
    raise DataError(
        f"{where}: column {name!r} has {text!r} in row {row}; expected numbers: {remedy} "
        "(label_column and client_column name the label and the client, drop leaves columns out)"
    )
