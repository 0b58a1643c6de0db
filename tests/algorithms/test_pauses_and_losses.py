"""Rounds at rate 0, where ``(x - y) / (K lr)`` is 0 / 0, and lost uploads, which shift limits."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from instance_q import LR, final_state, models, setup
from small_problems import assert_close, compiled, quadratic_task

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

# ---- rounds at rate 0


def pause(round):
    """The rates LR, 0, LR, LR, ..."""
    return jnp.where(round == 1, 0.0, LR)


def per_step(lr):
    return fs.per_step_uploads(fs.fedavg(lr, optax.sgd(0.3)), lr)


def paths(factory):
    """The models with the pause, and with the constant rate."""
    return models(factory(pause), 4), models(factory(LR), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "factory",
    [fs.fedcm, fs.scaffold_m, fs.fedadamw, fs.fedmuon, fs.q_fedavg, per_step],
    ids=lambda factory: factory.__name__,
)
def test_round_at_rate_zero_keeps_the_model(factory):
    with_pause, constant = paths(factory)
    assert np.isfinite(with_pause).all()
    assert with_pause[1] == with_pause[0]
    np.testing.assert_allclose(with_pause[0], constant[0], rtol=1e-6)
    assert with_pause[0] < with_pause[2] < with_pause[3]


@pytest.mark.parametrize(
    "factory",
    [fs.scaffold, functools.partial(fs.scaffnew, probability=1 / 5), per_step],
    ids=["scaffold", "scaffnew", "per_step"],
)
def test_round_at_rate_zero_is_no_round(factory):
    """Controls keep their values, so that the pause has no other effect."""
    with_pause, constant = paths(factory)
    assert with_pause[1] == with_pause[0]
    np.testing.assert_allclose(with_pause[[0, 2, 3]], constant, rtol=1e-6)


@pytest.mark.parametrize("factory", [fs.scaffold, fs.fedgamma], ids=["scaffold", "fedgamma"])
def test_controls_of_a_round_at_rate_zero(factory):
    """They stay what they were, although server and clients still agree if all move alike."""
    before, after = (final_state(factory(pause), setup(rounds=rounds))[0] for rounds in (1, 2))
    assert np.abs(np.asarray(before.clients)).max() > 0.1
    np.testing.assert_array_equal(np.asarray(after.clients), np.asarray(before.clients))
    np.testing.assert_allclose(after.server.control, before.server.control, rtol=1e-6)


# ---- lost uploads


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
        (
            fs.fedgloss(0.1, mu=0.5, radius=0.0, local_radius=0.0),
            lambda server, clients: (server.dual, clients),
            1,
        ),
    ],
    ids=["scaffold II", "scaffold I", "fedgamma", "scaffold_m", "feddyn", "fedsmoo", "fedgloss"],
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
