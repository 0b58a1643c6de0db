"""Repeated rounds, and numbers of steps that all clients of a round share."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_sim as fs


def test_timelines_are_not_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        fs.timelines.full(2, 3, 1).max_steps = 5  # pyright: ignore


def test_repeated_rounds():
    steps = np.array([3, 1, 4, 1, 5])
    timeline = fs.timelines.uniform(jax.random.key(0), 3, 5, 2, steps)
    timeline = fs.timelines.dropout(jax.random.key(1), timeline, 0.3)
    repeated = fs.timelines.repeat_rounds(timeline, 3)
    for name in ("clients", "num_steps", "mask"):
        rows = getattr(repeated, name).reshape(3, 3, 2)
        np.testing.assert_array_equal(rows, np.repeat(getattr(timeline, name)[:, None], 3, 1))
    np.testing.assert_array_equal(repeated.version, np.arange(9)[:, None].repeat(2, 1))
    np.testing.assert_allclose(repeated.time, np.arange(1, 10) / 3)
    np.testing.assert_allclose(repeated.time[2::3], timeline.time)
    assert repeated.max_steps == timeline.max_steps


def test_geometric_steps():
    """Equal in a round, with the mean 1 / p; the first rounds do not depend on their number."""
    rounds = fs.timelines.full(2000, 3, 1)
    timeline = fs.timelines.geometric_steps(jax.random.key(0), rounds, 0.2, max_steps=60)
    steps = np.asarray(timeline.num_steps)
    np.testing.assert_array_equal(steps, steps[:, :1].repeat(3, 1))
    assert steps.min() == 1
    # The standard deviation of one draw is sqrt(1 - p) / p = 4.5, of the mean 0.1.
    assert abs(steps[:, 0].mean() - 5) < 0.4
    assert abs((steps[:, 0] == 1).mean() - 0.2) < 0.04
    few = fs.timelines.geometric_steps(jax.random.key(0), rounds[:10], 0.2, max_steps=60)
    np.testing.assert_array_equal(few.num_steps, steps[:10])
    cut = fs.timelines.geometric_steps(jax.random.key(0), rounds, 0.2, max_steps=7)
    np.testing.assert_array_equal(cut.num_steps, np.minimum(steps, 7))
    assert cut.max_steps == 7
    always = fs.timelines.geometric_steps(jax.random.key(0), rounds[:10], 1.0, max_steps=7)
    assert (np.asarray(always.num_steps) == 1).all()


def test_precision_does_not_change_geometric_steps():
    rounds = fs.timelines.full(50, 1, 1)
    single = fs.timelines.geometric_steps(jax.random.key(0), rounds, 0.1, max_steps=100)
    with jax.enable_x64(True):
        double = fs.timelines.geometric_steps(jax.random.key(0), rounds, 0.1, max_steps=100)
    np.testing.assert_array_equal(double.num_steps, single.num_steps)


def test_refuses_what_is_out_of_range():
    rounds = fs.timelines.full(4, 2, 1)
    late = dataclasses.replace(rounds, max_staleness=2)
    again = dataclasses.replace(rounds, first_step=jnp.zeros((4, 2), jnp.int32))
    key = jax.random.key(0)
    for timeline in (late, again):
        with pytest.raises(ValueError, match="expected synchronous rounds"):
            fs.timelines.repeat_rounds(timeline, 2)
        with pytest.raises(ValueError, match="expected synchronous rounds"):
            fs.timelines.geometric_steps(key, timeline, 0.5, 4)
    with pytest.raises(ValueError, match="times is 0; expected"):
        fs.timelines.repeat_rounds(rounds, 0)
    for probability in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"probability is {probability}; expected a number in"):
            fs.timelines.geometric_steps(key, rounds, probability, 4)
    with pytest.raises(ValueError, match="max_steps is 0; expected"):
        fs.timelines.geometric_steps(key, rounds, 0.5, 0)
