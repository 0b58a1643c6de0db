"""PFLlib's partitions against loops over clients and classes, with its random stream."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from fedjax_sim import datasets
from fedjax_sim.data import partition


def drawn_labels(num_examples, num_classes, seed):
    return np.random.default_rng(seed).permutation(np.arange(num_examples) % num_classes)


def by_dirichlet(labels, num_clients, alpha, random, least, owners=None):
    """Loops over classes and clients: lists of rows, redrawn until all clients are large enough."""
    num_classes, full = labels.max() + 1, len(labels) / num_clients
    while True:
        clients = [[] for _ in range(num_clients)]
        for c in range(num_classes):
            rows = np.flatnonzero(labels == c)
            random.shuffle(rows)
            share = random.dirichlet([alpha] * num_clients)
            for j in range(num_clients):
                if len(clients[j]) >= full or (owners and j not in owners[c]):
                    share[j] = 0.0
            if share.sum() == 0:
                break
            ends = [int(end) for end in np.cumsum(share / share.sum()) * len(rows)]
            ends[-1] = len(rows)
            if owners:
                for j in range(max(owners[c]), num_clients):
                    ends[j] = len(rows)
            start = 0
            for j, end in enumerate(ends):
                clients[j] += rows[start:end].tolist()
                start = max(start, end)
        else:
            if min(map(len, clients)) >= least:
                return clients


def test_the_check_of_the_published_sizes():
    labels = np.repeat(np.arange(10), 100)
    sizes = [len(rows) for rows in partition.pfllib_dirichlet(labels, 5, max_tries=1)]
    assert sizes == [287, 176, 173, 259, 105]


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize(("num_examples", "num_clients"), [(3000, 11), (700, 6)])
def test_dirichlet_row_by_row(num_examples, num_clients, seed):
    labels = drawn_labels(num_examples, 7, seed)
    least = min(40, num_examples // (2 * num_clients))
    random, other = np.random.RandomState(seed), np.random.RandomState(seed)
    assignment = partition.pfllib_dirichlet(labels, num_clients, 0.1, random)
    expected = by_dirichlet(labels, num_clients, 0.1, other, least)
    assert [rows.tolist() for rows in assignment] == expected
    assert random.randint(2**31) == other.randint(2**31)  # the streams are at the same place


@pytest.mark.parametrize("seed", range(1, 5))
def test_extended_dirichlet_row_by_row(seed):
    labels, num_clients, k = drawn_labels(3000, 7, seed), 11, 3
    random, other = np.random.RandomState(seed), np.random.RandomState(seed)
    assignment = partition.pfllib_extended_dirichlet(labels, num_clients, k, 10.0, random)
    owners = [[]]
    while min(map(len, owners)) < 2:  # 3 * 11 // 7 // 2
        owners = [[] for _ in range(7)]
        for j in range(num_clients):
            for c in other.choice(7, k, replace=False):
                owners[c].append(j)
    expected = by_dirichlet(labels, num_clients, 10.0, other, 10, owners)
    for rows in expected:
        other.shuffle(rows)
    assert [rows.tolist() for rows in assignment] == expected


def test_pathological_gives_pairs_of_classes_to_groups_of_four():
    labels = drawn_labels(2000, 10, 0)
    for balance in (True, False):
        assignment = partition.pfllib_pathological(labels, 20, 2, balance=balance)
        for client, rows in enumerate(assignment):
            assert set(labels[rows]) == {2 * (client // 4), 2 * (client // 4) + 1}
        assert sorted(np.concatenate(assignment)) == list(range(2000))
        sizes = np.array([len(rows) for rows in assignment])
        if balance:
            assert (sizes == 100).all()
        else:  # each part of a class is between a tenth of and an equal part; the last has the rest
            others = np.arange(20) % 4 < 3
            assert (sizes[others] >= 10).all()
            assert (sizes[others] < 100).all()
            assert (sizes[~others] > 100).all()


def test_pathological_draws_are_those_of_the_stream():
    labels, other = drawn_labels(1000, 5, 3), np.random.RandomState(4)
    assignment = partition.pfllib_pathological(labels, 7, 5, 4)  # all classes: without skew
    least = min(40, 1000 / 7 / 2)
    for c in range(5):
        sizes = other.randint(max(200 / 7 / 10, least / 5), 200 / 7, 6).tolist()
        sizes.append(200 - sum(sizes))
        assert [(labels[rows] == c).sum() for rows in assignment] == sizes
        ordered = np.concatenate([rows[labels[rows] == c] for rows in assignment])
        assert ordered.tolist() == np.flatnonzero(labels == c).tolist()


def test_the_split_is_that_of_scikit_learn_in_the_same_stream():
    labels = drawn_labels(1000, 10, 1)
    random = np.random.RandomState(5)
    assignment = partition.pfllib_dirichlet(labels, 5, 0.1, random)
    other = np.random.RandomState()
    other.set_state(random.get_state())
    train, test = partition.pfllib_split(assignment, random)
    for rows, ours in zip(assignment, zip(train, test, strict=True), strict=True):
        expected = train_test_split(rows, train_size=0.75, shuffle=True, random_state=other)
        for one, two in zip(ours, expected, strict=True):
            assert one.tolist() == two.tolist()


@pytest.mark.slow
@settings(max_examples=30)
@given(
    num_examples=st.integers(60, 200),
    num_clients=st.integers(1, 6),
    num_classes=st.integers(1, 5),
    alpha=st.sampled_from([1.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_row_once(num_examples, num_clients, num_classes, alpha, seed):
    labels = drawn_labels(num_examples, num_classes, seed)
    k = num_classes
    assignments = [
        partition.pfllib_dirichlet(labels, num_clients, alpha, seed, min_size=1),
        partition.pfllib_extended_dirichlet(labels, num_clients, k, 100.0, seed, min_size=1),
        partition.pfllib_pathological(labels, num_clients, k, seed, balance=True),
    ]
    for assignment in assignments:
        assert len(assignment) == num_clients
        assert min(map(len, assignment)) >= 1
        assert sorted(np.concatenate(assignment)) == list(range(num_examples))
        train, test = partition.pfllib_split(assignment, seed)
        for rows, first, second in zip(assignment, train, test, strict=True):
            assert sorted([*first, *second]) == sorted(rows)
            assert len(first) == 3 * len(rows) // 4


LABELS = np.arange(400) % 10


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: partition.pfllib_dirichlet(LABELS, 4, np.inf), "alpha is inf; expected a finite"),
        (lambda: partition.pfllib_dirichlet(LABELS, 4, 0.0), "alpha is 0.0"),
        (lambda: partition.pfllib_dirichlet(LABELS, 401), "num_clients is 401"),
        (lambda: partition.pfllib_dirichlet(LABELS, 0), "num_clients is 0"),
        (
            lambda: partition.pfllib_dirichlet(LABELS, 20, 1e-3, max_tries=3),
            "min_size is 10, but none of 3 draws with alpha=0.001 gave each of 20 clients",
        ),
        (lambda: partition.pfllib_extended_dirichlet(LABELS, 20, 11), r"k is 11; expected 1 \.\. "),
        (
            lambda: partition.pfllib_extended_dirichlet(LABELS, 4, 2),
            r"num_clients \* k is 4 \* 2 = 8; expected at least the 10 classes",
        ),
        (
            lambda: partition.pfllib_extended_dirichlet(LABELS, 5, 2, max_tries=1),
            "k is 2, but none of 1 draws gave each of 10 classes at least 1 of 5 clients",
        ),
        (lambda: partition.pfllib_pathological(LABELS, 20, 0), "k is 0"),
        (lambda: partition.pfllib_pathological(LABELS, 300, 10), "expected fewer clients or class"),
        (
            lambda: partition.pfllib_pathological(LABELS, 300, 10, balance=True),
            "client 0 gets no examples",
        ),
        (lambda: partition.pfllib_split([LABELS], train_ratio=1.0), "train_ratio is 1.0"),
    ],
)
def test_bad_input_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()


# Examples per client and label that PFLlib's generator of MNIST has written for 20 clients into
# config.json (non-iid, unbalanced, pat): https://github.com/thatmartinlau/PFLlib, dataset/MNIST.
PATHOLOGICAL_MNIST = """
1233 1101, 407 911, 1268 1865, 3995 4000, 1021 307, 1134 927, 318 686, 4517 5221, 1584 1457,
1475 1435, 1372 514, 2393 2907, 1085 434, 639 1696, 1078 850, 4074 4313, 568 1412, 732 1174,
750 926, 4775 3446
"""
# The same for 5 clients and dir: https://github.com/VeigarGit/PFLlibMonza, dataset/MNIST.
DIRICHLET_MNIST = [
    {0: 2592, 2: 132, 5: 90, 6: 6728, 7: 1867, 8: 971, 9: 6913},
    {0: 86, 1: 3132, 2: 5679, 8: 51},
    {0: 70, 1: 1831, 2: 2, 3: 7137, 4: 113, 5: 63, 6: 147, 7: 5348},
    {0: 2844, 1: 2831, 2: 973, 4: 6710, 5: 6159},
    {0: 1311, 1: 83, 2: 204, 3: 4, 4: 1, 5: 1, 6: 1, 7: 78, 8: 5803, 9: 45},
]


@pytest.mark.slow
def test_mnist_as_pfllib_has_divided_it():
    try:
        labels = datasets.merged(datasets.load("mnist")).train["y"]
    except datasets.DataError:
        pytest.skip("FEDJAX_SIM_DATA has no folder mnist")

    def counts(assignment):
        tables = [np.unique(labels[rows], return_counts=True) for rows in assignment]
        return [dict(zip(*map(np.ndarray.tolist, table), strict=True)) for table in tables]

    assert counts(partition.pfllib_dirichlet(labels, 5, 0.1, 1)) == DIRICHLET_MNIST
    expected = [tuple(map(int, own.split())) for own in PATHOLOGICAL_MNIST.split(",")]
    pathological = counts(partition.pfllib_pathological(labels, 20, 2, 1))
    assert [tuple(own.values()) for own in pathological] == expected
