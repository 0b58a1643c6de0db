"""Labels with more than one axis: columns [N, 1], and one-hot labels."""

from typing import Any

import numpy as np

from fedjax_sim.datasets.dataset import DataError


def one_per_example(where: str, labels: Any) -> Any:
    """Returns labels ``[N, 1]``, as MedMNIST and Keras have them, as ``[N]``; others as they are.

    Raises:
        DataError: labels ``[N, C]``, one-hot or several per example, with the remedy.

    Example:
        >>> one_per_example("own", [[3], [5]]).tolist()
        [3, 5]
        >>> one_per_example("own", np.eye(2))
        Traceback (most recent call last):
        fedjax_sim.datasets.dataset.DataError: own labels are one-hot, float64[2, 2]; ...
    """
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
