"""Synchronous timelines: ranges, laws of inclusion, prefixes, transformations, refusals."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_sim import timelines
from fedjax_sim.timelines import poisson, sampling
from fedjax_sim.timelines.sampling import sample_without_replacement

KEY = jax.random.key(0)
STEPS = np.array([3, 0, 5, 1, 2, 4])
WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0, 0.0, 2.0])

# Every kind, as a function of (key, num_rounds), over 6 clients.
KINDS = {
    "full": lambda key, t: sampling.full(t, 6, STEPS),
    "uniform": lambda key, t: sampling.uniform(key, t, 6, 4, STEPS),
    "weighted": lambda key, t: sampling.weighted(key, t, WEIGHTS, 4, STEPS),
    "bernoulli": lambda key, t: sampling.bernoulli(key, t, 6, 0.4, STEPS),
    "poisson": lambda key, t: poisson(key, t, 6, 0.4, STEPS, slots=4),
    "cyclic": lambda key, t: sampling.cyclic(t, 6, 4, STEPS),
    "stratified": lambda key, t: sampling.stratified(key, t, 6, 4, STEPS, num_strata=2),
    "dropout": lambda key, t: sampling.dropout(key, sampling.uniform(key, t, 6, 4, STEPS), 0.3),
}
every_kind = pytest.mark.parametrize("kind", KINDS)

# A chi-square statistic beyond this quantile of its law fails. The seeds are fixed, so a test
# either always passes or always fails; a sound generator is refused with this probability only.
FALSE_ALARM = 1e-6


def assert_follows(counts, probabilities):
    """Chi-square test of the counts of disjoint outcomes against their probabilities."""
    counts = np.asarray(counts, float)
    expected = counts.sum() * np.asarray(probabilities)
    assert expected.min() >= 5, "too few draws for the chi-square law"
    statistic = np.sum((counts - expected) ** 2 / expected)
    assert statistic < stats.chi2.isf(FALSE_ALARM, len(counts) - 1)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
@every_kind
def test_timeline_is_synchronous_and_in_range(kind):
    timeline = KINDS[kind](KEY, 7)
    clients, mask = np.asarray(timeline.clients), np.asarray(timeline.mask)
    assert timeline.num_rounds == 7
    assert clients.shape == mask.shape == (7, timeline.cohort_size)
    assert clients.min() >= 0
    assert clients.max() < 6
    assert all(len(set(row)) == len(row) for row in clients)
    np.testing.assert_array_equal(timeline.version, np.arange(7)[:, None] + 0 * clients)
    np.testing.assert_array_equal(timeline.num_steps, STEPS[clients])
    np.testing.assert_array_equal(timeline.time, np.arange(1, 8))
    assert timeline.max_steps == 5
    assert timeline.max_staleness == 0
    assert {leaf.dtype.name for leaf in (timeline.clients, timeline.version)} == {"int32"}


@pytest.mark.slow
@every_kind
def test_longer_timeline_begins_like_a_shorter_one(kind):
    assert_same(KINDS[kind](KEY, 9)[:4], KINDS[kind](KEY, 4))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("full", "cyclic")])
def test_works_under_jit_and_vmap_over_keys(kind):
    keys = jax.random.split(KEY, 3)
    build = functools.partial(KINDS[kind], t=4)
    together = jax.jit(jax.vmap(build))(keys)
    for i, key in enumerate(keys):
        assert_same(jax.tree.map(lambda x, i=i: x[i], together), build(key))
    one, other = (np.asarray(together.clients[i]) * np.asarray(together.mask[i]) for i in (0, 1))
    assert (one != other).any()


@pytest.mark.slow
@every_kind
def test_precision_does_not_change_the_timeline(kind):
    """A float64 check of a float32 run sees the same cohorts."""
    single = KINDS[kind](KEY, 5)
    with jax.enable_x64(True):
        double = KINDS[kind](KEY, 5)
    assert_same(double, single)
    assert [x.dtype for x in jax.tree.leaves(double)] == [x.dtype for x in jax.tree.leaves(single)]


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def subsets(key, num, population, size):
    """[num, size]: independent samples, sorted."""
    keys = jax.random.split(key, num)
    draw = jax.vmap(lambda key: sample_without_replacement(key, population, size))
    return jnp.sort(draw(keys), axis=1)


# (5, 2) permutes the population; the others are small enough for Floyd's algorithm.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("population", "size", "num"), [(5, 2, 2000), (18, 2, 6000), (30, 3, 60000)]
)
def test_all_subsets_are_equally_likely(population, size, num):
    drawn = np.asarray(subsets(KEY, num, population, size))
    assert drawn.min() >= 0
    assert drawn.max() < population
    assert (np.diff(drawn, axis=1) > 0).all()
    _, counts = np.unique(drawn @ population ** np.arange(size), return_counts=True)
    number = math.comb(population, size)
    assert len(counts) == number
    assert_follows(counts, np.full(number, 1 / number))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 4, 5, 40])
def test_samples_are_distinct_on_either_side_of_the_switch(size):
    """Cohorts of 1 .. 4 of 40 are drawn by Floyd's algorithm, larger ones by a permutation."""
    drawn = np.asarray(subsets(KEY, 50, 40, size))
    assert (np.diff(drawn, axis=1) > 0).all()
    assert drawn.min() >= 0
    assert drawn.max() < 40


