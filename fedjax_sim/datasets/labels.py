"""Labels with more than one axis or of several types: [N, 1], one-hot, Python objects."""

from decimal import Decimal
from typing import Any

import numpy as np

from fedjax_sim.checks import INT32_MAX
from fedjax_sim.datasets.dataset import DataError, group_text


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
