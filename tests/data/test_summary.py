"""Summaries against counts made by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.data.federated import FederatedData, from_clients
from fedjax_sim.data.summary import PartitionSummary, Spread, label_counts, summarize

# Client 0: labels 0 0 0 2; client 1: none; client 2: 1 1; client 3: 0 1.
BY_HAND = FederatedData(
    {"y": np.array([0, 0, 2, 0, 1, 1, 1, 0], dtype=np.uint8)}, np.array([0, 4, 4, 6, 8])
)


def test_label_counts_by_hand():
    np.testing.assert_array_equal(
        label_counts(BY_HAND, 4), [[3, 0, 1, 0], [0, 0, 0, 0], [0, 2, 0, 0], [1, 1, 0, 0]]
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
def test_label_counts_take_any_integers(dtype):
    # 300 clients x 10 classes exceed uint8; NumPy promotes int64 and uint64 to float64.
    data = FederatedData({"y": np.full(300, 9, dtype)}, np.arange(301))
    np.testing.assert_array_equal(label_counts(data, 10)[:, 9], np.ones(300))


@given(clients=st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=6))
def test_label_counts_count(clients):
    data = from_clients([{"label": np.array(labels, dtype=np.int32)} for labels in clients])
    expected = [[labels.count(c) for c in range(5)] for labels in clients]
    np.testing.assert_array_equal(label_counts(data, 5, "label"), expected)


def test_summary_by_hand():
    # Pooled (1/2, 3/8, 1/8, 0).  Half the absolute differences: client 0 (3/4, 0, 1/4): 3/8;
    # client 2 (0, 1, 0): 5/8; client 3 (1/2, 1/2, 0): 1/8.  Their mean is 3/8; client 1 is empty.
    assert summarize(BY_HAND, 4) == PartitionSummary(
        num_clients=4,
        num_examples=8,
        sizes=Spread(0, 2.0, 4),
        classes=Spread(0, 1.5, 2),
        label_distance=0.375,  # all numbers are binary fractions: exact
    )


def test_sequences_count_their_positions_without_padding():
    labels = np.array([[0, 2, 2], [1, -1, -1], [-1, -1, -1]], np.int32)
    data = FederatedData({"y": labels}, np.array([0, 2, 3, 3]))
    np.testing.assert_array_equal(label_counts(data, 3), [[1, 1, 2], [0, 0, 0], [0, 0, 0]])
    summary = summarize(data, 3)
    assert (summary.num_examples, summary.sizes, summary.classes) == (
        3, Spread(0, 1.0, 2), Spread(0, 0.0, 3),
    )  # fmt: skip
    assert summary.label_distance == 0.0


def test_summary_reads_well():
    lines = str(summarize(BY_HAND, 4)).splitlines()
    assert lines == [
        "Partition: 4 clients, 8 examples",
        "  examples per client  min 0, median 2, max 4",
        "  classes per client   min 0, median 1.5, max 2",
        "  label distance       0.375 (0: equal)",
    ]


@pytest.mark.parametrize(
    ("examples", "num_classes", "label", "match"),
    [
        ({"y": np.array([0, 3])}, 3, "y", r"num_classes is 3 .* 0 \.\. 3; expected 0 \.\. 2"),
        ({"y": np.array([-1, 0])}, 3, "y", r"-1 \.\. 0"),
        ({"y": np.array([0.0, 1.0])}, 3, "y", "dtype float64; expected integers"),
        ({"y": np.zeros((2, 1, 1), int)}, 3, "y", r"shape \(2, 1, 1\)"),
        ({"y": np.array([[-1, 3], [0, 1]])}, 3, "y", r"0 \.\. 3; expected 0 \.\. 2"),
        ({"x": np.zeros(2)}, 3, "y", r"label is 'y'; expected a key .*\['x'\]"),
        ((np.zeros(2),), 3, "y", "label is 'y'.*tuple"),
    ],
)
def test_bad_labels_are_named(examples, num_classes, label, match):
    with pytest.raises(ValueError, match=match):
        label_counts(FederatedData(examples, np.array([0, 1, 2])), num_classes, label)


def test_no_examples_at_all_is_an_error():
    with pytest.raises(ValueError, match="2 clients and no examples"):
        summarize(FederatedData({"y": np.zeros(0, int)}, np.array([0, 0, 0])), 3)


def test_medians_have_all_digits():
    assert str(Spread(1, 1234567.5, 9999999)) == "min 1, median 1234567.5, max 9999999"
