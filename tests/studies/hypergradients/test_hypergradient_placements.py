"""Hypergradients of runs with late uploads and with clients divided over devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import (
    NUM_CLIENTS,
    logistic_data,
    logistic_losses,
    logistic_params,
    rotated,
    stale_timeline,
)

import fedjax_sim as fs
from fedjax_sim.engine.execution import placement
from fedjax_sim.timelines import sampling

KEY = jax.random.key(0)
STRATA, BATCHES = 4, 2  # a stratum per device


def norm(params):
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def setup_of(timeline, where=None):
    task = fs.empirical_task(logistic_losses, logistic_data(), rotated(BATCHES), placement=where)
    return fs.Setup(task, timeline, logistic_params(), lambda x: {"norm": norm(x)})


def central_difference(function, at, width=1e-5):
    return (function(at + width) - function(at - width)) / (2 * width)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_late_uploads(mode):
    """Clients start from earlier broadcasts, which depend on the hyper-parameters, too."""
    setup = setup_of(stale_timeline())

    def algorithm_of(rates):
        return fs.fedbuff(rates[0], rates[1])

    def final(rates):
        state, _ = fs.run(algorithm_of(rates), setup, KEY)
        return norm(state.server.params)

    rates = jnp.array([0.1, 0.7])
    found = fs.hypergradient(norm, algorithm_of, setup, KEY, mode=mode)(rates)
    program = jax.jit(final)
    wanted = [
        central_difference(lambda x, i=i: program(rates.at[i].set(x)), rates[i]) for i in range(2)
    ]
    # Second differences of width 1e-5 in double precision.
    np.testing.assert_allclose(found.gradient, wanted, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mode", ["reverse", "forward"])
def test_clients_divided_over_devices(mode):
    """The derivative is that of the run on one device, to the rounding of sums."""
    mesh = placement.make_mesh(jax.devices()[:STRATA])
    where = placement.by_client(NUM_CLIENTS, mesh, num_strata=STRATA)
    steps = setup_of(stale_timeline()).task.num_steps
    timeline = sampling.stratified(
        jax.random.key(3), 4, NUM_CLIENTS, STRATA, steps, num_strata=STRATA
    )

    def gradient(setup):
        return fs.hypergradient(norm, lambda lr: fs.scaffold(lr), setup, KEY, mode=mode)(
            jnp.array(0.1)
        ).gradient

    divided, whole = gradient(setup_of(timeline, where)), gradient(setup_of(timeline))
    np.testing.assert_allclose(divided, whole, rtol=1e-12)
