"""Ditto against NumPy, the figures and identities of its rule, and what its weight is for."""

import functools

import instance_q
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, current_timeline, trained
from derivations import flat, gradient, start, visits
from instance_q import assert_printed
from quadratics import CENTRES, HESSIANS, NUM_CLIENTS, START, state_after
from small_problems import SIZES, assert_close, compiled, quadratic_task

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # double precision, contractive maps


def in_numpy(lr, mu, personal_lr):
    x = start()
    v = np.tile(x, (len(SIZES), 1))
    for cohort in visits():
        models = []
        for client, batches in cohort:
            y = x
            for weights in batches:
                y = y - lr * gradient()(y, weights)
                pulled = gradient()(v[client], weights) + mu * (v[client] - x)
                v[client] = v[client] - personal_lr * pulled
            models.append(y)
        x = np.mean(models, axis=0)
    return x, v


def test_ditto():
    state = trained("ditto", current_timeline())
    expected = in_numpy(**ALGORITHMS["ditto"][1])
    assert_close((flat(state.server.params), flat(state.clients)), expected, TOLERANCE)
    assert_close(state.server.params, trained("fedavg").server.params, TOLERANCE)


@pytest.mark.slow
def test_figures_on_instance_q():
    algorithm = fs.ditto(0.1)
    state, _ = instance_q.final_state(algorithm, instance_q.setup(rounds=2))
    assert_printed(state.clients, "0.1398308", "0.8413699")
    state, x = instance_q.final_state(algorithm, instance_q.setup(rounds=100))
    assert_printed(state.clients, "0.3350665356", "0.9175332678")
    fixed = (instance_q.A * instance_q.B + instance_q.FEDAVG) / (instance_q.A + 1)
    np.testing.assert_allclose(state.clients[:, 0], fixed, rtol=0, atol=1e-10)
    assert_printed(x[-1], str(instance_q.FEDAVG))


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (fs.ditto(1.0, mu=0.0, personal_steps=7), [3, 2, 2]),
        (fs.perfedavg(1.0, adapt_steps=7), [3, 2, 2]),
    ],
    ids=["ditto", "perfedavg"],
)
def test_more_personal_steps_take_the_minibatches_again(algorithm, expected):
    """Three minibatches, of a client that could have four; gradient k is -1 in entry k."""
    loss = lambda x, *k: jnp.array(0.0)  # noqa: E731
    oracle = fs.Oracle(lambda x, k: -jax.nn.one_hot(k, 3), loss, lambda x: x)
    one = jnp.array(1)
    work = fs.Work(one, one, 3 * one, one, one, jax.random.key(0), max_steps=4)
    zero = jnp.zeros(3)
    if algorithm.personal is not None:
        found = algorithm.personal(zero, (), oracle, work)
    if jax.tree.leaves(algorithm.init_client(zero)):
        _, found = algorithm.local(zero, zero, oracle, work)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_without_its_term_a_client_trains_alone():
    """And with a huge one, solved exactly, its model is the one that it received."""
    state = state_after(fs.ditto(0.1, mu=0.0), 2, NUM_CLIENTS, 5)
    for hessian, centre, v in zip(HESSIANS, CENTRES, state.clients, strict=True):
        contraction = np.linalg.matrix_power(np.eye(len(START)) - 0.1 * hessian, 10)
        np.testing.assert_allclose(v, centre + contraction @ (START - centre), rtol=0, atol=1e-12)
    state = state_after(fs.ditto(0.1, mu=1e8, personal_lr=1e-8), 3, NUM_CLIENTS, 5)
    received = state_after(fs.fedavg(0.1), 2, NUM_CLIENTS, 5).server.params
    np.testing.assert_allclose(state.clients - received, 0, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_weights_and_steps_of_the_personal_models():
    """One weight per client; two steps v <- v - 0.1 (a (v - b) + mu v), since x = 0."""
    mu = np.array([0.5, 2.0])
    algorithm = fs.ditto(0.1, mu=jnp.asarray(mu), personal_steps=2)
    state, x = instance_q.final_state(algorithm, instance_q.setup(rounds=1))
    a, b = instance_q.A, instance_q.B
    v = np.zeros(2)
    for _ in range(2):
        v = v - 0.1 * (a * (v - b) + mu * v)
    np.testing.assert_allclose(state.clients[:, 0], v, rtol=1e-14)
    assert_printed(x, "0.415965")
    three = instance_q.setup(clients=(np.ones(3), np.zeros(3)))
    with pytest.raises(ValueError, match=r"mu has the shape \(2,\); expected \(3,\)"):
        fs.init(algorithm, three)


def test_personal_model_is_the_clients_own():
    algorithm = fs.ditto(0.1)
    state = algorithm.init_client(jnp.array(3.0))
    assert float(algorithm.personal(jnp.array(1.0), state, None, None)) == 3.0


def test_a_weight_between_local_and_global_estimates_best():
    """Estimation of clients' means: Ditto's claim is accuracy at mu = noise / heterogeneity.

    theta_i ~ N(0, I), b_i = theta_i + N(0, I): the error of alone and of common estimates is 1 per
    coordinate, that of (b_i + x) / 2 is 1/2 (up to 1 / M).  1,000 coordinates: to about 5 %.
    """
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(20, 50))
    centres = truth + rng.normal(size=truth.shape)
    task = quadratic_task(np.tile(np.eye(50), (20, 1, 1)), centres, 5)
    setup = fs.Setup(task, fs.timelines.full(4, 20, 5), jnp.zeros(50))

    @compiled
    @functools.partial(jax.vmap, in_axes=(0, None))
    def errors(mu, setup):
        algorithm = fs.ditto(0.5, mu, personal_lr=1 / (1 + mu))  # steps to the minimiser
        return jnp.square(fs.run(algorithm, setup, jax.random.key(0))[0].clients - truth).mean()

    alone, between, common = errors(jnp.array([0.0, 1.0, 1e6]), setup)
    np.testing.assert_allclose([alone, common], 1, rtol=0.1)
    np.testing.assert_allclose(between, 0.5, rtol=0.1)


def test_refuses_no_steps():
    with pytest.raises(ValueError, match="personal_steps is 0; expected at least 1"):
        fs.ditto(0.1, personal_steps=0)
