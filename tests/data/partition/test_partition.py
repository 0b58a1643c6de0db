"""Partitions: what each promises about rows, sizes and labels, and the laws they draw from."""

import functools
import itertools

import jax
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency

from fedjax_sim import diagnostics, evaluation, topologies
from fedjax_sim.data import partition
from fedjax_sim.data.partition._dealing import draw_available

seeds = st.integers(0, 2**32 - 1)
alphas = st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 100.0, np.inf])
label_arrays = st.lists(st.integers(-3, 3), min_size=12, max_size=80).map(np.array)


def rows_of(assignment):
    return np.concatenate(assignment)


def sizes_of(assignment):
    return [len(rows) for rows in assignment]


def assert_each_row_once(assignment, num_examples):
    np.testing.assert_array_equal(np.sort(rows_of(assignment)), np.arange(num_examples))


def assert_no_repeats(assignment):
    assert np.unique(rows_of(assignment)).size == rows_of(assignment).size


@given(n=st.integers(1, 60), extra=st.integers(0, 60), seed=seeds)
def test_iid_uses_each_row_once_in_equal_parts(n, extra, seed):
    assignment = partition.iid(n + extra, n, seed)
    assert_each_row_once(assignment, n + extra)
    assert len(assignment) == n
    assert max(sizes_of(assignment)) - min(sizes_of(assignment)) <= 1


@given(labels=label_arrays, num_clients=st.integers(1, 12), alpha=alphas, seed=seeds)
def test_dirichlet_sizes_and_repeats(labels, num_clients, alpha, seed):
    size = len(labels) // num_clients
    assignment = partition.dirichlet(labels, num_clients, alpha, seed, disjoint=True)
    assert sizes_of(assignment) == [size] * num_clients
    assert_no_repeats(assignment)
    assignment = partition.dirichlet(labels, num_clients, alpha, seed)
    assert sizes_of(assignment) == [size] * num_clients
    # A pool is refilled only when empty: uses of two rows of one class differ by at most one.
    uses = np.bincount(rows_of(assignment), minlength=len(labels))
    for label in np.unique(labels):
        assert np.ptp(uses[labels == label]) <= 1


@given(labels=label_arrays, num_clients=st.integers(1, 4), seed=seeds)
def test_dirichlet_by_class_uses_each_row_once(labels, num_clients, seed):
    assignment = partition.dirichlet_by_class(labels, num_clients, 1.0, seed, min_size=2)
    assert_each_row_once(assignment, len(labels))
    assert len(assignment) == num_clients
    assert min(sizes_of(assignment)) >= 2


@given(
    num_classes=st.integers(1, 7),
    factor=st.integers(1, 6),
    k=st.integers(1, 7),
    method=st.sampled_from(["shards", "pairs"]),
    seed=seeds,
)
def test_classes_per_client_gives_k_distinct_classes(num_classes, factor, k, method, seed):
    k = min(k, num_classes)
    num_clients = num_classes * factor  # so that the shards divide
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(num_classes), 45))
    assignment = partition.classes_per_client(labels, num_clients, k, seed, method)
    assert_no_repeats(assignment)
    assert len(set(sizes_of(assignment))) == 1
    for rows in assignment:
        # Equal portions of k classes.
        _, portions = np.unique(labels[rows], return_counts=True)
        assert portions.tolist() == [len(rows) // k] * k
    if method == "shards":
        assert sizes_of(assignment)[0] == k * (45 // (factor * k))


def test_shards_are_repaired_when_almost_every_hand_has_duplicates():
    # k = C: the only solution gives every class to every client, and random hands have none of it.
    labels = np.repeat(np.arange(20), 50)
    for rows in partition.classes_per_client(labels, 50, 20, seed=0):
        assert sorted(labels[rows]) == list(range(20))


def test_shards_of_unequal_classes_use_the_floor():
    labels = np.repeat([0, 1], [11, 7])
    assignment = partition.classes_per_client(labels, 4, 1, seed=0)
    assert sorted(sizes_of(assignment)) == [3, 3, 5, 5]  # 7 // 2 and 11 // 2


@given(
    num_clients=st.integers(1, 30),
    min_size=st.integers(0, 4),
    extra=st.integers(1, 100),
    alpha=alphas,
    seed=seeds,
)
def test_quantity_skew_uses_each_row_once(num_clients, min_size, extra, alpha, seed):
    num_examples = num_clients * min_size + extra
    assignment = partition.quantity_skew(num_examples, num_clients, alpha, seed, min_size)
    assert_each_row_once(assignment, num_examples)
    assert len(assignment) == num_clients
    assert min(sizes_of(assignment)) >= min_size
    if alpha == np.inf:
        assert np.ptp(sizes_of(assignment)) <= 1


@given(groups=st.lists(st.sampled_from(["bob", "ann", "eve"]), min_size=1, max_size=30))
def test_by_group_restores_the_groups(groups):
    assignment, names = partition.by_group(groups)
    assert names == tuple(sorted(set(groups)))
    assert_each_row_once(assignment, len(groups))
    for name, rows in zip(names, assignment, strict=True):
        assert [groups[row] for row in rows] == [name] * len(rows)
        assert sorted(rows) == rows.tolist()


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6), seed=seeds)
def test_train_test_split_splits_every_client(sizes, seed):
    assignment = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    train, test = partition.train_test_split(assignment, 0.3, seed)
    for rows, first, second in zip(assignment, train, test, strict=True):
        assert sorted([*first, *second]) == rows.tolist()
        assert len(second) == 3 * len(rows) // 10


