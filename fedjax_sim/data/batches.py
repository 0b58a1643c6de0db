"""Minibatch rules: the examples that a client sees at each local step.

A :class:`Batches` is a rule ``draw(key, size, ...) -> pick``, ``pick(step) -> (rows, weights)``:
row numbers within the client and example weights, ``[batch_size]`` each.  All draws derive from
the key of the visit and the step, so a client's minibatches do not depend on the rest of the
cohort, on the execution strategy, or on resuming.  Rules are cached: equal arguments give the
same object, so rebuilding a task does not trigger recompilation.
"""

from __future__ import annotations

import fractions
import functools
import math
from collections.abc import Callable
from typing import NamedTuple, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import INT32_MAX, check_at_most, check_count, check_positive
from fedjax_sim.tree import fast
from fedjax_sim.types import Step, plain_number, shown

__all__ = [
    "Batches",
    "complete_batches",
    "epochs",
    "full_batch",
    "permutations",
    "shuffled_repeats",
    "stream",
    "with_replacement",
]

P = ParamSpec("P")
Pick = Callable[[Step], tuple[Array, Array]]

# Ranks of so few rows are counted: n^2 comparisons vectorise, and a sort does not. Measured on a
# CPU: 512 permutations of 32 rows in 35 against 240 microseconds, 40 of 60 rows in 17 against 43;
# 100 of 200 rows by sorting in a tenth of the time.
_MOST_COUNTED_ROWS = 64

# Words of so few rows are drawn again in every comparison, which takes no longer than storing them.
_MOST_REDRAWN_ROWS = 16

# Of the fraction of an epoch: times 2^31 steps it has 61 bits.
_LARGEST_DENOMINATOR = 10**9

# Random bits that order two rows of a shuffle, at least; a tie between them goes by row number.
_TIE_BREAKING_BITS = 22


@shown
class Batches(NamedTuple):
    """A minibatch rule.

    ``num_steps(sizes)`` returns the local steps per visit, ``[M]``, from the clients' sizes.
    ``draw(key, size, max_size, max_steps)`` fixes the draws of one visit: ``size`` may be traced,
    ``max_size`` is the size of the largest client, and only steps below ``max_steps`` are picked.
    A rule whose visits can continue each other has ``resume(key, size, sizes, first_step,
    max_steps)``: the key is the same in all visits of a client, ``sizes`` holds the sizes of the
    smallest and the largest client, and step 0 of the visit is the client's step ``first_step``.
    """

    num_steps: Callable[[np.ndarray], np.ndarray]
    draw: Callable[[Array, Array, int, int], Pick]
    resume: Callable[[Array, Array, tuple[int, int], Array, int], Pick] | None = None


def _one_object(make: Callable[P, Batches]) -> Callable[P, Batches]:
    """Decorator: one rule for equal arguments, so that a program is compiled once.

    NumPy's numbers become Python's.
    """
    # Typed, because True equals 1 and would be given its rule instead of being refused.
    cached = functools.lru_cache(maxsize=None, typed=True)(make)

    @functools.wraps(make)
    def rule(*args: P.args, **options: P.kwargs) -> Batches:
        plain = {name: plain_number(value) for name, value in options.items()}
        return cached(*map(plain_number, args), **plain)

    return rule


@_one_object
def with_replacement(batch_size: int, num_steps: int) -> Batches:
    """``num_steps`` minibatches of ``batch_size`` examples, drawn uniformly with replacement.

    Raises:
        ValueError: a batch size or number of steps below 1.

    Example:
        >>> rule = with_replacement(batch_size=4, num_steps=10)
        >>> pick = rule.draw(jax.random.key(0), jnp.array(3), max_size=3, max_steps=10)
        >>> rows, weights = pick(0)
        >>> rows.shape, bool((rows < 3).all())
        ((4,), True)
    """
    check_count(1, batch_size=batch_size, num_steps=num_steps)

    def draw(key: Array, size: Array, max_size: int, max_steps: int) -> Pick:
        del max_size
        size = jnp.asarray(size, jnp.int32)
        # One draw for the whole visit, of 32 bits also in double precision: runs in either
        # precision see the same examples. The draws of step k do not depend on the number of steps.
        bits = jax.random.bits(fast(key), (max(max_steps, 1), batch_size), jnp.uint32)
        rows = scaled_words(bits, size)
        # A client without examples gets weight 0 and so a zero gradient.
        weights = jnp.broadcast_to(size > 0, (batch_size,))

        def pick(step: Step) -> tuple[Array, Array]:
            step = jnp.asarray(step, jnp.int32)
            return jax.lax.dynamic_index_in_dim(rows, step, keepdims=False), weights

        return pick

    return Batches(lambda sizes: np.where(sizes > 0, num_steps, 0), draw)


