"""Pachinko allocation: two levels of labels, without replacement."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_sim.data import partition


@given(
    num_coarse=st.integers(1, 4),
    num_fine=st.integers(1, 3),
    num_clients=st.integers(1, 8),
    alpha=st.sampled_from([1e-300, 0.1, 1.0, np.inf]),
    beta=st.sampled_from([0.1, 10.0, np.inf]),
    in_rotation=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_equal_sizes_without_repeats(
    num_coarse, num_fine, num_clients, alpha, beta, in_rotation, seed
):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(num_coarse * num_fine), 9))
    assignment = partition.pachinko(
        labels, labels // num_fine, num_clients, seed, alpha=alpha, beta=beta,
        in_rotation=in_rotation,
    )  # fmt: skip
    assert [len(rows) for rows in assignment] == [len(labels) // num_clients] * num_clients
    rows = np.concatenate(assignment)
    assert np.unique(rows).size == rows.size


def one_by_one(labels, coarse, num_clients, rng, alpha, beta, prior):
    """The law as published for balanced labels, an example at a time."""

    def parameters(concentration, sizes):
        even = np.full(len(sizes), concentration)
        return even if prior == "uniform" else even * sizes / np.mean(sizes)

    left = {f: list(rng.permutation(np.flatnonzero(labels == f))) for f in np.unique(labels)}
    fine_of = {c: np.unique(labels[coarse == c]) for c in np.unique(coarse)}
    size = {f: len(rows) for f, rows in left.items()}
    sizes = {c: [size[f] for f in own] for c, own in fine_of.items()}
    above = parameters(alpha, [sum(own) for own in sizes.values()])
    clients = []
    for _ in range(num_clients):
        theta = dict(zip(fine_of, rng.dirichlet(above), strict=True))
        phi = {c: rng.dirichlet(parameters(beta, own)) for c, own in sizes.items()}
        rows = []
        for _ in range(len(labels) // num_clients):
            p = np.array([theta[c] * any(left[f] for f in fine_of[c]) for c in fine_of])
            c = rng.choice(list(fine_of), p=p / p.sum())
            q = np.array([phi[c][i] * bool(left[f]) for i, f in enumerate(fine_of[c])])
            rows.append(left[rng.choice(fine_of[c], p=q / q.sum())].pop())
        clients.append(np.array(rows))
    return clients


@pytest.mark.parametrize("prior", ["labels", "uniform"])
def test_the_law_is_that_of_one_example_at_a_time(prior):
    # Three coarse labels of 2, 1 and 3 fine ones; pools that run out for the second client.
    labels = np.repeat(np.arange(6), [3, 5, 6, 2, 4, 4])
    coarse = np.array([0, 0, 1, 2, 2, 2])[labels]
    rng = np.random.default_rng(0)

    def moments(make):
        counts = np.array(
            [[np.bincount(labels[rows], minlength=6) for rows in make()] for _ in range(250)]
        )
        flat = counts[:, :2].reshape(len(counts), -1)  # of the first two clients
        return flat.mean(axis=0), flat.std(axis=0), np.corrcoef(flat.T)

    ours = moments(
        lambda: partition.pachinko(labels, coarse, 3, rng, alpha=0.7, beta=2.0, prior=prior)
    )
    theirs = moments(lambda: one_by_one(labels, coarse, 3, rng, 0.7, 2.0, prior))
    error = np.sqrt(2 / 250)
    np.testing.assert_allclose(ours[0], theirs[0], atol=4.5 * error * ours[1].max())
    np.testing.assert_allclose(ours[1], theirs[1], rtol=4.5 * error)
    np.testing.assert_allclose(ours[2], theirs[2], atol=4.5 * error)


def test_clients_are_iid_in_the_limit_for_unbalanced_labels():
    """600, 200, 100 and 100 examples; the first two have one coarse label."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(4), [600, 200, 100, 100]))
    rows = partition.pachinko(labels, np.maximum(labels, 1), 10, 0, alpha=1e4, beta=1e4)
    counts = np.array([np.bincount(labels[part], minlength=4) for part in rows])
    # Multinomial, 100 each, or nearly so; five standard deviations, below 5 and 3.
    np.testing.assert_allclose(counts[:, :2], np.array([[60, 20]] * 10), atol=25)
    np.testing.assert_allclose(counts[:, 2:], 10, atol=15 - 1)


def test_rotation_spreads_the_deviation():
    # Every client wants one coarse label, and a coarse label has the examples of two clients. One
    # after the other they use it up; in rotation all who want it run out of it together.
    labels = np.random.default_rng(0).permutation(np.arange(2000) % 20)

    def coarse_labels(in_rotation):
        assignment = partition.pachinko(
            labels, labels // 2, 20, seed=1, alpha=1e-3, in_rotation=in_rotation
        )
        return [len(set(labels[rows] // 2)) for rows in assignment]

    assert set(coarse_labels(in_rotation=False)) == {1}
    assert min(coarse_labels(in_rotation=True)) >= 2


def test_seeds():
    labels = np.arange(200) % 8

    def flat(seed):
        return [rows.tolist() for rows in partition.pachinko(labels, labels // 2, 5, seed)]

    assert flat(3) == flat(3) == flat(np.random.default_rng(3))
    assert flat(3) != flat(4)


LABELS = np.arange(60) % 6


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"coarse": LABELS[:5]}, r"coarse has shape \(5,\); expected \[60\]"),
        ({"coarse": np.arange(60) % 5}, r"coarse has the values \[0, 1\] for examples of one labe"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"size": 0}, "size is 0"),
        ({"size": 13}, "num_clients is 5 with at least 13 examples each"),
        ({"num_clients": 0}, "num_clients is 0"),
    ],
)
def test_bad_input_is_named(kwargs, match):
    arguments = {"labels": LABELS, "coarse": LABELS // 2, "num_clients": 5, "seed": 0} | kwargs
    with pytest.raises(ValueError, match=match):
        partition.pachinko(**arguments)