def test_train_test_split_is_not_off_by_one_in_floating_point():
    _, test = partition.train_test_split([np.arange(100)], 0.29, seed=0)
    assert len(test[0]) == 29


LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 40))
SEEDED = {
    "iid": functools.partial(partition.iid, 400, 20),
    "dirichlet": functools.partial(partition.dirichlet, LABELS, 20, 0.5),
    "disjoint": functools.partial(partition.dirichlet, LABELS, 20, 0.5, disjoint=True),
    "by_class": functools.partial(partition.dirichlet_by_class, LABELS, 20, 0.5),
    "shards": functools.partial(partition.classes_per_client, LABELS, 20, 2),
    "pairs": functools.partial(partition.classes_per_client, LABELS, 20, 2, method="pairs"),
    "quantity": functools.partial(partition.quantity_skew, 400, 20, 0.5),
    "split": lambda seed: partition.train_test_split([np.arange(400)], 0.5, seed)[0],
}


@pytest.mark.parametrize("make", SEEDED.values(), ids=SEEDED.keys())
def test_seeds(make):
    def flat(seed):
        return [rows.tolist() for rows in make(seed=seed)]

    assert flat(3) == flat(3) == flat(np.random.default_rng(3))
    assert flat(3) != flat(4)
    generator = np.random.default_rng(3)
    assert flat(generator) != flat(generator)  # a generator moves on


def label_shares(assignment, labels, num_classes):
    counts = [np.bincount(labels[rows], minlength=num_classes) for rows in assignment]
    return np.array(counts) / np.sum(counts, axis=1, keepdims=True)


@pytest.mark.parametrize("alpha", [0.2, 2.0])
def test_unbalanced_labels_have_the_moments_of_a_prior_with_their_frequencies(alpha):
    # n draws from Dir(a p) with a = C alpha, the law of Hsu et al. (2019): mean p and
    # var = p (1 - p) / (a + 1) * (1 - 1/n) + p (1 - p) / n.
    p, n, num_clients = np.array([0.7, 0.2, 0.06, 0.04]), 50, 4000
    labels = np.repeat(np.arange(4), np.round(p * n * num_clients).astype(int))
    shares = label_shares(partition.dirichlet(labels, num_clients, alpha, seed=0), labels, 4)
    variance = p * (1 - p) * ((1 - 1 / n) / (4 * alpha + 1) + 1 / n)
    squares = (shares - p) ** 2
    error = 5 / np.sqrt(num_clients)  # as below
    assert (np.abs(shares.mean(axis=0) - p) < error * variance**0.5).all()
    assert (np.abs(squares.mean(axis=0) - variance) < error * squares.std(axis=0)).all()


UNBALANCED = np.random.default_rng(3).permutation(np.repeat([0, 1], [900, 100]))


@pytest.mark.parametrize("alpha", [1e4, np.inf])
@pytest.mark.parametrize("disjoint", [True, False])
def test_clients_are_iid_in_the_limit_for_unbalanced_labels(alpha, disjoint):
    rows = partition.dirichlet(UNBALANCED, 10, alpha, 0, disjoint=disjoint)
    rare = np.array([UNBALANCED[part].sum() for part in rows])
    # Binomial(100, 0.1) each, or nearly so: mean 10 and standard deviation 3; five of them.
    assert (np.abs(rare - 10) < 15).all()
    assert 1.5 < rare.std() < 6  # 95 % intervals of a chi-squared law are narrower: 2.1 .. 5.5


