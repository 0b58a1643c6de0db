"""Shards of the sorted data set, and a number of classes per client."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.data import partition

seeds = st.integers(0, 2**32 - 1)


@given(
    labels=st.lists(st.integers(-2, 4), min_size=12, max_size=80).map(np.array),
    num_clients=st.integers(1, 4),
    k=st.integers(1, 3),
    seed=seeds,
)
def test_a_client_has_k_consecutive_pieces_of_the_sorted_rows(labels, num_clients, k, seed):
    size = len(labels) // (num_clients * k)
    assignment = partition.shards(labels, num_clients, k, seed)
    assert [len(rows) for rows in assignment] == [k * size] * num_clients
    place = np.argsort(np.argsort(labels, kind="stable"))  # of a row in the sorted data set
    pieces = [np.unique(place[rows] // size, return_counts=True) for rows in assignment]
    for _, counts in pieces:
        assert counts.tolist() == [size] * k
    drawn = np.concatenate([numbers for numbers, _ in pieces])
    assert sorted(drawn) == list(range(num_clients * k))  # each once, without the last N mod M k


def test_shards_of_mcmahan():
    labels = np.random.default_rng(0).integers(10, size=60_000)
    assignment = partition.shards(labels, 100, 2, seed=0)
    assert {len(rows) for rows in assignment} == {600}
    assert np.unique(np.concatenate(assignment)).size == 60_000
    classes = [len(set(labels[rows])) for rows in assignment]
    assert min(classes) == 1  # two shards of one class
    assert max(classes) <= 4  # two shards that span two classes each


@given(
    num_classes=st.integers(1, 6), k=st.integers(1, 6), num_clients=st.integers(1, 12), seed=seeds
)
def test_label_quantity_divides_k_classes_equally(num_classes, k, num_clients, seed):
    k = min(k, num_classes)
    labels = np.random.default_rng(seed).permutation(np.arange(20 * num_classes) % num_classes)
    assignment = partition.label_quantity(labels, num_clients, k, seed)
    counts = np.array([np.bincount(labels[rows], minlength=num_classes) for rows in assignment])
    assert ((counts > 0).sum(axis=1) == k).all()
    assert (counts[np.arange(num_clients), np.arange(num_clients) % num_classes] > 0).all()
    rows = np.concatenate(assignment)
    assert np.unique(rows).size == rows.size
    for own in counts.T:
        parts = own[own > 0]
        assert parts.sum() in (0, 20)
        assert not parts.size or np.ptp(parts) <= 1
    if num_clients >= num_classes:
        assert rows.size == labels.size


LABELS = np.arange(60) % 5


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: partition.shards(LABELS, 4, 0, 0), "k is 0; expected at least 1"),
        (lambda: partition.shards(LABELS, 31, 2, 0), "num_clients is 31 with at least 2 examples"),
        (lambda: partition.shards(LABELS[None], 4, 2, 0), r"labels has shape \(1, 60\)"),
        (lambda: partition.label_quantity(LABELS, 4, 6, 0), r"k is 6; expected 1 \.\. 5"),
        (lambda: partition.label_quantity(LABELS, 0, 1, 0), "num_clients is 0"),
        (lambda: partition.label_quantity(LABELS, 20, 5, 0), "k is 5: 20 clients take a part of"),
    ],
)
def test_bad_input_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()
