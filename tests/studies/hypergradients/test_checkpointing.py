"""Divisions of rounds into segments, and the number of states that they store."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import compiled

from fedjax_sim.studies.hypergradients.checkpointing import (
    divide,
    num_levels,
    scan_rounds,
    stored_states,
)


@pytest.mark.parametrize("levels", [2, 3, 5])
def test_segments_cover_all_rounds(levels):
    for rounds in range(4, 200):
        segments = divide(rounds, levels)
        assert segments.number * segments.length + segments.rest == rounds
        assert 1 <= segments.length < rounds
        assert segments.rest < max(segments.number, 2)


def test_stored_states_grow_as_a_root_and_as_a_logarithm():
    """L T^(1/L) up to the factor of two of the divisors, and some for the rounds left over."""
    rounds = np.array([10, 100, 997, 1000, 4096, 10_000])
    for levels in (2, 3):
        stored = np.array([stored_states(int(t), levels) for t in rounds])
        assert (stored <= 2.5 * levels * rounds ** (1 / levels)).all()
    stored = [stored_states(int(t), num_levels("log", int(t))) for t in rounds]
    assert (np.array(stored) <= 2.5 * np.log2(rounds)).all()
    assert [stored_states(50, levels) for levels in (0, 1)] == [50, 50]


@pytest.mark.parametrize("checkpoint", [0, -1, True, 2.0, "linear"])
def test_refuses_other_policies(checkpoint):
    with pytest.raises(ValueError, match=r"checkpoint is .*; expected 'sqrt', 'log', a number"):
        num_levels(checkpoint, 10)


def test_numbers_of_levels_may_be_those_of_numpy():
    assert num_levels(np.int64(3), 10) == 3


def test_every_division_gives_the_same_state_and_derivative():
    """11 rounds leave some over at every level; by hand: x^11 + sum over t of t x^(10 - t)."""
    rounds, x = np.arange(11), 0.5

    def total(x, levels):
        return scan_rounds(lambda s, t: s * x + t, jnp.ones(()), jnp.arange(11.0), levels)

    @compiled
    def all_levels(x):
        return [jax.value_and_grad(total)(x, levels) for levels in (0, 1, 2, 3)]

    value = x**11 + (rounds * x ** (10.0 - rounds)).sum()
    slope = 11 * x**10 + (rounds * (10 - rounds) * x ** (9.0 - rounds)).sum()
    np.testing.assert_allclose(all_levels(x), [(value, slope)] * 4, rtol=1e-6)
