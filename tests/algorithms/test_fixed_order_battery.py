"""Runs with a fixed order of summation have the same bits under every execution."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from catalogue import STRATEGIES, algorithm, for_each, hyper, program, task, timeline_of, trained
from small_problems import assert_identical, compiled, logistic_params

import fedjax_sim as fs

pytestmark = pytest.mark.slow


@functools.cache
def final(name, strategy, reversed_slots=False):
    """The last state of a run whose means have a fixed order."""
    timeline = timeline_of(name)
    if reversed_slots:
        leaves = {
            field: getattr(timeline, field)[:, ::-1]
            for field in ("clients", "version", "num_steps", "mask")
            if np.ndim(getattr(timeline, field)) == 2
        }
        timeline = dataclasses.replace(timeline, **leaves)

    def go(values, task, timeline):
        setup = fs.Setup(task, timeline, logistic_params())
        ordered = fs.fixed_order(algorithm(name, values))
        return fs.run(ordered, setup, jax.random.key(2), execution=STRATEGIES[strategy]())[0]

    return compiled(go)(hyper(name), task(), timeline)


@pytest.mark.parametrize("strategy", ["sequential", "sharded"])
@for_each(quick=())
def test_every_algorithm_has_the_same_bits_under_every_execution(name, strategy, x64):
    """One client after the other; on two devices in chunks; slots in reverse order."""
    expected = final(name, "vmapped").server
    assert_identical(final(name, strategy, reversed_slots=True).server, expected)


def test_without_a_fixed_order_bits_differ(x64):
    """Otherwise the test above would show nothing."""
    ends = []
    for name in ("fedavg", "scaffold_II", "fedadam"):
        state = program(name, "sharded")(hyper(name), task(), timeline_of(name), jax.random.key(2))
        ends.append((state.server.params["w"], trained(name).server.params["w"]))
    assert any((np.asarray(one) != np.asarray(other)).any() for one, other in ends)
