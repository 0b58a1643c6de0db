"""Sums in the order of a tree over client numbers, whatever the slots, chunks and devices are."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_problems import compiled, logistic_params, logistic_task, partial_timeline, rotated

import fedjax_sim as fs
from fedjax_sim.wrappers.fixed_order import pairwise_sum

POPULATION = 64
total = compiled(pairwise_sum)


def halves(begin: int, end: int, values: dict[int, np.float32]) -> np.float32 | None:
    """The sum over client numbers ``begin`` to ``end``, by halving the interval; None: nobody."""
    present = [number for number in values if begin <= number < end]
    if len(present) < 2:
        return values[present[0]] if present else None
    middle = (begin + end) // 2
    left, right = halves(begin, middle, values), halves(middle, end, values)
    if left is None or right is None:
        return right if left is None else left
    return left + right


@given(st.permutations(range(POPULATION)), st.integers(0, 2**32 - 1))
def test_sums_halve_the_interval_of_numbers(order, seed):
    numbers = np.array(order[:9], np.int32)
    values = np.random.default_rng(seed).normal(size=9).astype(np.float32)
    expected = halves(0, POPULATION, dict(zip(numbers.tolist(), values, strict=True)))
    np.testing.assert_array_equal(total(values, numbers), expected)


@pytest.mark.slow
def test_the_mean_is_that_of_the_algorithm_with_weights(x64):
    """A single upload, too: there is nothing to add."""
    plain, ordered = (
        compiled(functools.partial(fs.run, algorithm))
        for algorithm in (fs.fedavg(0.2), fs.fixed_order(fs.fedavg(0.2)))
    )
    timeline, task = partial_timeline(), logistic_task(rotated(2))
    for most in (1, 4):
        mask = timeline.mask & (np.cumsum(timeline.mask, axis=1) <= most)
        some = dataclasses.replace(timeline, mask=mask)
        setup = fs.Setup(task, some, logistic_params(), weighting=fs.weight_by_examples)
        expected, state = (run(setup, jax.random.key(2))[0] for run in (plain, ordered))
        for name, leaf in expected.server.params.items():
            # The order of sums of at most four numbers, over four rounds in double precision.
            np.testing.assert_allclose(state.server.params[name], leaf, rtol=1e-13)


def test_refuses_an_aggregation():
    with pytest.raises(ValueError, match="algorithm has an aggregation already; expected one"):
        fs.fixed_order(fs.robust.aggregate(fs.fedavg(0.1), fs.robust.median()))
    with pytest.raises(ValueError, match="another aggregation than the mean; expected it around"):
        fs.skip_nonfinite(fs.fixed_order(fs.fedavg(0.1)))


@pytest.mark.slow
def test_forecast_has_the_memory_of_all_uploads():
    setup = fs.Setup(logistic_task(rotated(2)), partial_timeline(), logistic_params())
    parts = fs.forecast(fs.fixed_order(fs.fedavg(0.1)), setup, jax.random.key(0)).parts
    assert parts["uploads"] == 4 * 4 * 4  # slots, entries of the model, bytes
