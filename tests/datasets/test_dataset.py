"""Natural clients of a data set: their rows, and the work that finding them takes."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.datasets.dataset import Dataset


class Counted(np.ndarray):
    """An array that counts the entries which elementwise operations read."""

    entries = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        Counted.entries += max(np.size(x) for x in inputs)
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **options)


def dataset_of(groups, num_groups):
    rows = len(groups)
    part = {"x": np.arange(rows), "y": np.zeros(rows, np.int32)}
    names = tuple(f"c{i}" for i in range(num_groups))
    return Dataset("mine", part, part, 1, groups, groups, names, "own")


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.lists(st.integers(0, 6)))
def test_rows_of_clients_keep_their_order(train, test):
    data = dataset_of(np.array(train), 7)._replace(
        test={"x": np.arange(len(test)), "y": np.zeros(len(test), np.int32)},
        test_groups=np.array(test, int),
    )
    for part, groups in (("train", train), ("test", test)):
        clients = data.clients(part)
        assert clients.client_ids == tuple(f"c{g}" for g in sorted(set(train)))
        for i, group in enumerate(sorted(set(train))):
            rows = [row for row, own in enumerate(groups) if own == group]
            assert clients.client(i)["x"].tolist() == rows


def test_work_does_not_grow_with_clients_times_rows():
    """2,000 rows of 1,000 clients: a comparison of all rows for each client reads 2,000,000."""
    groups = np.random.default_rng(0).permutation(np.arange(2000) % 1000).view(Counted)
    Counted.entries = 0
    assert dataset_of(groups, 1000).clients().sizes.tolist() == [2] * 1000
    assert Counted.entries <= 2000 * math.log2(2000)
