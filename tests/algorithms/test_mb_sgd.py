"""Minibatch SGD and its accelerated form against NumPy, their coincidences, and AGD."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import current_timeline, task, trained
from network import final, flat, gradient, rounds, start
from quadratics import CENTRES, HESSIANS, same_clients, state_after
from small_problems import assert_close, compiled, logistic_data, logistic_losses, logistic_params

import fedjax_sim as fs
from fedjax_sim import tree
from fedjax_sim.local import exponential_decay

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


LR, MU = 0.05, 0.3
ONE = (HESSIANS[:1], CENTRES[:1])


def mean_gradient(x, visits):
    """Over all (client, step) pairs of the round."""
    return np.mean([gradient(x, w) for _, batches in visits for w in batches], axis=0)


@pytest.mark.parametrize(
    "factory", [fs.mb_sgd, fs.async_sgd, lambda lr: fs.afl(lr, 1, average=False)],
    ids=["mb_sgd", "async_sgd", "afl"],
)  # fmt: skip
def test_schedules_give_the_rate_of_each_round(factory):
    """One client with one step per round: gradient descent, whose rate halves in every round."""

    def after(lr, rounds):
        return state_after(factory(lr), rounds, 1, 1, clients=ONE).server.params

    x = after(exponential_decay(0.2, 0.5), 2)
    first = after(0.2, 1)
    assert_close(x, first - 0.1 * HESSIANS[0] @ (first - CENTRES[0]), TOLERANCE)


def test_mb_sgd():
    x = start()
    for visits in rounds():
        x = x - LR * mean_gradient(x, visits)
    assert_close(flat(final(fs.mb_sgd(LR)).server.params), x, TOLERANCE)


def test_mb_ac_sgd():
    gamma = np.sqrt(LR / MU)
    alpha = 1 / (gamma * MU)
    beta = alpha + 1
    x = ag = start()
    for visits in rounds():
        middle = x / beta + (1 - 1 / beta) * ag
        g = mean_gradient(middle, visits)
        ag, x = middle - LR * g, (1 - 1 / alpha) * x + middle / alpha - gamma * g
    state = final(fs.mb_ac_sgd(LR, MU)).server
    assert_close((flat(state.params), flat(state.main)), (ag, x), TOLERANCE)


@pytest.mark.slow
def test_one_local_step_is_fedavg():
    """With minibatches, not full gradients."""
    once = dataclasses.replace(
        current_timeline(), num_steps=jnp.minimum(current_timeline().num_steps, 1)
    )
    one, other = (trained(name, once, lr=0.2).server.params for name in ("mb_sgd", "fedavg"))
    assert_close(one, other, TOLERANCE)
    assert_close(trained("fedsgd", once, lr=0.2).server.params, other, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("factory", "rates"), [(fs.mb_sgd, (0.1,)), (fs.mb_ac_sgd, (0.1, 0.3))])
def test_identical_clients_act_as_one(factory, rates):
    algorithm = factory(*rates)
    several = state_after(algorithm, 3, 4, clients=same_clients(4)).server
    assert_close(several, state_after(algorithm, 3, 1, clients=same_clients(1)).server, TOLERANCE)


def test_accelerates():
    """Condition number 400: far closer than gradient descent after 100 rounds at its rate."""
    hessian = np.diag([1.0, 0.1, 1 / 400])[None]
    clients = hessian, np.zeros((1, 3))
    fast = state_after(
        fs.mb_ac_sgd(1.0, 1 / 400), 100, 1, 1, clients=clients, start=np.ones(3)
    ).server.params
    slow = state_after(
        fs.fedavg(1.0, optax.sgd(1.0)), 100, 1, 1, clients=clients, start=np.ones(3)
    ).server.params
    # (1 - 1 / 20)^100 = 0.006 against (1 - 1 / 400)^100 = 0.78 of the last coordinate.
    assert np.abs(fast).max() < 0.05 * np.abs(slow).max()


def test_agd_takes_full_gradients_of_the_pooled_objective():
    """Ragged clients and weights by examples."""
    timeline, start = fs.timelines.full(1, 8, 1), logistic_params()
    setup = fs.Setup(task(), timeline, start, weighting=fs.weight_by_examples)
    state, _ = compiled(lambda setup: fs.run(fs.agd(2.0, 0.5), setup, jax.random.key(0)))(setup)
    data = logistic_data()
    pooled = jax.grad(lambda w: jnp.mean(logistic_losses(w, data.examples, None)))(start)
    assert_close(state.server.params, tree.add_scale(start, -1 / 2.0, pooled), TOLERANCE)
