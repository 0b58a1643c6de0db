"""Columns of text as numbers: one column of zeros and ones per category."""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import numpy as np

from fedjax_sim.data import missing
from fedjax_sim.datasets.columns import Columns
from fedjax_sim.datasets.dataset import DataError, Dataset, group_text
from fedjax_sim.datasets.labels import is_number

Encode = Literal["one_hot"]
_IDENTIFIER = re.compile(
    r"(?i:id|ids|uid|uuid|guid|idx|index|row|rowid|unnamed: \d+)|.*(_id|_ID|Id)"
)
_SOME_ROWS = 20  # from which different values in all rows are no accident


class Vocabulary(NamedTuple):
    """Categories of a column, whose codes are positions among them."""

    values: tuple[str, ...]
    declared: bool  # by the table; otherwise those of the training examples count


def check_encode(encode: Any) -> None:
    """Refuses another name."""
    if encode not in (None, *get_args(Encode)):
        raise DataError(f"encode is {encode!r}; expected one of {', '.join(get_args(Encode))}")


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
    row, value = next(
        ((row, value) for row, value in enumerate(values, 1) if not _reads_as_number(value)),
        (1, values[0]),
    )
    if missing([value]).any():
        raise DataError(f"{where}: column {name!r} has no value in row {row}; expected one")
    text = group_text(value)
    comma = re.fullmatch(r"\s*[-+]?\d+,\d+\s*", text) is not None
    remedy = (
        "decimal=',' of read_table reads decimal commas"
        if comma
        else ("encode='one_hot' makes a column of zeros and ones per category")
    )
    raise DataError(
        f"{where}: column {name!r} has {text!r} in row {row}; expected numbers: {remedy} "
        "(label_column and client_column name the label and the client, drop leaves columns out)"
    )


def _reads_as_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