@pytest.mark.parametrize(("population", "size"), [(41, 5), (1000, 60)])
def test_all_steps_of_floyds_algorithm_together(population, size):
    """The same elements, in the same order, as by one step after the other."""
    first, steps = population - size, np.arange(size)

    @jax.jit
    @jax.vmap
    def both(key):
        draws = jax.random.randint(key, (size,), 0, first + 1 + steps, jnp.int32)
        return draws, sample_without_replacement(key, population, size)

    inserted = 0
    for draws, found in zip(*map(np.asarray, both(jax.random.split(KEY, 1000))), strict=True):
        chosen: list[int] = []
        for step, draw in enumerate(draws.tolist()):
            inserted += draw >= first and draw in chosen and draw not in draws[:step]
            chosen.append(first + step if draw in chosen else draw)
        assert found.tolist() == chosen
    assert inserted > 0  # chains of steps occur


def test_subsets_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match=r"size is 20; expected 0 .. population = 10"):
        sample_without_replacement(KEY, 10, 20)
    with pytest.raises(ValueError, match="size is -1; expected at least 0"):
        sample_without_replacement(KEY, 10, -1)


ROUNDS = timelines.full(2, 3, 1)


@pytest.mark.parametrize("key", [0, np.arange(2), jax.random.split(jax.random.key(0), 2)])
@pytest.mark.parametrize(
    "draw",
    [
        lambda key: timelines.uniform(key, 2, 3, 2, 1),
        lambda key: timelines.poisson(key, 2, 3, 0.5, 1, slots=2),
        lambda key: timelines.dropout(key, ROUNDS, 0.5),
        lambda key: timelines.lose_uploads(key, ROUNDS, 0.5),
        lambda key: timelines.geometric_steps(key, ROUNDS, 0.5, 2),
        lambda key: timelines.two_speeds(key, 3, 0.5, fast=1.0, slow=2.0),
    ],
)
def test_what_is_no_key_is_refused(draw, key):
    with pytest.raises(ValueError, match=r"key (is|has shape) .*; expected "):
        draw(key)


def test_uniform_includes_every_client_equally():
    timeline = sampling.uniform(KEY, 3000, 6, 4, 1)
    # Cohorts are subsets, 15 of them.
    codes = np.sum(1 << np.asarray(timeline.clients), axis=1)
    counts = np.bincount(codes, minlength=64)
    subsets_of_four = [sum(1 << i for i in c) for c in itertools.combinations(range(6), 4)]
    assert counts[subsets_of_four].sum() == 3000
    assert_follows(counts[subsets_of_four], np.full(15, 1 / 15))


def test_weighted_is_successive_sampling():
    """Against enumeration: P(i then j) = w_i / W * w_j / (W - w_i), in this order."""
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    timeline = sampling.weighted(KEY, 5000, weights, 2, 1)
    pairs = list(itertools.permutations(range(4), 2))
    total = weights.sum()
    exact = [weights[i] / total * weights[j] / (total - weights[i]) for i, j in pairs]
    first, second = np.asarray(timeline.clients).T
    counts = [np.sum((first == i) & (second == j)) for i, j in pairs]
    assert_follows(counts, exact)


@pytest.mark.slow
def test_weighted_favours_no_client_of_a_large_population():
    """The order of 512 clients drawn from 2^24 is random: half of them follow a smaller number."""
    clients = np.asarray(sampling.weighted(KEY, 1, np.ones(2**24), 512, 1).clients[0])
    ascents = np.sum(np.diff(clients) > 0)
    # Ascents of a random permutation of n have mean (n - 1) / 2 and variance (n + 1) / 12.
    # Noise in 23 bits would have ties, ordered by number, and 90 ascents too many.
    assert abs(ascents - 511 / 2) < 5 * np.sqrt(513 / 12)


def test_weighted_never_draws_weight_zero():
    clients = np.asarray(sampling.weighted(KEY, 200, WEIGHTS, 5, 1).clients)
    assert 4 not in clients


