"""Handwritten digits of scikit-learn: real data without a download."""

import numpy as np

from fedjax_sim.checks import import_extra
from fedjax_sim.datasets.dataset import Dataset


def load_digits() -> Dataset:
    """Returns 1,797 scans of digits (Alpaydin and Kaynak, 1998), a fifth of them for testing."""
    bunch = import_extra("sklearn.datasets", "datasets").load_digits()
    x = np.rint(bunch["images"] * 255 / 16).astype(np.uint8)[..., None]
    y = bunch["target"].astype(np.int32)
    # The stream of RandomState is frozen, so the split is the same under every version of NumPy.
    shuffle = np.random.RandomState(0).permutation(len(y))
    is_test = np.zeros(len(y), bool)
    for label in range(10):
        rows = shuffle[y[shuffle] == label]
        is_test[rows[: round(len(rows) / 5)]] = True
    train, test = ({"x": x[rows], "y": y[rows]} for rows in (~is_test, is_test))
    return Dataset("digits", train, test, 10, None, None, None, source="scikit-learn")
