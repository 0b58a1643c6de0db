"""Minibatch rules: every example once an epoch, uniform draws, and what ragged clients get."""

import decimal
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy.testing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fedjax_sim as fs
from fedjax_sim.data import batches
from fedjax_sim.data.batches import (
    complete_batches,
    epochs,
    full_batch,
    permutations,
    scaled_words,
    shuffled_repeats,
    stream,
    with_replacement,
)

# A chi-square statistic beyond this quantile of its law fails. The seeds are fixed, so a test
# either always passes or always fails; a sound generator is refused with this probability only.
FALSE_ALARM = 1e-6


def assert_uniform(counts, dof=None, scale=1.0):
    """Chi-square test of equal probabilities; ``scale`` corrects for dependent cells."""
    counts = np.asarray(counts)
    expected = counts.mean()
    assert expected >= 5, "too few draws for the chi-square law"
    statistic = scale * np.sum((counts - expected) ** 2 / expected)
    assert statistic < stats.chi2.isf(FALSE_ALARM, dof or counts.size - 1)


@functools.partial(jax.jit, static_argnums=(1, 3))
def draw_permutations(key, num, size, max_size):
    return permutations(key, num, size, max_size)


# Up to 1,024 rows are shuffled once, more rows twice.
ONCE, TWICE = 5, 1025


@pytest.mark.slow
@pytest.mark.parametrize(("max_size", "num"), [(4, 5000), (ONCE, 5000), (TWICE, 2000)])
def test_all_orders_of_four_are_equally_likely(max_size, num):
    rows = np.asarray(draw_permutations(jax.random.key(0), num, 4, max_size))[:, :4]
    np.testing.assert_array_equal(np.sort(rows), np.broadcast_to(np.arange(4), rows.shape))
    _, counts = np.unique(rows @ [64, 16, 4, 1], return_counts=True)
    assert len(counts) == 24
    assert_uniform(counts)


def test_large_clients_rows_are_equally_likely_everywhere():
    """Rows against positions in ten blocks each, of clients that are shuffled twice."""
    n, num, blocks = 1500, 100, 10
    rows = np.asarray(draw_permutations(jax.random.key(5), num, n, n)) * blocks // n
    places = np.broadcast_to(np.arange(n) * blocks // n, rows.shape)
    counts = np.bincount((rows * blocks + places).ravel(), minlength=blocks**2)
    assert_uniform(counts, dof=(blocks - 1) ** 2, scale=(n - 1) / n)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("max_size", "size"), [(5, 5), (17, 17), (64, 40), (1024, 700), (1025, 1025), (4000, 3000)]
)
def test_permutations_are_ranks_of_random_words(max_size, size):
    """Rows sorted by the random high bits, the later shuffle first, ties by the order before."""
    key = jax.random.key(6)
    row_bits = (max_size - 1).bit_length()
    keys = [key] if max_size <= 1024 else [key, jax.random.fold_in(key, 1)]
    order = np.arange(size)
    for key in keys:
        words = np.asarray(jax.random.bits(key, (1, max_size), jnp.uint32))[0, :size]
        order = order[np.argsort(words >> row_bits, kind="stable")]
    rows = np.asarray(draw_permutations(keys[0], 1, size, max_size))[0, :size]
    np.testing.assert_array_equal(rows, np.argsort(order))


@pytest.mark.slow
def test_counted_ranks_are_those_of_the_sort(monkeypatch):
    def drawn():
        sizes = jnp.array([0, 1, 40, 63])
        return jax.vmap(lambda size: permutations(jax.random.key(3), 2, size, 63))(sizes)

    counted = drawn()
    monkeypatch.setattr(batches, "_MOST_COUNTED_ROWS", 0)
    np.testing.assert_array_equal(counted, drawn())


