"""Screening: uploads that are not finite count nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from small_problems import assert_close, assert_identical, compiled

import fedjax_sim as fs
from fedjax_sim.wrappers import skip_nonfinite

NUM_CLIENTS, NUM_ROUNDS = 5, 4
CENTRES = np.arange(NUM_CLIENTS, dtype=np.float64)
POISONED = 3  # its gradients are NaN from the second step on


def oracle(centres, poison, client, key, max_steps):
    del key, max_steps

    def grad(x, k):
        bad = (client == POISONED) & (k >= 1)
        return jnp.where(bad, poison, x - centres[client])

    return fs.Oracle(grad, lambda x, k: x, lambda x: grad(x, 0))


def task(poison, num_steps=3):
    steps = np.full(NUM_CLIENTS, num_steps, np.int32)
    carried = Partial(oracle, jnp.asarray(CENTRES), jnp.asarray(poison, float))
    return fs.Task(carried, np.arange(1, NUM_CLIENTS + 1), steps)


def final(algorithm, poison, mask=None, weighting=fs.uniform_weights):
    timeline = fs.timelines.full(NUM_ROUNDS, NUM_CLIENTS, 3)
    if mask is not None:
        timeline = timeline.__class__(**(vars(timeline) | {"mask": timeline.mask & mask}))

    @compiled
    def go(task, timeline):
        key = jax.random.key(0)
        start = jnp.array(10.0)
        return fs.run(algorithm, task, timeline, start, key, weighting=weighting)[0]

    return go(task(poison), timeline)


pytestmark = pytest.mark.usefixtures("x64", "allow_nans")
ALGORITHMS = {
    "fedavg": fs.fedavg(0.1),
    "scaffold": fs.scaffold(0.1),
    "feddyn": fs.feddyn(0.1, 0.2),
    "feddualavg": fs.feddualavg(0.1, fs.prox.composite(fs.prox.L1(0.1))),
}


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_poisoned_client_is_as_if_it_were_absent(name, poison):
    screening = final(skip_nonfinite(ALGORITHMS[name]), poison)
    absent = final(ALGORITHMS[name], 0.0, mask=np.arange(NUM_CLIENTS) != POISONED)
    # The mean over four of five is taken by another division.
    assert_close(screening.server.inner, absent.server, 1e-12)
    assert_close(screening.clients, absent.clients, 1e-12)
    assert_close(screening.server.left_out, NUM_ROUNDS / NUM_CLIENTS, 1e-12)


def test_without_screening_the_model_is_lost():
    assert np.isnan(final(fs.fedavg(0.1), np.nan).server.params)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_finite_runs_are_unchanged(name):
    screening, plain = final(skip_nonfinite(ALGORITHMS[name]), 0.5), final(ALGORITHMS[name], 0.5)
    assert_close(screening.server.inner, plain.server, 1e-12)
    assert float(screening.server.left_out) == 0.0


def test_weights_are_those_that_were_left_out():
    """Client i has i + 1 of 15 examples."""
    screening = final(skip_nonfinite(fs.fedavg(0.1)), np.nan, weighting=fs.weight_by_examples)
    assert_close(screening.server.left_out, NUM_ROUNDS * (POISONED + 1) / 15, 1e-12)


def test_a_round_of_nothing_but_poison_leaves_the_server_as_it_is():
    """Adam counts its steps, so that even a gradient of 0 would be seen."""
    only, adam = np.arange(NUM_CLIENTS) == POISONED, fs.fedadam(0.1, 0.1)
    state = final(skip_nonfinite(adam), np.nan, mask=only)
    start = skip_nonfinite(adam).init(jnp.array(10.0))
    assert_identical(state.server.inner, start.inner)
    assert_close(state.server.left_out, float(NUM_ROUNDS), 0.0)
