"""Targets: classes, numbered 0..C-1, or real numbers, for regression; labels in other forms."""

import re
from decimal import Decimal
from typing import Any, Literal

import numpy as np

from fedjax_sim.checks import INT32_MAX
from fedjax_sim.datasets.dataset import DataError, group_text

Target = Literal["classes", "numbers"]
_MOST_LABEL = 2**53  # float64 has all integers below it
_FRACTION = re.compile(r"\s*[-+]?\d*[.,]\d+(?:[eE][-+]?\d+)?\s*")


def kind_of(where: str, y: np.ndarray, target: Target | None) -> Target:
    """Returns the kind of targets ``[N]``: the given one, else by their type."""
    # Text, booleans and integers are classes; floats are numbers, if one of them is not whole.
    kind = y.dtype.kind
    if y.ndim != 1 or kind not in "biuUSf":
        raise DataError(
            f"{where} labels are {y.dtype}{list(y.shape)}; expected a list of integers or text, "
            "the classes, or of real numbers, for regression"
        )
    if kind == "f" and not np.isfinite(y).all():
        row = int(np.argmin(np.isfinite(y)))
        raise DataError(f"{where} labels have {y[row]} at [{row}]; expected finite numbers")
    whole = kind != "f" or bool((y == np.rint(y)).all())
    if target is None:
        if kind == "f" and whole:
            raise DataError(
                f"{where} labels are whole floats such as {y[0]}; expected target='classes' or "
                "target='numbers', for regression (in a file: integers such as "
                f"{group_text(y[0])} are classes)"
            )
        if kind in "US":
            _refuse_fractions(where, y)
        return "numbers" if kind == "f" else "classes"
    if target == "numbers" and kind in "US":
        row, text = _first_text(y)
        raise DataError(
            f"{where} labels have {text!r} at [{row}]; expected numbers, since target='numbers'"
        )
    if target == "classes" and not whole:
        fraction = y[np.argmax(y != np.rint(y))]
        raise DataError(f"{where} labels have {fraction}; expected integers or text, the classes")
    return target


def _refuse_fractions(where: str, y: np.ndarray) -> None:
    """Refuses text with fractions, such as prices among which one is "?"."""
    fraction = next((text for text in map(group_text, y) if _FRACTION.fullmatch(text)), None)
    if fraction is None:
        return
    row, text = _first_text(y)
    other = "" if reads_as_number(text) else f", with {text!r} at [{row}]"
    raise DataError(
        f"{where} labels are text such as {fraction!r}{other}; expected numbers, for regression "
        "(decimal=',' of read_table reads decimal commas), or target='classes'"
    )


def _first_text(y: np.ndarray) -> tuple[int, str]:
    """Returns the first label that is no number, or else the first, and its position."""
    texts = list(map(group_text, y))
    return next(
        ((i, text) for i, text in enumerate(texts) if not reads_as_number(text)), (0, texts[0])
    )


def reads_as_number(value: Any) -> bool:
    """Returns True for numbers, and for text that tables read as one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return "_" not in str(value)  # Python reads 1_0 as 10, tables do not


def as_targets(where: str, y: np.ndarray, kind: Target) -> np.ndarray:
    """Returns targets of one type: float32 numbers; of classes int64 numbers or text."""
    if kind == "numbers":
        with np.errstate(over="ignore"):  # checked here
            numbers = y.astype(np.float32)
        if not np.isfinite(numbers).all():
            raise DataError(f"{where} labels have {np.abs(y).max()}; expected numbers of float32")
        return numbers
    if y.dtype.kind in "uf" and len(y):  # one type, so that all parts have integers as names
        if float(np.abs(y).max()) >= _MOST_LABEL:
            raise DataError(f"{where} labels have {y[np.abs(y).argmax()]}; expected below 2^53")
        return y.astype(np.int64)
    return np.array([group_text(label) for label in y]) if y.dtype.kind == "S" else y


def one_per_example(where: str, labels: Any) -> Any:
    """Returns labels ``[N, 1]`` of MedMNIST and Keras as ``[N]``; others as they are."""
    try:
        array = np.asarray(labels)
    except ValueError:  # ragged: others say what is wrong
        return labels
    if array.ndim != 2:
        return labels
    if array.shape[1] == 1:
        return array[:, 0]
    shape = f"{array.dtype}{list(array.shape)}"
    numeric = array.dtype.kind in "biuf"
    if numeric and np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all():
        raise DataError(
            f"{where} labels are one-hot, {shape}; expected one class per example: "
            "labels.argmax(axis=1)"
        )
    raise DataError(
        f"{where} labels are {shape}; expected one class per example (several labels per example: "
        "fs.FederatedData and an own loss)"
    )


def of_one_type(values: np.ndarray) -> np.ndarray:
    """Returns a column of Python objects as integers, booleans, real numbers or text."""
    # Tables of pandas and Arrow have text, decimal numbers and columns of several types as objects.
    if values.dtype != object or values.ndim != 1:
        return values
    if all(isinstance(value, bool | np.bool_) for value in values):
        return values.astype(bool)
    if all(is_number(value) and not isinstance(value, bool | np.bool_) for value in values):
        integers = [isinstance(value, int | np.integer) for value in values]
        if not all(integers):
            return values.astype(np.float64)
        if all(abs(value) <= INT32_MAX for value in values):
            return values.astype(np.int64)  # 10 comes after 9, as in a column of integers
    return np.array([group_text(value) for value in values])


def is_number(value: Any) -> bool:
    """Returns True for real numbers and booleans of Python and NumPy."""
    return isinstance(value, bool | int | float | Decimal | np.integer | np.floating | np.bool_)