def test_uniform_prior_by_name():
    """Half of the first clients' examples have the rare label, until there are none."""
    rows = partition.dirichlet(UNBALANCED, 10, 1e4, 0, disjoint=True, prior="uniform")
    assert [int(UNBALANCED[part].sum() > 30) for part in rows] == [1, 1] + [0] * 8
    assert sum(UNBALANCED[part].sum() for part in rows[:2]) == 100
    rows = partition.dirichlet(UNBALANCED, 10, np.inf, 0, prior="uniform")
    rare = np.array([UNBALANCED[part].mean() for part in rows])
    np.testing.assert_allclose(rare, 0.5, atol=0.25)  # five standard errors of 100 draws


@pytest.mark.parametrize("alpha", [1e-300, 1e-2, 1e6])
def test_a_label_of_one_example_in_10000(alpha):
    labels = np.arange(10_000) == 7
    rows = np.concatenate(partition.dirichlet(labels, 100, alpha, 0, disjoint=True))
    np.testing.assert_array_equal(np.sort(rows), np.arange(10_000))


@pytest.mark.parametrize("alpha", [0.1, 0.6, 5.0])
def test_dirichlet_has_dirichlet_multinomial_moments(alpha):
    # Shares of n draws from p ~ Dir(alpha 1_C): mean 1/C and
    # var = v (1 - 1/n) + (1/C)(1 - 1/C)/n with v = Var p_c = (C - 1) / (C^2 (C alpha + 1)).
    num_classes, n, num_clients = 5, 50, 4000
    labels = np.repeat(np.arange(num_classes), n * num_clients // num_classes)
    shares = label_shares(
        partition.dirichlet(labels, num_clients, alpha, seed=0), labels, num_classes
    )
    v = (num_classes - 1) / (num_classes**2 * (num_classes * alpha + 1))
    variance = v * (1 - 1 / n) + (num_classes - 1) / num_classes**2 / n
    squares = (shares - 1 / num_classes) ** 2
    # Five standard errors over 4000 clients: a correct sampler fails once in 10^6 seeds a class.
    error = 5 / np.sqrt(num_clients)
    np.testing.assert_allclose(shares.mean(axis=0), 1 / num_classes, atol=error * variance**0.5)
    assert (np.abs(squares.mean(axis=0) - variance) < error * squares.std(axis=0)).all()


def refilled_one_by_one(labels, num_clients, alpha, rng):
    """The partition of FedSWA's published code, an example at a time: pools popped and refilled."""
    rows = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    pools = [rng.permutation(own).tolist() for own in rows]
    clients = []
    for _ in range(num_clients):
        share = rng.dirichlet(np.full(len(rows), alpha))
        mine = []
        for c in rng.choice(len(rows), len(labels) // num_clients, p=share):
            if not pools[c]:
                pools[c] = rng.permutation(rows[c]).tolist()
            mine.append(pools[c].pop())
        clients.append(np.array(mine))
    return clients


def refill_statistics(assignment, labels):
    first, *_, last = assignment
    uses = np.bincount(rows_of(assignment), minlength=len(labels))
    return {
        "rows never used": (uses == 0).sum(),
        "uses of the most used row": uses.max(),
        "uses of a row of the smallest class": uses[0],
        "repeats within the last client": len(last) - np.unique(last).size,
        "rows that the first and last client share": np.intersect1d(first, last).size,
        "classes of the last client": np.unique(labels[last]).size,
        "equal labels in a row": (np.diff(labels[last]) == 0).sum(),
        "the last client's first row": last[0],
    }


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 0.6])
def test_dirichlet_with_refill_has_the_law_of_popping_one_by_one(alpha):
    # Classes of 3, 6 and 15 rows, 4 clients of 6: pools run out between clients and within one.
    labels, num_clients, draws = np.repeat([0, 1, 2], [3, 6, 15]), 4, 2000
    rng = np.random.default_rng(0)
    ours, theirs = (
        [refill_statistics(make(labels, num_clients, alpha, rng), labels) for _ in range(draws)]
        for make in (functools.partial(partition.dirichlet, prior="uniform"), refilled_one_by_one)
    )
    for name in ours[0]:
        a, b = ([int(values[name]) for values in side] for side in (ours, theirs))
        table = np.array([np.bincount(side, minlength=max(*a, *b) + 1) for side in (a, b)])
        # Rare values count together: Pearson's approximation needs some tens of each.
        rare = table.sum(axis=0) < 40
        table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
        table = table[:, table.sum(axis=0) >= 40]
        assert table.shape[1] > 1
        # Equal laws fail one of the 16 comparisons for one seed in 600.
        assert chi2_contingency(table).pvalue > 1e-4, name