@pytest.mark.slow
def test_bernoulli_coins_are_fair_and_independent():
    """All 2^3 outcomes have their product probability."""
    timeline = sampling.bernoulli(KEY, 4000, 3, 0.3, 1)
    np.testing.assert_array_equal(timeline.clients[0], [0, 1, 2])
    mask = np.asarray(timeline.mask)
    outcomes = list(itertools.product([False, True], repeat=3))
    counts = [np.sum((mask == outcome).all(axis=1)) for outcome in outcomes]
    assert_follows(counts, [0.3 ** sum(o) * 0.7 ** (3 - sum(o)) for o in outcomes])
    certain = sampling.bernoulli(KEY, 5, 3, 1.0, 1)
    assert np.asarray(certain.mask).all()


def test_rare_clients_have_their_probability():
    """A client takes part if and only if its 32-bit word is below the probability."""
    words = np.asarray(jax.random.bits(jax.random.fold_in(KEY, 0), (1000,), jnp.uint32))
    first = int(words.argmin())
    assert words[first] % 512  # a comparison of 23 bits would round it
    absent, present = (
        sampling.bernoulli(KEY, 1, 1000, (int(words[first]) + more) / 2**32, 1).mask[0]
        for more in (0, 1)
    )
    assert not absent.any()
    assert np.flatnonzero(present).tolist() == [first]


def test_dropout_rate():
    sampled = sampling.uniform(KEY, 4000, 6, 3, 1)
    thinned = sampling.dropout(jax.random.key(1), sampled, 0.25)
    outcomes = np.asarray(thinned.mask).sum(axis=1)
    assert_follows(np.bincount(outcomes, minlength=4), stats.binom.pmf(range(4), 3, 0.75))
    np.testing.assert_array_equal(thinned.clients, sampled.clients)


def test_dropout_never_revives():
    away = sampling.bernoulli(KEY, 50, 6, 0.5, 1)
    thinned = sampling.dropout(jax.random.key(1), away, 0.5)
    assert not np.any(np.asarray(thinned.mask) & ~np.asarray(away.mask))
    assert_same(sampling.dropout(jax.random.key(1), away, 0.0), away)


@pytest.mark.parametrize(("num_clients", "cohort_size"), [(1, 1), (5, 2), (6, 4), (7, 7)])
def test_cyclic_takes_turns(num_clients, cohort_size):
    timeline = sampling.cyclic(5, num_clients, cohort_size, 1)
    turns = np.asarray(timeline.clients).ravel()
    np.testing.assert_array_equal(turns, np.arange(5 * cohort_size) % num_clients)