@_one_object
def epochs(num_epochs: float, batch_size: int, max_steps: int | None = None) -> Batches:
    """Passes over the client's data, reshuffled each epoch, without replacement within an epoch.

    A client with n examples does ``ceil(num_epochs * ceil(n / batch_size))`` steps, at most
    ``max_steps``.  The short last batch of an epoch is kept; its missing rows have weight 0.  A
    fraction of an epoch is its first minibatches; 0.3 counts as exactly three tenths, and 1/3 as a
    third: of the fractions with a denominator up to 10^9, the nearest one.

    Raises:
        ValueError: a number of epochs that is not positive or above 2^31 - 1, another argument
            below 1.

    Example:
        >>> rule = epochs(num_epochs=2, batch_size=4)
        >>> rule.num_steps(np.array([3, 8, 9])).tolist()
        [2, 4, 6]
        >>> epochs(0.5, batch_size=4).num_steps(np.array([0, 3, 8, 9])).tolist()
        [0, 1, 1, 2]
        >>> pick = rule.draw(jax.random.key(0), jnp.array(6), max_size=6, max_steps=4)
        >>> sorted(pick(0)[0].tolist() + pick(1)[0][:2].tolist()), pick(1)[1].tolist()
        ([0, 1, 2, 3, 4, 5], [True, True, False, False])
    """
    check_count(1, batch_size=batch_size)
    if isinstance(num_epochs, float):
        check_positive(num_epochs=num_epochs)
    else:
        check_count(1, num_epochs=num_epochs)
    check_at_most(INT32_MAX, num_epochs=num_epochs)
    if max_steps is not None:
        check_count(1, max_steps=max_steps)
    # The decimal number that is typed: 0.7 of 10 steps are 7, though 0.7 * 10 > 7 in binary. Of
    # 1/3, whose 16 digits would make the products below too large for 64 bits, the fraction.
    exact = fractions.Fraction(str(num_epochs)).limit_denominator(_LARGEST_DENOMINATOR)
    exact = max(exact, fractions.Fraction(1, _LARGEST_DENOMINATOR))
    passes = math.ceil(exact)
    whole, part = divmod(exact.numerator, exact.denominator)

    def num_steps(sizes: np.ndarray) -> np.ndarray:
        per_epoch = -(-sizes.astype(np.int64) // batch_size)
        steps = per_epoch * whole - (-per_epoch * part // exact.denominator)
        return steps if max_steps is None else np.minimum(steps, max_steps)

    def draw(key: Array, size: Array, max_size: int, max_steps: int) -> Pick:
        size = jnp.asarray(size, jnp.int32)
        order = permutations(key, passes, size, max_size)  # [E, max_size]
        # Padding, so that the last batch can be sliced as well.
        order = jnp.pad(order, ((0, 0), (0, -max_size % batch_size)))
        steps_per_epoch = _steps_per_epoch(size, batch_size)

        def pick(step: Step) -> tuple[Array, Array]:
            step = jnp.asarray(step, jnp.int32)
            epoch, batch = jax.lax.div(step, steps_per_epoch), jax.lax.rem(step, steps_per_epoch)
            epoch = jnp.minimum(epoch, passes - 1)  # masked steps beyond the last epoch
            return _batch_of(order, epoch, batch, batch_size, size)

        return _tabulated(pick, max_steps)

    return Batches(num_steps, draw)


@_one_object
def shuffled_repeats(num_epochs: int, batch_size: int, max_steps: int | None = None) -> Batches:
    """Full minibatches from passes over the client's data that follow each other without a gap.

    The passes are joined, each in its own random order, and the sequence is cut into minibatches,
    so a minibatch may run over the border of two passes.  The last one is filled from one more
    pass (more, if the client has fewer examples than it lacks).  A client with n examples does
    ``ceil(num_epochs * n / batch_size)`` steps, at most ``max_steps``, of ``batch_size`` examples
    each.  :func:`epochs` has a short minibatch at the end of every pass instead.

    Source: ``ShuffleRepeatBatchHParams`` of FedJAX, Ro, Suresh and Wu, 2021, arXiv:2108.02117.

    Raises:
        ValueError: an argument below 1.

    Example:
        >>> rule = shuffled_repeats(num_epochs=2, batch_size=4)
        >>> rule.num_steps(np.array([3, 9, 10])).tolist()
        [2, 5, 5]
        >>> pick = rule.draw(jax.random.key(0), jnp.array(3), max_size=3, max_steps=2)
        >>> rows = pick(0)[0].tolist() + pick(1)[0].tolist()
        >>> sorted(rows[:3]), sorted(rows[3:6]), bool(pick(1)[1].all())
        ([0, 1, 2], [0, 1, 2], True)
    """
    check_count(1, num_epochs=num_epochs, batch_size=batch_size)
    if max_steps is not None:
        check_count(1, max_steps=max_steps)

    def num_steps(sizes: np.ndarray) -> np.ndarray:
        steps = -(-num_epochs * sizes // batch_size)
        return steps if max_steps is None else np.minimum(steps, max_steps)

    def draw(key: Array, size: Array, max_size: int, max_steps: int) -> Pick:
        size = jnp.asarray(size, jnp.int32)
        order = permutations(key, num_epochs + 1, size, max_size)
        # The last minibatch lacks at most batch_size - 1 examples. Only a client with fewer takes
        # them from more than one pass, so further passes need no more rows than that.
        few = max(min(max_size, batch_size - 2), 1)
        further = permutations(jax.random.fold_in(fast(key), 1), batch_size, size, few)
        order = jnp.concatenate([order, jnp.pad(further, ((0, 0), (0, max_size - few)))])
        weights = jnp.broadcast_to(size > 0, (batch_size,))

        def pick(step: Step) -> tuple[Array, Array]:
            place = jnp.asarray(step, jnp.int32) * batch_size
            place = place + jnp.arange(batch_size, dtype=jnp.int32)
            size_or_one = jnp.maximum(size, 1)
            epoch, row = jax.lax.div(place, size_or_one), jax.lax.rem(place, size_or_one)
            return jnp.where(weights, order.at[epoch, row].get(mode="clip"), 0), weights

        return _tabulated(pick, max_steps)

    return Batches(num_steps, draw)


@_one_object
def complete_batches(num_epochs: int, batch_size: int) -> Batches:
    """Passes as in :func:`epochs`, without the short last minibatch of each.

    A client with n examples does ``num_epochs * floor(n / batch_size)`` steps, so a client with
    fewer examples than a minibatch does none.  Other examples are left out in every pass.  Source:
    ``drop_last=True`` of PyTorch's ``DataLoader``.

    Raises:
        ValueError: an argument below 1.

    Example:
        >>> rule = complete_batches(num_epochs=2, batch_size=4)
        >>> rule.num_steps(np.array([3, 8, 10])).tolist()
        [0, 4, 4]
        >>> pick = rule.draw(jax.random.key(0), jnp.array(10), max_size=10, max_steps=4)
        >>> [bool(pick(step)[1].all()) for step in range(4)]
        [True, True, True, True]
    """
    check_count(1, num_epochs=num_epochs, batch_size=batch_size)
    rule = epochs(num_epochs, batch_size)

    def draw(key: Array, size: Array, max_size: int, max_steps: int) -> Pick:
        size = jnp.asarray(size, jnp.int32)
        complete = jax.lax.div(size, jnp.int32(batch_size))
        skipped = (size > complete * batch_size).astype(jnp.int32)  # steps per pass
        among_all = rule.draw(key, size, max_size, max_steps + num_epochs)

        def pick(step: Step) -> tuple[Array, Array]:
            step = jnp.asarray(step, jnp.int32)
            return among_all(step + skipped * jax.lax.div(step, jnp.maximum(complete, 1)))

        return pick

    return Batches(lambda sizes: num_epochs * (sizes // batch_size), draw)


@_one_object
def stream(batch_size: int, num_steps: int) -> Batches:
    """``num_steps`` steps per visit through an endless reshuffled stream of the client's data.

    The stream consists of epochs as in :func:`epochs`, each in its own order.  If the timeline has
    ``first_step`` (asynchronous timelines do), a visit continues where the client's previous visit
    stopped.  Otherwise every visit begins a new epoch.

    Raises:
        ValueError: an argument below 1.

    Example:
        >>> rule = stream(batch_size=2, num_steps=2)
        >>> size, key = jnp.array(6), jax.random.key(0)
        >>> first = rule.resume(key, size, (6, 6), jnp.array(0), 2)
        >>> second = rule.resume(key, size, (6, 6), jnp.array(2), 2)
        >>> sorted(x for rows, _ in (first(0), first(1), second(0)) for x in rows.tolist())
        [0, 1, 2, 3, 4, 5]
    """
    check_count(1, batch_size=batch_size, num_steps=num_steps)

    def resume(
        key: Array, size: Array, sizes: tuple[int, int], first_step: Array, max_steps: int
    ) -> Pick:
        smallest, largest = sizes
        size = jnp.asarray(size, jnp.int32)
        first_step = jnp.asarray(first_step, jnp.int32)
        steps_per_epoch = _steps_per_epoch(size, batch_size)
        first_epoch = jax.lax.div(first_step, steps_per_epoch)
        # A visit that begins with the last batch of an epoch spans the most epochs.
        num_epochs = -(-max(max_steps - 1, 0) // -(-smallest // batch_size)) + 1

        def order(epoch: Array) -> Array:
            return permutations(jax.random.fold_in(fast(key), epoch), 1, size, largest)[0]

        orders = jax.vmap(order)(first_epoch + jnp.arange(num_epochs, dtype=jnp.int32))
        orders = jnp.pad(orders, ((0, 0), (0, -largest % batch_size)))

        def pick(step: Step) -> tuple[Array, Array]:
            step = first_step + jnp.asarray(step, jnp.int32)
            epoch = jax.lax.div(step, steps_per_epoch) - first_epoch
            batch = jax.lax.rem(step, steps_per_epoch)
            return _batch_of(orders, epoch, batch, batch_size, size)

        return _tabulated(pick, max_steps)

    def draw(key: Array, size: Array, max_size: int, max_steps: int) -> Pick:
        return resume(key, size, (1, max_size), jnp.array(0, jnp.int32), max_steps)

    return Batches(lambda sizes: np.where(sizes > 0, num_steps, 0), draw, resume)


@_one_object
def full_batch(num_steps: int) -> Batches:
    """``num_steps`` steps on the client's whole data set, without randomness.

    Raises:
        ValueError: a number of steps below 1.

    Example:
        >>> rows, weights = full_batch(1).draw(jax.random.key(0), jnp.array(2), 3, 1)(0)
        >>> rows.tolist(), weights.tolist()
        ([0, 1, 0], [True, True, False])
    """
    check_count(1, num_steps=num_steps)

    def draw(key: Array, size: Array, max_size: int, max_steps: int) -> Pick:
        del key, max_steps
        rows = jnp.arange(max_size, dtype=jnp.int32)
        weights = rows < size
        return lambda step: (jnp.where(weights, rows, 0), weights)

    return Batches(lambda sizes: np.where(sizes > 0, num_steps, 0), draw)


def _steps_per_epoch(size: Array, batch_size: int) -> Array:
    """Returns ``ceil(size / batch_size)``, at least 1."""
    # Like all divisions here without negative numbers: the signs that // takes care of would be
    # several kernels.
    return jax.lax.div(size - 1, jnp.int32(batch_size)) + 1


def permutations(key: Array, num: int, size: Array, max_size: int) -> Array:
    """``num`` independent random permutations of ``0 .. size - 1``.

    Every row gets a random word, and its place in the permutation is the rank of its word.  The
    row number stands in the low bits of the word, so one array of numbers is sorted, which is five
    times as fast as sorting pairs.  It breaks ties between the random high bits.  If fewer than 22
    bits are random (more than 1,024 rows), the shuffled rows are shuffled again: ties are then
    broken by the order after the first shuffle, and the random bits of both count.

    Args:
        key: decides the permutations.
        num: number of permutations.
        size: rows to permute, at most ``max_size``; may be traced.
        max_size: rows of the largest client.

    Returns:
        int ``[num, max_size]``; entries from ``size`` on are meaningless.

    Example:
        >>> rows = permutations(jax.random.key(1), 2, jnp.array(4), 6)
        >>> sorted(rows[0, :4].tolist()), sorted(rows[1, :4].tolist())
        ([0, 1, 2, 3], [0, 1, 2, 3])
    """
    row_bits = max(max_size - 1, 1).bit_length()
    if max_size <= _MOST_COUNTED_ROWS:
        # Signed numbers, since most processors compare no unsigned ones in vectors.
        words = _words(key, num, size, max_size, row_bits) ^ jnp.uint32(1 << 31)
        return _ranks(jax.lax.bitcast_convert_type(words, jnp.int32))
    num_shuffles = -(-_TIE_BREAKING_BITS // (32 - row_bits))
    order = _shuffle(key, num, size, max_size, row_bits)
    for i in range(1, num_shuffles):
        again = _shuffle(jax.random.fold_in(fast(key), i), num, size, max_size, row_bits)
        order = jnp.take_along_axis(order, again, axis=1, mode="promise_in_bounds")
    ranks = jnp.broadcast_to(jnp.arange(max_size, dtype=jnp.int32), (num, max_size))
    which = jnp.arange(num, dtype=jnp.int32)[:, None]
    return jnp.zeros_like(ranks).at[which, order].set(ranks, unique_indices=True)


def _ranks(words: Array) -> Array:
    """Ranks of distinct words within their rows, ``[num, n]``."""

    def among(some: Array) -> Array:
        return jnp.sum(words[:, :, None] < some[:, None, :], axis=1, dtype=jnp.int32)

    length = words.shape[1]
    if length <= _MOST_REDRAWN_ROWS:
        return among(words)
    half = -(-length // 2)
    # A loop has the words as its constants, so they are stored. Otherwise XLA would fuse their draw
    # into the comparisons and draw each word n times.
    first, last = jax.lax.map(
        lambda start: among(jax.lax.dynamic_slice_in_dim(words, start, half, axis=1)),
        np.array([0, length - half], np.int32),
    )
    return jnp.concatenate([first, last[:, 2 * half - length :]], axis=1)


def _shuffle(key: Array, num: int, size: Array, max_size: int, row_bits: int) -> Array:
    """Returns valid rows in random order, then padding, ``[num, max_size]``."""
    # Ties are broken by row number, which also keeps valid rows before the padding.
    words = _words(key, num, size, max_size, row_bits)
    return (jax.lax.sort(words) & jnp.uint32((1 << row_bits) - 1)).astype(jnp.int32)


def _words(key: Array, num: int, size: Array, max_size: int, row_bits: int) -> Array:
    """Distinct words with the row numbers in their low bits, uint32 ``[num, max_size]``."""
    rows = jnp.broadcast_to(jnp.arange(max_size, dtype=jnp.uint32), (num, max_size))
    bits = jax.random.bits(fast(key), (num, max_size), jnp.uint32)
    words = jnp.where(rows < jnp.asarray(size, jnp.uint32), bits, jnp.uint32(0xFFFFFFFF))
    return (words & ~jnp.uint32((1 << row_bits) - 1)) | rows


def _batch_of(
    orders: Array, epoch: Array, batch: Array, batch_size: int, size: Array
) -> tuple[Array, Array]:
    """Rows of a batch of an epoch's order ``[E, max_size + padding]``, and their weights."""
    # A slice that starts anywhere in a row becomes a serial loop over clients and steps on a TPU,
    # which took ten times as long as the training of W1. Whole rows do not.
    batches = orders.reshape(orders.shape[0], -1, batch_size)
    rows = batches.at[epoch, batch].get(mode="clip")
    weights = batch * batch_size + jnp.arange(batch_size, dtype=jnp.int32) < size
    return jnp.where(weights, rows, 0), weights


def _tabulated(pick: Pick, max_steps: int) -> Pick:
    """Returns the rule that computes all picks before the local loop."""
    # Inside the loop XLA would fuse their arithmetic into the gather of the examples and repeat it
    # for every feature.
    rows, weights = jax.vmap(pick)(jnp.arange(max(max_steps, 1), dtype=jnp.int32))

    def look_up(step: Step) -> tuple[Array, Array]:
        step = jnp.asarray(step, jnp.int32)
        return (
            jax.lax.dynamic_index_in_dim(rows, step, keepdims=False),
            jax.lax.dynamic_index_in_dim(weights, step, keepdims=False),
        )

    return look_up


def scaled_words(bits: Array, size: Array) -> Array:
    """Returns ``floor(bits * size / 2^32)``, uniform up to a share of size / 2^32."""
    # The upper word of the product from halves, since 64-bit integers may be disabled.
    size = size.astype(jnp.uint32)
    half = jnp.uint32(0xFFFF)
    high, low = bits >> 16, bits & half
    size_high, size_low = size >> 16, size & half
    middle = high * size_low + ((low * size_low) >> 16)
    carry = (low * size_high + (middle & half)) >> 16
    return (high * size_high + (middle >> 16) + carry).astype(jnp.int32)
