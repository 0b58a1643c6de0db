"""pFedMe against NumPy, its figures, and the minimiser of the Moreau envelopes."""

import functools
import itertools

import instance_q
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, current_timeline, trained
from derivations import flat, gradient, start, visits
from instance_q import assert_printed
from quadratics import CENTRES, HESSIANS, NUM_CLIENTS, START, state_after
from small_problems import SIZES, assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # double precision, contractive maps


def in_numpy(lr, mu, personal_lr, server_lr, inner_steps=3):
    x = start()
    states = np.tile(x, (len(SIZES), 1))
    for cohort in visits():
        models = []
        for client, batches in cohort:
            w = theta = x
            for weights in batches:
                for _ in range(inner_steps):
                    slope = gradient()(theta, weights) + mu * (theta - w)
                    theta = theta - personal_lr * slope
                w = w - lr * mu * (w - theta)
            models.append(w)
            states[client] = theta
        x = (1 - server_lr) * x + server_lr * np.mean(models, axis=0)
    return x, states


def test_pfedme():
    state = trained("pfedme", current_timeline())
    expected = in_numpy(**ALGORITHMS["pfedme"][1])
    assert_close((flat(state.server.params), flat(state.clients)), expected, TOLERANCE)


# Inner steps of the rate 1/17 multiply the errors of both clients by +-1/17.
EXACT = {"mu": 15.0, "personal_lr": 1 / 17, "inner_steps": 12}


def test_figures_on_instance_q():
    x = instance_q.models(fs.pfedme(0.05, **EXACT), rounds=60)
    assert_printed(x[[0, -1]], "0.2435455322", "0.6953482340")


def test_one_local_step_finds_the_minimiser_of_the_moreau_envelopes():
    """F_i^mu has the curvature c_i = mu a_i / (mu + a_i); five steps per visit have another limit.

    The personal models are the proximal points of the last broadcast.
    """
    setup = instance_q.setup(rounds=120, num_steps=1)
    state, x = instance_q.final_state(fs.pfedme(0.05, server_lr=2.0, **EXACT), setup)
    assert_printed(x[-1], "0.7272727")
    np.testing.assert_allclose(x[-1], 8 / 11, rtol=1e-9)
    a, b = instance_q.A, instance_q.B
    proximal = (a * b + 15 * x[-1]) / (a + 15)
    np.testing.assert_allclose(state.clients[:, 0], proximal, rtol=1e-9)


def test_weight_decay_is_the_term_of_the_released_program():
    """theta minimises F_i(theta) + 0.5 / 2 theta^2 + 15 / 2 (theta - w)^2, once per visit."""
    decay = functools.partial(fs.transforms.add_decayed_weights, weight_decay=0.5)
    algorithm = fs.transforms.transform_oracle(fs.pfedme(0.05, **EXACT), decay)
    state, x = instance_q.final_state(algorithm, instance_q.setup(rounds=2, num_steps=1))
    theta, expected = np.zeros(2), 0.0
    for _ in range(2):
        theta = (instance_q.A * instance_q.B + 15 * expected) / (instance_q.A + 15.5)
        expected = expected - 0.05 * 15 * np.mean(expected - theta)
    np.testing.assert_allclose(x[-1], expected, rtol=1e-12)
    np.testing.assert_allclose(state.clients[:, 0], theta, rtol=1e-12)


@pytest.mark.slow
def test_all_clients_train_and_some_are_averaged():
    """The mean over exactly two of six clients, other ones in other rounds; all keep theta."""
    mu, p, lr = 2.0, 0.1, 0.3
    some = fs.pfedme(lr, mu, p, 1, num_averaged=2)

    def local_models(x):
        theta = x - p * np.einsum("mij,mj->mi", HESSIANS, x - CENTRES)
        return x - lr * mu * (x - theta), theta

    x, drawn = START, []
    for rounds in (1, 2, 3):
        state = state_after(some, rounds, NUM_CLIENTS, 1)
        models, theta = local_models(x)
        pairs = itertools.combinations(range(NUM_CLIENTS), 2)
        hits = [p for p in pairs if np.allclose(state.server.params, models[[*p]].mean(0))]
        assert len(hits) == 1
        assert_close(state.clients, theta, TOLERANCE)
        drawn, x = [*drawn, hits[0]], np.asarray(state.server.params)
    assert len(set(drawn)) > 1


@pytest.mark.slow
def test_without_a_server_step_the_model_is_constant():
    """And averaging all clients is the rule without a number."""
    fixed = state_after(fs.pfedme(0.05, server_lr=0.0), 2, NUM_CLIENTS, 2)
    np.testing.assert_array_equal(fixed.server.params, START)
    everyone = fs.pfedme(0.05, num_averaged=NUM_CLIENTS)
    states = [state_after(a, 2, NUM_CLIENTS, 2) for a in (everyone, fs.pfedme(0.05))]
    assert_close(states[0].server, states[1].server, TOLERANCE)


def test_personal_model_is_that_of_the_last_visit():
    algorithm = fs.pfedme(0.1)
    state = algorithm.init_client(jnp.array(3.0))
    assert float(algorithm.personal(None, state, None, None)) == 3.0


def test_refuses_numbers_out_of_range():
    with pytest.raises(ValueError, match="inner_steps is 0; expected at least 1"):
        fs.pfedme(0.1, inner_steps=0)
    with pytest.raises(ValueError, match="num_averaged is 3; expected at most 2, the clients"):
        fs.init(fs.pfedme(0.1, num_averaged=3), instance_q.setup())
