"""Models in the middle of asynchronous runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import NUM_CLIENTS, assert_identical, logistic_params, logistic_task, no_data

import fedjax_sim as fs
from experiments.favano.in_flight import advance_models, held_models, variance_probe
from fedjax_sim.algorithms.staleness import realised_steps
from fedjax_sim.diagnostics.potential import client_variance
from fedjax_sim.timelines import (
    allocate_buffers,
    contacts,
    contacts_in_flight,
    deterministic,
    held_versions,
    renewal_counts,
)

# Batching changes the order of sums only: some hundred operations of 1e-16 each.
DOUBLE = 1e-12
SCHEDULE = {"horizon": 70.0, "num_clients": NUM_CLIENTS, "cohort_size": 3, "max_steps": 4}


@pytest.mark.slow
def test_models_in_flight_become_what_the_clients_report(x64):
    """A client's model just before a contact, advanced from what it holds, is what it then sends;
    with alpha = 1 the server's next model is their mean."""
    # Steps of one unit, contacts every seven: nothing happens between t - 0 and t.
    steps = renewal_counts(deterministic(np.linspace(1.0, 3.0, NUM_CLIENTS)))
    key = jax.random.key(8)
    timeline = contacts(key, steps, **SCHEDULE)
    timeline = allocate_buffers(timeline, held_versions(timeline, NUM_CLIENTS))
    flight = contacts_in_flight(key, steps, every=1, **SCHEDULE)
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
    steps = renewal_counts(deterministic(2.0))
    key = jax.random.key(8)
    timeline = contacts(key, steps, **SCHEDULE)
    timeline = allocate_buffers(timeline, held_versions(timeline, NUM_CLIENTS))
    flight = contacts_in_flight(key, steps, every=4, **SCHEDULE)
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
        contacts(jax.random.key(4), renewal_counts(deterministic(2.0)), **SCHEDULE),
        write_buffer=None,
        read_buffer=None,
    )
    with pytest.raises(ValueError, match="timeline has no buffers; expected allocate_buffers"):
        held_models(None, ring, jnp.zeros(NUM_CLIENTS, int))  # pyright: ignore[reportArgumentType]
    counts = {name: jnp.zeros(NUM_CLIENTS, int) for name in ("num_steps", "first_step")}
    with pytest.raises(ValueError, match="task draws new minibatches in every visit"):
        advance_models(None, logistic_task(), jax.random.key(0), lr=0.1, max_steps=3, **counts)


@pytest.mark.parametrize("generator", ["rbg", "unsafe_rbg"])
def test_generators_whose_draws_depend_on_the_cohort_are_refused(generator):
    ones = jnp.ones(NUM_CLIENTS, jnp.int32)
    with pytest.raises(ValueError, match=f"of the generator {generator}, whose draws under"):
        advance_models(
            jnp.zeros((NUM_CLIENTS, 1)), no_data(), jax.random.key(0, impl=generator),
            lr=0.1, num_steps=ones, first_step=ones, max_steps=1,
        )  # fmt: skip