@pytest.mark.slow
@pytest.mark.parametrize("max_size", [1, 2, 3, 64, 65, 1023, 1024, 1025, 1026])
def test_permutations_at_the_switch_and_at_powers_of_two(max_size):
    for size in {1, max_size // 2, max_size - 1, max_size} - {0}:
        rows = draw_permutations(jax.random.key(size), 3, size, max_size)
        assert rows.dtype == jnp.int32
        actual = np.sort(np.asarray(rows)[:, :size])
        np.testing.assert_array_equal(actual, np.broadcast_to(np.arange(size), actual.shape))


@pytest.mark.slow
@pytest.mark.parametrize("word", [0, 0xFFFFFFFF])
@pytest.mark.parametrize("max_size", [4, 5, 1024, 1025])
def test_ties_and_words_that_look_like_padding(monkeypatch, word, max_size):
    """If all random words are equal, each row must still come exactly once."""
    words = jnp.full((2, max_size), word, jnp.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda *args: words)
    for size in (1, max_size - 1, max_size):
        rows = np.sort(permutations(jax.random.key(0), 2, jnp.array(size), max_size)[:, :size])
        np.testing.assert_array_equal(rows, np.broadcast_to(np.arange(size), rows.shape))


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def drawn_epochs(size, num_epochs, batch_size, max_size, num_steps):
    pick = epochs(num_epochs, batch_size).draw(jax.random.key(7), size, max_size, num_steps)
    return jax.vmap(pick)(jnp.arange(num_steps))


@pytest.mark.slow
@settings(max_examples=25)
@given(size=st.integers(0, 9), shape=st.sampled_from([(1, 1), (2, 4), (3, 2), (2, 20)]))
def test_epochs_see_every_example_exactly_once(size, shape):
    num_epochs, batch_size = shape
    rule = epochs(num_epochs, batch_size)
    num_steps = int(rule.num_steps(np.array([size]))[0])
    per_epoch = -(-size // batch_size)
    assert num_steps == num_epochs * per_epoch
    bound = num_epochs * -(-9 // batch_size)
    rows, weights = map(np.asarray, drawn_epochs(size, num_epochs, batch_size, 9, bound))
    assert rows.min() >= 0
    assert rows.max() < max(size, 1)
    for epoch in range(num_epochs):
        steps = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        seen = rows[steps][weights[steps]]
        np.testing.assert_array_equal(np.sort(seen), np.arange(size))
        filled = weights[steps].sum(axis=1)
        # All batches are full but the last, which holds the rest.
        np.testing.assert_array_equal(filled[:-1], batch_size)
        assert size == 0 or filled[-1] == (size - 1) % batch_size + 1


def test_epochs_are_reshuffled():
    rows, _ = drawn_epochs(9, 3, 20, 9, 3)
    orders = {tuple(order) for order in np.asarray(rows).tolist()}
    assert len(orders) == 3


def test_streams_are_reshuffled():
    pick = stream(3, 9).draw(jax.random.key(7), jnp.array(9), 9, 9)
    rows, weights = jax.vmap(pick)(jnp.arange(9))
    assert rows.shape == weights.shape == (9, 3)
    orders = {tuple(order) for order in np.reshape(rows, (3, 9)).tolist()}
    assert len(orders) == 3


def test_epochs_stop_at_max_steps():
    rule = epochs(3, 4, max_steps=5)
    assert rule.num_steps(np.array([0, 1, 4, 5, 100])).tolist() == [0, 3, 3, 5, 5]


# FedJAX 0.0.17, ClientDataset.shuffle_repeat_batch(batch_size, num_epochs, num_steps): batches and,
# of a client with so many examples, examples that are seen once more than the passes say.
@pytest.mark.parametrize(
    ("size", "num_epochs", "batch_size", "max_steps", "steps", "seen_more"),
    [
        (10, 2, 4, None, 5, 0),
        (9, 1, 4, None, 3, 3),
        (3, 1, 20, None, 1, 2),
        (1, 2, 3, None, 1, 1),
        (10, 3, 1, None, 30, 0),
        (10, 2, 4, 3, 3, 2),
    ],
)
def test_shuffled_repeats(size, num_epochs, batch_size, max_steps, steps, seen_more):
    rule = shuffled_repeats(num_epochs, batch_size, max_steps)
    assert rule.num_steps(np.array([0, size])).tolist() == [0, steps]
    pick = rule.draw(jax.random.key(3), jnp.array(size), size + 3, steps)
    rows, weights = map(np.asarray, jax.vmap(pick)(jnp.arange(steps)))
    assert weights.all()
    seen = np.bincount(rows.ravel(), minlength=size)
    assert seen.size == size  # no row of another client
    assert seen.max() - seen.min() <= 1
    assert np.sum(seen == seen.max()) == (seen_more or size)
    # Whole passes in the joined sequence are permutations, each in its own order.
    passes = rows.ravel()[: rows.size // size * size].reshape(-1, size)
    np.testing.assert_array_equal(np.sort(passes), np.broadcast_to(np.arange(size), passes.shape))
    assert size < 9 or len({tuple(order) for order in passes.tolist()}) == len(passes)


# 10 = 2 * 4 + 2 and 8 = 2 * 4: both leave every pass with two minibatches; 3 < 4 has none.
@pytest.mark.parametrize(("size", "complete"), [(10, 2), (8, 2), (5, 1), (4, 1)])
def test_complete_batches(size, complete):
    rule = complete_batches(num_epochs=3, batch_size=4)
    assert rule.num_steps(np.array([0, 3, size])).tolist() == [0, 0, 3 * complete]
    pick = rule.draw(jax.random.key(3), jnp.array(size), 12, 9)
    rows, weights = map(np.asarray, jax.vmap(pick)(jnp.arange(3 * complete)))
    assert weights.all()
    passes = np.sort(rows.reshape(3, -1))
    assert (np.diff(passes) > 0).all()  # no example twice in a pass
    assert passes.max() < size
    if size == 10:
        assert len({tuple(row) for row in passes.tolist()}) > 1  # other examples are left out


def test_complete_batches_begin_each_pass_of_epochs():
    key, size = jax.random.key(3), jnp.array(10)
    whole = epochs(3, 4).draw(key, size, 12, 9)
    pick = complete_batches(3, 4).draw(key, size, 12, 6)
    for step, same in enumerate((0, 1, 3, 4, 6, 7)):  # 2, 5 and 8 are short
        np.testing.assert_array_equal(pick(step)[0], whole(same)[0])


def test_a_client_with_fewer_examples_than_a_batch_does_not_move():
    data = fs.from_clients([{"d": np.ones(n, np.float32)} for n in (3, 9)])
    rule = complete_batches(num_epochs=2, batch_size=4)
    task = fs.empirical_task(lambda x, batch, key: -x * batch["d"], data, rule)
    timeline = fs.timelines.full(1, 2, task.num_steps)
    setup = fs.Setup(task, timeline, jnp.zeros(()))
    # Four unit steps of the second client, half of the mean: exact in floating point.
    assert float(fs.run(fs.fedavg(1.0), setup, jax.random.key(0))[0].server.params) == 2.0


def test_steps_beyond_the_last_epoch_are_harmless():
    """The masked loop evaluates them: rows must stay inside the client."""
    rows, _ = drawn_epochs(3, 2, 4, 9, 50)
    assert np.asarray(rows).max() < 3


def test_with_replacement_is_uniform():
    rule = with_replacement(batch_size=8, num_steps=1000)
    pick = rule.draw(jax.random.key(0), jnp.array(7), 30, 2000)
    rows, weights = map(np.asarray, jax.jit(jax.vmap(pick))(jnp.arange(1000)))
    assert weights.all()
    assert_uniform(np.bincount(rows.ravel(), minlength=7))
    # Two draws of one minibatch are independent: all 49 pairs, repeats included.
    assert_uniform(np.bincount(rows[:, 0] * 7 + rows[:, 1], minlength=49))
    # So are the draws of successive steps.
    assert_uniform(np.bincount(rows[1:, 0] * 7 + rows[:-1, 0], minlength=49))


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1))
def test_words_are_scaled_exactly(bits, size):
    rows = scaled_words(jnp.array([bits], jnp.uint32), jnp.array(size, jnp.int32))
    assert rows.tolist() == [(bits * size) >> 32]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [with_replacement(3, 5), epochs(2, 3), shuffled_repeats(2, 3), complete_batches(3, 3)],
)
def test_minibatches_do_not_depend_on_how_many_may_follow(rule):
    """A longer bound on the steps, as other clients may impose it, changes no draw."""
    key, size = jax.random.key(0), jnp.array(7)
    short, long = (rule.draw(key, size, 9, max_steps) for max_steps in (3, 6))
    for step in range(3):
        np.testing.assert_array_equal(short(step)[0], long(step)[0])


def test_full_batch_has_every_row_once():
    rows, weights = full_batch(3).draw(jax.random.key(0), jnp.array(4), 6, 64)(2)
    np.testing.assert_array_equal(np.asarray(rows)[np.asarray(weights)], np.arange(4))
    assert np.asarray(rows).max() < 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", [with_replacement(3, 5), full_batch(5), epochs(5, 3), shuffled_repeats(15, 3)]
)
def test_client_without_examples(rule):
    assert rule.num_steps(np.array([0, 1])).tolist() == [0, 5]
    rows, weights = rule.draw(jax.random.key(0), jnp.array(0), 4, 64)(0)
    assert not np.asarray(weights).any()
    np.testing.assert_array_equal(rows, 0)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [with_replacement(3, 5), epochs(2, 3)])
