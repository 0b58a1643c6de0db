"""Asynchronous schedules in sweeps, in resumed runs, and under diagnostics."""

import dataclasses
import functools
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
from fedjax_sim.diagnostics.in_flight import advance_models, held_models, variance_probe
from fedjax_sim.diagnostics.potential import client_variance
from fedjax_sim.engine import NO_PROBES
from fedjax_sim.sweeps.trial import Trial
from fedjax_sim.timelines import (
    allocate_buffers,
    arrivals,
    contacts,
    contacts_in_flight,
    deterministic,
    exponential,
    held_versions,
    renewal_counts,
    stacked,
)

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


@functools.cache
def favano_schedule():
    return {"horizon": 70.0, "num_clients": NUM_CLIENTS, "cohort_size": 3, "max_steps": 4}


def favano_timeline(key):
    steps = renewal_counts(exponential(np.linspace(1.0, 9.0, NUM_CLIENTS)))
    return contacts(key, steps, **favano_schedule())


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


@pytest.mark.slow
def test_models_in_flight_become_what_the_clients_report(x64):
    """A client's model just before a contact, advanced from what it holds, is what it then sends;
    with alpha = 1 the server's next model is their mean."""
    schedule = favano_schedule()
    # Steps of one unit, contacts every seven: nothing happens between t - 0 and t.
    steps = renewal_counts(deterministic(np.linspace(1.0, 3.0, NUM_CLIENTS)))
    key = jax.random.key(8)
    timeline = contacts(key, steps, **schedule)
    timeline = allocate_buffers(timeline, held_versions(timeline, NUM_CLIENTS))
    flight = contacts_in_flight(key, steps, every=1, **schedule)
    task, run_key = logistic_task(fs.stream(2, 4)), jax.random.key(2)
    algorithm = fs.favano(0.2, lambda work: jnp.ones(()))
    state = fs.init(algorithm, fs.Setup(task, timeline, logistic_params()))

    @jax.jit
    def one_round(visits, state):
        return fs.advance(algorithm, fs.Setup(task, visits, None), state, run_key)[0]

    @jax.jit
    def advanced(held, counts, first):
        return advance_models(
            held, task, run_key, lr=0.2, num_steps=counts, first_step=first, max_steps=4
        )

    held_by_clients = jax.jit(lambda state, version: held_models(state, timeline, version))
    params, expected = [state.server.params], state.server.params
    for t in range(timeline.num_rounds):
        state = one_round(timeline[t : t + 1], state)
        if t:
            for name in ("w", "b"):
                np.testing.assert_allclose(
                    state.server.params[name], expected[name], rtol=DOUBLE, atol=DOUBLE
                )
        params.append(state.server.params)
        if t + 1 == timeline.num_rounds:
            break
        clients = np.asarray(timeline.clients[t + 1])
        # What they will have done by the next contact, from the schedule itself.
        counts, first = np.array(flight.num_steps[t]), np.array(flight.first_step[t])
        counts[clients] = timeline.num_steps[t + 1]
        np.testing.assert_array_equal(first[clients], timeline.first_step[t + 1])
        held = held_by_clients(state, jnp.asarray(flight.version[t]))
        for i, version in enumerate(flight.version[t]):
            assert_identical(jax.tree.map(lambda x, i=i: x[i], held), params[version])
        models = advanced(held, jnp.asarray(counts), jnp.asarray(first))
        expected = jax.tree.map(
            lambda w, each, clients=clients: (w + each[clients].sum(0)) / (len(clients) + 1),
            state.server.params,
            models,
        )


@pytest.mark.slow
def test_variance_probe_at_its_moments_only(allow_nans):
    schedule = favano_schedule()
    steps = renewal_counts(deterministic(2.0))
    key = jax.random.key(8)
    timeline = contacts(key, steps, **schedule)
    timeline = allocate_buffers(timeline, held_versions(timeline, NUM_CLIENTS))
    flight = contacts_in_flight(key, steps, every=4, **schedule)
    task = logistic_task(fs.stream(2, 4))
    algorithm = fs.favano(0.2, realised_steps(jnp.ones(NUM_CLIENTS)))

    def held(state, moment):
        return held_models(state, timeline, jnp.asarray(flight.version)[moment])

    probes = fs.Probes(run={"variance": variance_probe(held, flight)})
    _, history = fs.run(
        algorithm, fs.Setup(task, timeline, logistic_params()), jax.random.key(2), probes=probes
    )
    found = np.asarray(history.probes["variance"])
    assert np.flatnonzero(~np.isnan(found)).tolist() == (flight.round - 1).tolist() == [3, 7]

    state = fs.init(algorithm, fs.Setup(task, timeline, logistic_params()))
    state, _ = fs.advance(
        algorithm,
        fs.Setup(task, timeline[:8], None, eval_every=timeline[:8].num_rounds),
        state,
        jax.random.key(2),
    )
    expected = client_variance(state.server.params, held(state, 1))
    np.testing.assert_allclose(found[7], expected, rtol=1e-5)  # single precision, another program
    assert found[7] > 0


def test_models_in_flight_require_buffers_and_streams():
    ring = dataclasses.replace(
        favano_timeline(jax.random.key(4)), write_buffer=None, read_buffer=None
    )
    with pytest.raises(ValueError, match="timeline has no buffers; expected allocate_buffers"):
        held_models(None, ring, jnp.zeros(NUM_CLIENTS, int))  # pyright: ignore[reportArgumentType]
    counts = {name: jnp.zeros(NUM_CLIENTS, int) for name in ("num_steps", "first_step")}
    with pytest.raises(ValueError, match="task draws new minibatches in every visit"):
        advance_models(None, logistic_task(), KEYS[0], lr=0.1, max_steps=3, **counts)
