"""Forks of runs with late uploads and with clients divided over devices."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import (
    NUM_CLIENTS,
    assert_close,
    logistic_data,
    logistic_losses,
    logistic_params,
    rotated,
    stale_timeline,
)

import fedjax_sim as fs
from fedjax_sim.engine.execution import placement
from fedjax_sim.timelines import remove_clients, sampling

AT, STRATA = 2, 4
KEYS = jax.random.split(jax.random.key(0), 2)


def setup_of(timeline, where=None):
    task = fs.empirical_task(logistic_losses, logistic_data(), rotated(2), placement=where)
    params = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), logistic_params())
    return fs.Setup(task, timeline, params, lambda x: {"b": x["b"]})


def forked(algorithm, setup):
    first = dataclasses.replace(setup, timeline=setup.timeline[:AT])
    alternatives = {
        "same": algorithm,
        "without 1": fs.Alternative(algorithm, lambda rest: remove_clients(rest, 1)),
    }
    return fs.fork(fs.simulate(algorithm, first, KEYS), alternatives, setup, KEYS)


@pytest.mark.slow
def test_late_uploads():
    """The broadcasts before the fork are in its state, so late clients continue from theirs."""
    setup, algorithm = setup_of(stale_timeline()), fs.fedbuff(0.2, 0.5)
    whole = fs.simulate(algorithm, setup, KEYS)
    result = forked(algorithm, setup)
    jax.tree.map(np.testing.assert_array_equal, result.states["same"], whole.state)
    values = result.differences("b").query("alternative == 'without 1'")["mean"].to_numpy()
    assert values[0] == 0 != values[-1]


@pytest.mark.slow
def test_clients_divided_over_devices():
    mesh = placement.make_mesh(jax.devices()[:STRATA])
    where = placement.by_client(NUM_CLIENTS, mesh, num_strata=STRATA)
    steps = setup_of(stale_timeline()).task.num_steps
    timeline = sampling.stratified(
        jax.random.key(3), 4, NUM_CLIENTS, STRATA, steps, num_strata=STRATA
    )
    algorithm = fs.scaffold(0.1)
    divided, alone = (forked(algorithm, setup_of(timeline, place)) for place in (where, None))
    for name in alone.states:
        assert_close(divided.states[name].server, alone.states[name].server, 2e-6)
