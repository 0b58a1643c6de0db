"""Schedules whose second round has the rate 0, where ``(x - y) / (K lr)`` is 0 / 0."""

import functools

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from instance_q import LR, final_state, models, setup

import fedjax_sim as fs


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