def test_the_same_step_gives_the_same_minibatch(rule):
    key = jax.random.key(0)
    first, again = (rule.draw(key, jnp.array(7), 9, 64)(1)[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = rule.draw(jax.random.key(1), jnp.array(7), 9, 64)(1)[0]
    assert np.asarray(first).tolist() != np.asarray(other).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        with_replacement(3, 5),
        epochs(2, 3),
        shuffled_repeats(2, 3),
        complete_batches(3, 3),
        full_batch(5),
    ],
)
def test_draws_do_not_depend_on_the_precision(rule):
    """A float64 check of a float32 run sees the same examples."""

    def drawn():
        size = jnp.array(7)
        pick = rule.draw(jax.random.key(3), size, 9, 64)
        return [np.asarray(pick(step)[0]) for step in (0, 1, jnp.array(4))]

    single = drawn()
    with jax.enable_x64(True):
        double = drawn()
    np.testing.assert_array_equal(double, single)
    assert {rows.dtype for rows in single + double} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: with_replacement(0, 5), "batch_size is 0"),
        (lambda: with_replacement(5, -1), "num_steps is -1"),
        (lambda: epochs(0, 5), "num_epochs is 0"),
        (lambda: epochs(5, 0), "batch_size is 0"),
        (lambda: epochs(5, 5, max_steps=0), "max_steps is 0"),
        (lambda: shuffled_repeats(0, 5), "num_epochs is 0"),
        (lambda: shuffled_repeats(5, 0), "batch_size is 0"),
        (lambda: shuffled_repeats(5, 5, max_steps=0), "max_steps is 0"),
        (lambda: complete_batches(0, 5), "num_epochs is 0"),
        (lambda: complete_batches(5, 0), "batch_size is 0"),
        (lambda: full_batch(0), "num_steps is 0"),
    ],
)
def test_refuses_counts_below_one(build, name):
    with pytest.raises(ValueError, match=f"{name}; expected at least 1"):
        build()


