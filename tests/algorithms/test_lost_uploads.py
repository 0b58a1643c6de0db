"""Limits of algorithms whose clients and server keep states that lost uploads separate."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import assert_close, compiled, quadratic_task

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

CENTRES = np.array([[0.0], [4.0], [8.0], [2.0]])
OPTIMUM = 3.5


@pytest.mark.parametrize(
    ("algorithm", "state_of", "sign"),
    [
        (fs.scaffold(0.1), lambda server, clients: (server.control, clients), 1),
        (fs.scaffold(0.1, option="I"), lambda server, clients: (server.control, clients), 1),
        (fs.fedgamma(0.1, radius=0.0), lambda server, clients: (server.control, clients), 1),
        (fs.scaffold_m(0.1, mix=0.5), lambda server, clients: (server.control, clients), 1),
        (fs.feddyn(0.1, mu=0.5), lambda server, clients: (server.dual, clients), 1),
        # Its duals are those of FedDyn divided by -mu.
        (
            fs.fedsmoo(0.1, mu=0.5, radius=0.0),
            lambda server, clients: (server.dual, clients.dual),
            -0.5,
        ),
    ],
    ids=["scaffold II", "scaffold I", "fedgamma", "scaffold_m", "feddyn", "fedsmoo"],
)
def test_lost_uploads_shift_the_limit(algorithm, state_of, sign):
    """The mean gradient at the limit is the mean of the clients' states minus the server's."""
    task = quadratic_task(np.ones((4, 1, 1)), CENTRES, 3)
    timeline = fs.timelines.full(600, 4, 3)
    lost = np.zeros((600, 4), bool)
    lost[[0, 1, 2], [2, 2, 1]] = True

    @compiled
    def final(lost):
        visits = dataclasses.replace(timeline, lost=lost)
        setup = fs.Setup(task, visits, jnp.zeros(1))
        return fs.run(algorithm, setup, jax.random.key(0))[0]

    assert_close(final(np.zeros_like(lost)).server.params, OPTIMUM, 1e-9)
    state = final(lost)
    of_server, of_clients = state_of(state.server, state.clients)
    gradient = state.server.params - OPTIMUM
    assert np.abs(gradient) > 0.1
    np.testing.assert_allclose(gradient, sign * (of_clients.mean(0) - of_server), rtol=1e-8)
