"""Asynchronous schedules in sweeps and in resumed runs."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from call_records import records
from small_problems import NUM_CLIENTS, assert_identical, logistic_params, logistic_task
from sweep_problems import KEYS, ONE_DEVICE, assert_equals_single_runs, starts, sweep_of

import fedjax_sim as fs
from fedjax_sim.algorithms.staleness import polynomial, realised_steps
from fedjax_sim.engine import NO_PROBES
from fedjax_sim.runs.sweeps.trial import Trial
from fedjax_sim.timelines import arrivals, contacts, exponential, renewal_counts, stacked

# Batching changes the order of sums only: some hundred operations of 1e-16 each.
DOUBLE = 1e-12


def buffered(num_seeds):
    """A schedule for every seed, of different lengths."""
    speeds = exponential(np.linspace(1.0, 9.0, NUM_CLIENTS))
    return stacked(
        [
            arrivals(key, speeds, horizon=30.0, num_clients=NUM_CLIENTS, num_steps=2, buffer=3)
            for key in jax.random.split(jax.random.key(3), num_seeds)
        ]
    )


@pytest.mark.slow
def test_sweep_over_schedules_of_different_lengths(x64):
    timeline = buffered(2)
    assert not np.asarray(timeline.mask).all()
    assert timeline.num_buffers > 1
    setup = fs.Setup(
        logistic_task(fs.stream(2, 2)),
        timeline,
        starts(2),
        eval_fn=lambda params: {"w": params["w"].sum()},
        eval_every=3,
    )
    grid = {"server_lr": [0.1, 0.5, 1.0], "power": [0.0, 0.5]}

    def factory(server_lr, power):
        return fs.fedbuff(0.2, server_lr, polynomial(power))

    trial = Trial(factory, setup, None, NO_PROBES)
    result = sweep_of(trial, grid, KEYS[:2], devices=ONE_DEVICE)
    assert_equals_single_runs(result, trial, DOUBLE)


def favano_timeline(key):
    steps = renewal_counts(exponential(np.linspace(1.0, 9.0, NUM_CLIENTS)))
    return contacts(key, steps, horizon=70.0, num_clients=NUM_CLIENTS, cohort_size=3, max_steps=4)


@pytest.mark.slow
def test_interrupted_run_continues_with_the_same_bits(tmp_path):
    """The broadcasts that clients still hold are part of a checkpoint."""
    timeline = favano_timeline(jax.random.key(4))
    assert timeline.max_staleness > 2
    task = logistic_task(fs.stream(2, 4))
    setup = fs.Setup(
        task,
        timeline,
        logistic_params(),
        eval_fn=lambda params: {"w": params["w"].sum()},
        eval_every=2,
    )
    arguments = fs.favano(0.2, realised_steps(jnp.full(NUM_CLIENTS, 0.9))), setup, jax.random.key(1)
    whole = fs.simulate(*arguments)

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.round >= 4:
            raise Stop

    options = {"folder": tmp_path, "segment_seconds": 1e-9, "checkpoint_seconds": 0.0}
    with pytest.raises(Stop):
        fs.simulate(
            *arguments, **records(more_callbacks=[types.SimpleNamespace(progress=stop)], **options)
        )
    resumed = fs.simulate(*arguments, **records(**options))
    assert resumed.rounds_done == timeline.num_rounds
    assert resumed.local_steps < whole.local_steps
    assert_identical(resumed.state, whole.state)
