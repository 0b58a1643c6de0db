"""The server has the same bits, whatever the order of the slots is.

An algorithm's own update gets the mean, so other algorithms differ in the structure of uploads.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import STRUCTURES, algorithm, for_each, hyper, program, task, timeline_of, trained
from small_problems import assert_identical, compiled, logistic_params

import fedjax_sim as fs
from fedjax_sim.types import Round

pytestmark = pytest.mark.slow


def updates(name):
    """The state, the stack of uploads and the round of every update of a run."""
    record = {"update": lambda update: (update.state, update.mean, update.round._replace(key=()))}

    def run(values, task, timeline):
        setup = fs.Setup(task, timeline, logistic_params())
        ordered = fs.fixed_order(algorithm(name, values))
        probes = fs.Probes(server=record)
        return fs.run(ordered, setup, jax.random.key(2), probes=probes)[1].probes["update"]

    return compiled(run)(hyper(name), task(), timeline_of(name))


@for_each(quick=(), among=STRUCTURES)
def test_slots_in_another_order_between_empty_ones(name, x64):
    recorded = updates(name)
    update = compiled(fs.fixed_order(algorithm(name, hyper(name))).update)
    num_rounds, num_slots = recorded[1].clients.shape
    for t in range(num_rounds):
        state, stack, round = jax.tree.map(lambda leaf, t=t: leaf[t], recorded)
        round = Round(round.number, round.num_uploads, round.num_clients, jax.random.key(t))
        order = np.r_[num_slots, np.random.default_rng(t).permutation(num_slots), num_slots + 1]

        def rearranged(leaf, order=order):
            garbage = jnp.full((2, *leaf.shape[1:]), 7, leaf.dtype)
            return jnp.concatenate([leaf, garbage])[order]

        other = jax.tree.map(rearranged, stack)
        other = other._replace(arrived=other.arrived & (order < num_slots))
        assert_identical(update(state, other, round), update(state, stack, round))


def test_without_a_fixed_order_bits_differ(x64):
    """Otherwise the test above would show nothing."""
    ends = []
    for name in ("fedavg", "scaffold_II", "fedadam"):
        state = program(name, "sharded")(hyper(name), task(), timeline_of(name), jax.random.key(2))
        ends.append((state.server.params["w"], trained(name).server.params["w"]))
    assert any((np.asarray(one) != np.asarray(other)).any() for one, other in ends)