def test_words_are_stored_before_they_are_compared():
    # Fused into the comparison of all pairs, each word would be drawn once per pair.
    def ranks(key):
        return permutations(key, 1, jnp.array(64), 64)

    text = jax.jit(ranks).lower(jax.random.key(0)).compile().as_text()
    assert " while(" in text


@pytest.mark.parametrize("number", [0.1, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 2.75])
def test_fractions_of_an_epoch_are_its_first_minibatches(number):
    """Exact decimal arithmetic; 0.7 of 10 steps are 7, where 0.7 * 10 rounded up in binary is 8."""
    sizes = np.arange(0, 120)
    exact = decimal.Decimal(str(number))
    expected = [math.ceil(exact * math.ceil(n / 3)) for n in sizes]
    npt.assert_array_equal(epochs(number, 3).num_steps(sizes), expected)


@pytest.mark.parametrize(
    ("number", "steps", "expected"),
    [
        (1 / 3, 3_000, 1_000),
        (1 / 3, 30_001, 10_001),
        (2 / 3, 3_000_000, 2_000_000),
        (0.1 + 0.2, 2_000, 600),
        (100 / 3, 3_000_000, 100_000_000),
        (0.123456789, 1_000_000_000, 123_456_789),
        (1e-12, 5, 1),
    ],
)
def test_fractions_with_many_digits_have_the_steps_of_the_fraction(number, steps, expected):
    """16 digits times some thousand steps are more than 64 bits."""
    assert epochs(number, 2).num_steps(np.array([2 * steps])).tolist() == [expected]