@pytest.mark.slow
def test_dirichlet_by_class_has_dirichlet_marginals():
    # Client shares of one class ~ Dir(alpha 1_M): Var = (M - 1) / (M^2 (M alpha + 1)); each class
    # is a replicate.  Rounding to 1000 examples adds less than 1e-6.
    num_classes, num_clients, alpha = 2000, 4, 0.5
    labels = np.repeat(np.arange(num_classes), 1000)
    assignment = partition.dirichlet_by_class(labels, num_clients, alpha, seed=0)
    counts = np.array([np.bincount(labels[rows], minlength=num_classes) for rows in assignment])
    squares = (counts / 1000 - 1 / num_clients) ** 2
    variance = (num_clients - 1) / (num_clients**2 * (num_clients * alpha + 1))
    error = 5 * squares.std(axis=1) / np.sqrt(num_classes)  # five standard errors
    assert (np.abs(squares.mean(axis=1) - variance) < error + 1e-6).all()


def test_quantity_skew_has_dirichlet_sizes():
    # As above, over 2000 seeds: Var of a share, here for M = 4 and alpha = 0.5.
    sizes = np.array(
        [sizes_of(partition.quantity_skew(1000, 4, 0.5, seed, min_size=0)) for seed in range(2000)]
    )
    squares = (sizes / 1000 - 0.25) ** 2
    error = 5 * squares.std(axis=0) / np.sqrt(2000)
    assert (np.abs(squares.mean(axis=0) - 3 / (16 * 3)) < error + 1e-6).all()


def test_disjoint_draws_have_the_law_of_one_by_one_renormalised_draws():
    pool, share, size = (1, 2, 4), np.array([0.5, 0.3, 0.2]), 4

    def outcomes(left, drawn):
        """Probability of each final count, by summing over all orders of the draws."""
        if drawn == size:
            return {tuple(np.subtract(pool, left)): 1.0}
        p = share * (np.array(left) > 0)
        total = {}
        for c in np.flatnonzero(p):
            rest = tuple(n - (i == c) for i, n in enumerate(left))
            for count, probability in outcomes(rest, drawn + 1).items():
                total[count] = total.get(count, 0.0) + p[c] / p.sum() * probability
        return total

    expected = outcomes(pool, 0)
    rng = np.random.default_rng(0)
    draws = 5000
    seen = dict.fromkeys(expected, 0)
    for _ in range(draws):
        available, count = np.array(pool), np.zeros(3, dtype=np.int64)
        draw_available(size, share, available, np.ones(3), rng, count)
        np.testing.assert_array_equal(available + count, pool)
        seen[tuple(count.tolist())] += 1
    for count, p in expected.items():  # five standard errors of a frequency
        assert abs(seen[count] / draws - p) < 5 * np.sqrt(p * (1 - p) / draws)


def test_shares_that_are_drawn_again_are_kept():
    """All shares are 0 in floating point; the new ones, of one class, hold for all examples."""
    share, available, count = np.zeros(3), np.array([50, 50, 50]), np.zeros(3, dtype=np.int64)
    rng = np.random.default_rng(0)
    for size in range(1, 41):
        draw_available(size, share, available, np.full(3, 1e-6), rng, count)
    assert sorted(count.tolist()) == [0, 0, 40]
    assert share.tolist() == (count > 0).tolist()


def test_alpha_extremes():
    num_classes, num_clients = 10, 50
    labels = np.repeat(np.arange(num_classes), 1000)
    tiny = label_shares(partition.dirichlet(labels, num_clients, 1e-6, 0), labels, num_classes)
    assert (tiny.max(axis=1) == 1).all()
    for alpha, disjoint in itertools.product([1e8, np.inf], [False, True]):
        shares = label_shares(
            partition.dirichlet(labels, num_clients, alpha, 0, disjoint=disjoint),
            labels,
            num_classes,
        )
        # 200 uniform draws: standard error 0.021; six of them for the largest of 500 cells.  The
        # last disjoint clients take what is left, which random walks of the pools have changed.
        np.testing.assert_allclose(shares[:40], 0.1, atol=0.13)


