"""QuAFL: quantization, one visit, and the mean model without steps."""

import jax.numpy as jnp
import numpy as np
import pytest
from async_problems import CENTRES, DIM, HESSIANS, KEY, START, K, N, contacts, path, task, visit
from small_problems import assert_close, assert_identical, compiled

import fedjax_sim as fs
from fedjax_sim.algorithms import quafl
from fedjax_sim.compression import lattice
from fedjax_sim.diagnostics.potential import mean_model, potential

pytestmark = pytest.mark.usefixtures("x64")


# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


def test_quafl_of_a_fine_lattice_is_quafl():
    """Twelve contacts of errors up to half a cell each way, in models of size 1 to 3."""
    cell = 1e-6
    through = lattice(24, cell).through  # radius 8
    quantised = path(quafl(0.2, through, through), contacts("current"))
    exact = path(quafl(0.2), contacts("current"))
    assert 0 < np.abs(quantised - exact).max() < 12 * cell


def test_quafl_without_steps_keeps_the_mean_model():
    """From models of their own, and comes together: the potential falls on the average."""
    timeline = contacts("current", rounds=40)
    own = np.random.default_rng(0).normal(size=(N, DIM))

    @compiled
    def advance(task, timeline):
        state = fs.init(quafl(0.0), fs.Setup(task, timeline, jnp.asarray(START)))
        state = state._replace(clients=jnp.asarray(own))
        return fs.advance(
            quafl(0.0), fs.Setup(task, timeline, None, eval_every=timeline.num_rounds), state, KEY
        )[0]

    state = advance(task(), timeline)
    before = mean_model(jnp.asarray(START), jnp.asarray(own))
    assert_close(mean_model(state.server.params, state.clients), before, TOLERANCE)
    phi = potential(state.server.params, state.clients)
    assert phi < 0.05 * potential(jnp.asarray(START), jnp.asarray(own))


@pytest.mark.parametrize("steps", range(K + 1))
def test_masked_steps_are_an_early_stop(steps):
    x = START
    for _ in range(steps):
        x = x - 0.2 * HESSIANS[1] @ (x - CENTRES[1])
    message = (jnp.asarray(START), jnp.array(2.0))
    sent, mixed = visit(quafl(0.2), message, jnp.asarray(START), steps)
    assert_close(sent, x, TOLERANCE)
    assert_close(mixed, (START + 2 * x) / 3, TOLERANCE)
    if steps == 0:
        assert_identical(sent, START)