def test_slices_of_a_batch_of_timelines():
    keys = jax.random.split(KEY, 3)
    batch = jax.vmap(lambda key: sampling.uniform(key, 6, 5, 2, 1))(keys)
    part = batch[2:5]
    assert (batch.num_rounds, batch.cohort_size, part.num_rounds) == (6, 2, 3)
    np.testing.assert_array_equal(part.clients, batch.clients[:, 2:5])
    np.testing.assert_array_equal(part.time, batch.time[:, 2:5])
    # Number 0 would be the first round of every replica, and not the first replica.
    for number in (0, np.int64(1)):
        with pytest.raises(ValueError, match=rf"rounds is .*{number}.*; expected a slice"):
            batch[number]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sampling.full(0, 3, 1), "num_rounds is 0"),
        (lambda: sampling.full(3, 0, 1), "num_clients is 0"),
        (lambda: sampling.cyclic(0, 3, 1, 1), "num_rounds is 0"),
        (lambda: sampling.uniform(KEY, 0, 3, 1, 1), "num_rounds is 0"),
        (lambda: sampling.uniform(KEY, 1, 3, 4, 1), "cohort_size is 4"),
        (lambda: sampling.uniform(KEY, 1, 3, 0, 1), "cohort_size is 0"),
        (lambda: sampling.cyclic(1, 3, 4, 1), "cohort_size is 4"),
        (lambda: sampling.weighted(KEY, 1, np.array([1, -1]), 1, 1), "weights must be"),
        (lambda: sampling.weighted(KEY, 1, np.array([1, np.nan]), 1, 1), "weights must be"),
        (lambda: sampling.weighted(KEY, 1, np.array([[1, 2]]), 1, 1), "weights must be"),
        (
            lambda: sampling.weighted(KEY, 1, np.array([1, 0]), 2, 1),
            "weights has 1 positive entries",
        ),
        (lambda: sampling.weighted(KEY, 1, np.array([1, 1]), 0, 1), "cohort_size is 0"),
        (lambda: sampling.bernoulli(KEY, 1, 3, 0.0, 1), "probability is 0.0"),
        (lambda: sampling.bernoulli(KEY, 1, 3, 1.5, 1), "probability is 1.5"),
        (lambda: sampling.bernoulli(KEY, 1, 3, np.nan, 1), "probability is nan"),
        (lambda: sampling.dropout(KEY, sampling.full(1, 3, 1), 1.0), "probability is 1.0"),
        (lambda: sampling.dropout(KEY, sampling.full(1, 3, 1), -0.1), "probability is -0.1"),
        (
            lambda: sampling.full(1, 3, np.array(1.5)),
            r"num_steps is array\(1.5\); expected integers of at least 0",
        ),
        (lambda: sampling.full(1, 3, -1), "num_steps is -1; expected integers of at least 0"),
        (lambda: sampling.full(1, 3, np.array([1, 2])), r"num_steps has shape \(2,\)"),
        (lambda: sampling.full(1, 3, 2**31), "num_steps is 2147483648; expected at most 2147483"),
        (lambda: sampling.full(2**31, 1, 1), "num_rounds is 2147483648; expected at most"),
        (lambda: sampling.single(1, 2**32, 1, 2**31), "num_clients is 4294967296; expected at"),
        (lambda: sampling.uniform(KEY, 1, 2**32, 1, 1), "num_clients is 4294967296; expected at"),
        (
            lambda: sampling.uniform(KEY, 10**9, 10**9, 10**6, 1),
            r"num_rounds x cohort_size is 1000000000 x 1000000, a timeline of 1\.3e\+07 GB; "
            "expected at most .* GB, this machine's memory",
        ),
    ],
)
def test_refuses(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_one_timeline_at_a_time():
    """All replicas of a batch would get equal draws, or fields of other shapes."""
    batch = jax.tree.map(lambda x: np.stack([x, x]), sampling.full(3, 2, 1))
    for change in (
        lambda: sampling.dropout(KEY, batch, 0.5),
        lambda: timelines.repeat_rounds(batch, 2),
        lambda: timelines.geometric_steps(KEY, batch, 0.5, 4),
    ):
        with pytest.raises(ValueError, match=r"timeline.clients has shape \(2, 3, 2\); expected"):
            change()


def test_refuses_traced_steps():
    with pytest.raises(ValueError, match="num_steps is traced"):
        jax.jit(lambda steps: sampling.full(1, 3, steps))(3)


def test_traced_probability_passes():
    masks = jax.jit(jax.vmap(lambda p: sampling.bernoulli(KEY, 20, 5, p, 1).mask))(
        jnp.array([0.2, 0.9])
    )
    few, many = np.asarray(masks).sum(axis=(1, 2))
    assert few < many


def test_vectors_of_probabilities_are_refused():
    """Only lost and late uploads have probabilities per client."""
    each, rounds = np.array([0.1, 0.5, 1.0]), sampling.full(2, 3, 1)
    for build in (
        lambda: sampling.bernoulli(KEY, 2, 3, each, 1),
        lambda: sampling.dropout(KEY, rounds, each),
        lambda: sampling.full_or_uniform(KEY, 2, 3, 1, each, 1),
        lambda: poisson(KEY, 2, 3, each, 1, slots=2),
        lambda: timelines.grouped_bernoulli(KEY, 2, 3, each, 1, num_groups=1),
        lambda: timelines.geometric_steps(KEY, rounds, each, 4),
    ):
        with pytest.raises(ValueError, match=r"probability has shape \(3,\); expected one number"):
            build()


@pytest.mark.parametrize(
    ("clients", "fraction", "nearest", "flower"),
    [
        (100, 0.1, 10, 10),
        (100, 0.29, 29, 28),  # 0.29 * 100 = 28.999999999999996
        (15, 0.1, 2, 2),  # 1.5
        (10, 0.05, 1, 2),  # 0.5, and Flower's minimum
        (10, 0.01, 1, 2),
        (7, 1.0, 7, 7),
    ],
)
def test_fractions_of_the_clients(clients, fraction, nearest, flower):
    """Flower's numbers are those of max(int(M C), 2), its ``sample_size`` with the defaults."""
    assert sampling.cohort_of(clients, fraction) == nearest
    assert sampling.cohort_of(clients, fraction, rule="flower") == flower


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fraction": 0.0}, "fraction is 0.0"),
        ({"fraction": 1.5}, "fraction is 1.5"),
        ({"num_clients": 0}, "num_clients is 0"),
        ({"rule": "floor"}, "rule is 'floor'"),
        ({"num_clients": 1, "rule": "flower"}, "num_clients is 1"),
    ],
)
def test_fractions_of_the_clients_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        sampling.cohort_of(**{"num_clients": 10, "fraction": 0.5} | arguments)