@pytest.mark.parametrize("number", [math.inf, 1e300, 2**31])
def test_refuses_more_epochs_than_can_be_counted(number):
    with pytest.raises(ValueError, match=r"num_epochs is .*; expected at most 2147483647"):
        epochs(number, 2)


def test_a_fraction_of_an_epoch_has_every_example_at_most_once():
    steps = int(epochs(0.5, 3).num_steps(np.array([20]))[0])
    part, whole = (
        rule.draw(jax.random.key(0), jnp.array(20), 20, 7)
        for rule in (epochs(0.5, 3), epochs(1, 3))
    )
    rows = np.concatenate([part(k)[0] for k in range(steps)])
    assert steps == 4
    assert len(set(rows.tolist())) == 12
    npt.assert_array_equal(rows, np.concatenate([whole(k)[0] for k in range(steps)]))


@pytest.mark.parametrize("number", [0.0, -0.5, float("nan"), 0, "1"])
def test_epochs_have_to_be_positive(number):
    with pytest.raises(ValueError, match="num_epochs is"):
        epochs(number, 3)


# ---- NumPy's numbers

RULES = {
    "with_replacement": (with_replacement, (2, 3)),
    "epochs": (epochs, (2, 2, 5)),
    "a fraction": (epochs, (0.1, 2)),
    "shuffled_repeats": (shuffled_repeats, (2, 2, 3)),
    "complete_batches": (complete_batches, (2, 2)),
    "stream": (stream, (2, 3)),
    "full_batch": (full_batch, (2,)),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("integer", [np.int64, np.uint8, jnp.int16, np.array])
def test_rules_of_numpy_numbers_are_those_of_python_numbers(name, integer):
    """The first of two equal arguments must not decide the arithmetic of later rules."""
    rule, numbers = RULES[name]
    of_numpy = [
        np.float32(number) if isinstance(number, float) else integer(number) for number in numbers
    ]
    assert rule(*of_numpy) is rule(*numbers)
    sizes = np.array([0, 3, 20])
    assert rule(*of_numpy).num_steps(sizes).tolist() == rule(*numbers).num_steps(sizes).tolist()


@pytest.mark.parametrize("name", RULES)
def test_the_first_rule_may_have_numpy_numbers(name):
    """As where the tests of another file made it: strict promotion refuses int32 times int64."""
    rule, numbers = RULES[name]
    own = tuple(number + 40 if isinstance(number, int) else number for number in numbers)
    with jax.enable_x64(True):
        made = rule(*(np.float64(x) if isinstance(x, float) else np.int64(x) for x in own))
        rows, weights = made.draw(jax.random.key(0), jnp.array(5), 7, 4)(0)
    assert rows.dtype == jnp.int32
    assert weights.shape == rows.shape


def test_a_rule_for_one_does_not_let_true_pass():
    epochs(1, 2)
    with pytest.raises(ValueError, match="num_epochs is True; expected an integer"):
        epochs(True, 2)
