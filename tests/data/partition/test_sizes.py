"""Sizes from a law: exponential, log-normal and given weights; clients that never train."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedjax_sim.data import partition

seeds = st.integers(0, 2**32 - 1)


def sizes_of(assignment):
    return np.array([len(rows) for rows in assignment])


@given(
    num_clients=st.integers(1, 20),
    min_size=st.integers(0, 3),
    extra=st.integers(1, 80),
    sigma=st.sampled_from([0.0, 0.5, 3.0, 1e3]),
    seed=seeds,
)
def test_each_row_once_with_the_smallest_size(num_clients, min_size, extra, sigma, seed):
    num_examples = num_clients * min_size + extra
    for assignment in (
        partition.exponential(num_examples, num_clients, seed, min_size),
        partition.log_normal(num_examples, num_clients, sigma, seed, min_size),
    ):
        assert len(assignment) == num_clients
        assert sizes_of(assignment).min() >= min_size
        assert sorted(np.concatenate(assignment)) == list(range(num_examples))


@given(
    weights=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12),
    num_examples=st.integers(12, 500),
    seed=seeds,
)
def test_sizes_are_proportional_up_to_one_example(weights, num_examples, seed):
    sizes = sizes_of(partition.proportional(num_examples, weights, seed, min_size=0))
    exact = num_examples * np.array(weights) / np.sum(weights)
    assert sizes.sum() == num_examples
    assert (np.abs(sizes - exact) < 1).all()
    # Largest remainders: whoever was rounded up has a remainder of at least those rounded down.
    remainder = exact - np.floor(exact)
    up = sizes > exact
    if up.any() and (~up).any():
        assert remainder[up].min() >= remainder[~up].max() - 1e-9


def test_rows_are_at_random():
    rows = partition.exponential(1000, 3, seed=0)[0]
    assert abs(np.median(rows) - 500) < 150


def test_exponential_shares_are_uniform_on_the_simplex():
    # With Dir(1, 1, 1), the share of one client has the law Beta(1, 2).
    shares = [sizes_of(partition.exponential(4000, 3, seed, 0))[0] / 4000 for seed in range(300)]
    assert stats.kstest(shares, stats.beta(1, 2).cdf).pvalue > 0.01


def test_log_normal_sizes_have_normal_logarithms():
    sizes = sizes_of(partition.log_normal(500_000, 500, 0.7, seed=0, min_size=0))
    assert np.log(sizes).std() == pytest.approx(0.7, abs=0.08)  # standard error 0.022
    assert stats.kstest(stats.zscore(np.log(sizes)), stats.norm.cdf).pvalue > 0.01


@given(num_clients=st.integers(2, 40), fraction=st.floats(0.0, 1.0), seed=seeds)
def test_hold_out_divides_the_clients(num_clients, fraction, seed):
    if not 0 < round(fraction * num_clients) < num_clients:
        with pytest.raises(ValueError, match=r"fraction is .*; expected 1 \.\. "):
            partition.hold_out(num_clients, fraction, seed)
        return
    trained, held_out = partition.hold_out(num_clients, fraction, seed)
    assert len(held_out) == round(fraction * num_clients)
    assert sorted([*trained, *held_out]) == list(range(num_clients))
    assert trained.tolist() == partition.hold_out(num_clients, fraction, seed)[0].tolist()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: partition.exponential(3, 4, 0), "num_clients is 4 with at least 1 examples each"),
        (lambda: partition.exponential(3, 0, 0), "num_clients is 0"),
        (lambda: partition.log_normal(30, 4, -1.0, 0), "sigma is -1.0; expected a number"),
        (lambda: partition.log_normal(30, 4, np.inf, 0), "sigma is inf"),
        (lambda: partition.proportional(30, [1.0, -1.0], 0), "weights is .*numbers of at least 0"),
        (lambda: partition.proportional(30, [0.0, 0.0], 0), "sum 0.0; expected a positive, finite"),
        (lambda: partition.proportional(30, [1e308, 1e308], 0), "sum inf; expected a positive, f"),
        (lambda: partition.proportional(30, [[1.0]], 0), "expected M numbers"),
        (lambda: partition.proportional(3, [1, 1], 0, min_size=2), "at least 2 examples each"),
    ],
)
def test_bad_input_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()