def test_a_refilled_pool_is_reshuffled():
    # One class per client, so that one of two classes goes to more than the 50 clients of 4 rows
    # that its pool holds.  Served in the old order, a later client would get an earlier one's rows.
    labels = np.repeat([0, 1], 200)
    assignment = partition.dirichlet(labels, 100, 1e-6, seed=1)
    clients = np.bincount([labels[rows[0]] for rows in assignment])
    assert clients.max() > 52
    assert len({frozenset(rows.tolist()) for rows in assignment}) == 100


def test_rows_within_a_client_are_in_random_order():
    rows = partition.dirichlet(LABELS, 1, np.inf, seed=0, disjoint=True)[0]
    changes = (np.diff(LABELS[rows]) != 0).sum()
    assert changes > 300  # sorted by class: 9; random: 359 expected, standard deviation 6


@pytest.mark.parametrize(
    ("make", "arguments", "match"),
    [
        (partition.iid, (3, 4, 0), "num_clients is 4.*at most 3 examples"),
        (partition.iid, (3, 0, 0), "num_clients is 0"),
        (partition.dirichlet, (LABELS, 401, 0.5, 0), "num_clients is 401"),
        (partition.dirichlet, (LABELS, 4, 0.0, 0), "alpha is 0.0"),
        (partition.dirichlet, (LABELS, 4, float("nan"), 0), "alpha is nan"),
        (partition.dirichlet, (LABELS[:, None], 4, 1.0, 0), r"labels has shape \(400, 1\)"),
        (partition.dirichlet, (np.array([0, np.nan]), 1, 1.0, 0), r"labels\[1\] is nan; expected "),
        (functools.partial(partition.dirichlet, prior="x"), (LABELS, 4, 1.0, 0), "prior is 'x'"),
        (
            functools.partial(partition.dirichlet_by_class, min_size=4, max_tries=5),
            (LABELS, 100, 0.01, 0), "min_size is 4, but none of 5 draws with alpha=0.01",
        ),
        (
            functools.partial(partition.dirichlet_by_class, min_size=5), (LABELS, 100, 1.0, 0),
            "num_clients is 100 with at least 5",
        ),
        (partition.classes_per_client, (LABELS, 10, 11, 0), r"k is 11; expected 1 \.\. 10"),
        (partition.classes_per_client, (LABELS, 10, 0, 0), "k is 0"),
        (partition.classes_per_client, (LABELS, 7, 2, 0), r"7 \* 2 = 14; expected a multiple of t"),
        (partition.classes_per_client, (LABELS, 400, 10, 0), "k is 10: some class has fewer"),
        (partition.classes_per_client, (LABELS, 10, 2, 0, "shard"), "method is 'shard'"),
        (partition.quantity_skew, (10, 5, 1.0, 0, 3), "at least 3"),
        (partition.quantity_skew, (10, 5, 1.0, 0, -1), "min_size is -1"),
        (partition.quantity_skew, (10, 5, -1.0, 0), "alpha is -1.0"),
        (partition.by_group, ([],), r"groups has shape \(0,\)"),
        (partition.by_group, (["ann", None],), r"groups\[1\] is None; expected a number or"),
        (partition.train_test_split, ([np.arange(3)], 1.0, 0), "test_fraction is 1.0"),
        (partition.train_test_split, ([[0, 1, 2], [2, 3]], 0.5, 0), "has row 2 in c.* 0 a"),
        (partition.pfllib_split, ([[0, 1, 2], [2, 3]], 0), "has row 2 in c.* 0 a"),
        (partition.dirichlet, (LABELS, 4, "0.1", 0), "alpha is '0.1'; expected a positive n"),
        (partition.quantity_skew, (10, 5, None, 0), "alpha is None; expected a positive n"),
        (partition.by_group, ([[1, 2], [3]],), r"groups is a ragged list; expected \[N\]"),
        (partition.proportional, (10, ["a"], 0), r"weights is \['a'\]; expected M numbers"),
        (partition.hold_out, (5, "half", 0), "fraction is 'half'; expected a number"),
        (partition.train_test_split, ([0, 1, 2], 0.5, 0), r"assignment\[0\] is int64\[\]; exp"),
        (partition.train_test_split, ([[0, [1]]], 0.5, 0), r"assignment\[0\] is a ragged list"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, arguments, match):
    with pytest.raises(ValueError, match=match):
        make(*arguments)


# Functions of a seed alone, which all others resemble.
SEEDED = {
    "iid": lambda seed: partition.iid(12, 3, seed),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 4, 1.0, seed),
    "dirichlet_by_class": lambda seed: partition.dirichlet_by_class(LABELS, 4, 1.0, seed),
    "classes_per_client": lambda seed: partition.classes_per_client(LABELS, 10, 2, seed),
    "shards": lambda seed: partition.shards(LABELS, 10, 2, seed),
    "label_quantity": lambda seed: partition.label_quantity(LABELS, 10, 2, seed),
    "quantity_skew": lambda seed: partition.quantity_skew(12, 3, 1.0, seed),
    "exponential": lambda seed: partition.exponential(12, 3, seed),
    "log_normal": lambda seed: partition.log_normal(12, 3, 1.0, seed),
    "proportional": lambda seed: partition.proportional(12, [1, 2], seed),
    "train_test_split": lambda seed: partition.train_test_split([[0, 1], [2, 3]], 0.5, seed),
    "pfllib_dirichlet": lambda seed: partition.pfllib_dirichlet(LABELS, 2, 10.0, seed),
    "pfllib_pathological": lambda seed: partition.pfllib_pathological(LABELS, 4, 2, seed),
    "pfllib_split": lambda seed: partition.pfllib_split([[0, 1], [2, 3]], seed),
    "pfllib_extended_dirichlet": lambda seed: partition.pfllib_extended_dirichlet(
        LABELS, 4, 5, 100.0, seed
    ),
    "hold_out": lambda seed: partition.hold_out(9, 0.5, seed),
    "subsample": lambda seed: evaluation.subsample({"x": np.arange(9)}, 3, seed),
    "erdos_renyi": lambda seed: topologies.erdos_renyi(9, 0.9, seed),
    "random_matching": lambda seed: topologies.random_matching(9, 3, seed),
    "random_pairs": lambda seed: diagnostics.connectivity.random_pairs(9, 3, seed),
}


@pytest.mark.parametrize("name", SEEDED)
def test_seeds_are_whole_numbers(name):
    """A JAX key is no seed of NumPy, and the message says what is."""
    for seed in (jax.random.key(0), 0.5, -1, "first"):
        with pytest.raises(ValueError, match=r"^seed is [\s\S]*; expected "):
            SEEDED[name](seed)
    jax.tree.map(np.testing.assert_array_equal, *(SEEDED[name](3) for _ in range(2)))


@pytest.mark.parametrize("seed", [np.random.default_rng(0), 2**32])
def test_seeds_of_pfllib_are_those_of_its_generator(seed):
    with pytest.raises(ValueError, match=r"^seed is .*; expected an integer of 0 .. 2\^32 - 1, or"):
        partition.pfllib_pathological(LABELS, 4, 2, seed)


@pytest.mark.parametrize(
    "split",
    [
        lambda assignment: partition.train_test_split(assignment, 0.5, 0),
        lambda assignment: partition.pfllib_split(assignment, 0, train_ratio=0.5),
    ],
)
def test_divisions_of_clients_take_lists_and_refuse_other_rows(split):
    train, test = split([[0, 1], [2, 3, 4, 5]])
    assert sorted(np.concatenate([*train, *test]).tolist()) == list(range(6))
    assert [len(own) for own in train] == [1, 2]
    with pytest.raises(ValueError, match=r"assignment\[1\] is float64\[2\]; expected integers"):
        split([[0], [1.0, 2.0]])
    with pytest.raises(ValueError, match=r"assignment\[1\] has row -1; expected 0 or more"):
        split([[0, 1], [-1]])


def test_labels_that_have_no_order_or_no_value_are_refused_by_name():
    with pytest.raises(ValueError, match="labels has values of the types int, str; expected one"):
        partition.shards(np.array([1, "a", 2], object), 2, 1, 0)
    groups = pd.Series(["a", None, "b"], index=[10, 11, 12])
    with pytest.raises(ValueError, match=r"groups\[1\] is (None|nan); expected a number or text"):
        partition.by_group(groups)


def test_pfllib_counts_its_draws():
    for divide in (partition.pfllib_dirichlet, partition.pfllib_extended_dirichlet):
        with pytest.raises(ValueError, match=r"max_tries is 1\.5; expected an integer"):
            divide(LABELS, 4, max_tries=1.5, min_size=1)
