"""FedSWA, FedMo and FedMoSWA against NumPy, their identities and their rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import current_timeline, hyper, task, train
from network import (
    BATCHES,
    final,
    flat,
    full_gradient,
    gradient,
    mean,
    network_data,
    network_losses,
    network_params,
    rounds,
    start,
    timeline,
)
from quadratics import DIM, optimum, state_after
from quadratics import NUM_CLIENTS as NUM_QUADRATICS
from small_problems import NUM_CLIENTS, SIZES, assert_close, compiled

import fedjax_sim as fs
from fedjax_sim.algorithms.fedswa import decaying

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def decayed(lr, rho, num_steps, endpoint=False):
    """np.linspace, which shares nothing with the library's formula."""
    if num_steps == 1:
        return np.array([lr])
    return np.linspace(lr, rho * lr, num_steps + (not endpoint))[:num_steps]


def test_the_gradient_by_hand_is_the_gradient():
    weights = np.random.default_rng(1).uniform(size=SIZES.sum())

    def total(params):
        return jnp.sum(weights * network_losses(params, network_data().examples, None))

    assert_close(gradient(start(), weights), flat(jax.grad(total)(network_params())), 1e-13)


@pytest.mark.parametrize("schedule", ["k_over_K", "k_over_Km1"])
def test_fedswa(schedule):
    lr, rho, alpha = 0.1, 0.2, 1.5
    x = start()
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            etas = decayed(lr, rho, len(batches), schedule == "k_over_Km1")
            for eta, weights in zip(etas, batches, strict=True):
                y = y - eta * gradient(y, weights)
            models.append(y)
        x = x + alpha * (mean(models) - x)
    state = final(fs.fedswa(lr, rho, alpha, schedule))
    assert_close(flat(state.server.params), x, TOLERANCE)


def derived_fedmoswa(lr, rho, alpha, gamma, option="II", controls=None):
    """``controls`` [M, d]: the clients' first ones, whose mean is the server's."""
    x = start()
    controls = np.zeros((NUM_CLIENTS, len(x))) if controls is None else controls.copy()
    m = controls.mean(0)
    for visits in rounds():
        models, changes = [], []
        for client, batches in visits:
            y, etas = x, decayed(lr, rho, len(batches))
            for eta, weights in zip(etas, batches, strict=True):
                y = y - eta * (gradient(y, weights) + m - controls[client])
            new = {
                "I": lambda: full_gradient(x, client),  # noqa: B023
                "I-minibatch": lambda: gradient(x, batches[0]),  # noqa: B023
                "II": lambda: controls[client] - m + (x - y) / etas.sum(),  # noqa: B023
            }[option]()
            models.append(y)
            changes.append(new - m)
            controls[client] = new
        m = m + gamma * mean(changes)
        x = x + alpha * (mean(models) - x)
    return x, m, controls


@pytest.mark.parametrize("option", ["I", "I-minibatch", "II"])
def test_fedmoswa(option):
    state = final(fs.fedmoswa(0.1, 0.2, 1.5, 0.3, option=option))
    actual = flat(state.server.params), flat(state.server.control), flat(state.clients)
    assert_close(actual, derived_fedmoswa(0.1, 0.2, 1.5, 0.3, option), TOLERANCE)


def test_fedmoswa_from_gradient_controls():
    task = fs.empirical_task(network_losses, network_data(), BATCHES)
    algorithm = fs.fedmoswa(0.1, 0.2, 1.5, 0.3)

    @compiled
    def go(task, timeline):
        setup = fs.Setup(task, timeline, network_params())
        state = fs.gradient_controls(fs.init(algorithm, setup), setup, jax.random.key(0))
        return fs.advance(
            algorithm,
            fs.Setup(task, timeline, None, eval_every=timeline.num_rounds),
            state,
            jax.random.key(2),
        )[0]

    state = go(task, timeline())
    first = np.stack([full_gradient(start(), client) for client in range(NUM_CLIENTS)])
    actual = flat(state.server.params), flat(state.server.control), flat(state.clients)
    expected = derived_fedmoswa(0.1, 0.2, 1.5, 0.3, controls=first)
    assert_close(actual, expected, TOLERANCE)


def test_fedmo():
    state = final(fs.fedmo(0.1, gamma=0.3))
    expected = derived_fedmoswa(0.1, 1.0, 1.0, 0.3)[0]
    assert_close(flat(state.server.params), expected, TOLERANCE)


@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_fedmoswa_with_full_participation_and_no_memory_is_scaffold(alpha):
    one, other = fs.fedmoswa(0.1, 1.0, alpha, gamma=1.0), fs.scaffold(0.1, server_lr=alpha)
    expected = state_after(other, cohort_size=NUM_QUADRATICS)
    actual = state_after(one, cohort_size=NUM_QUADRATICS)
    assert_close((actual.server, actual.clients), (expected.server, expected.clients), TOLERANCE)
    # The server's controls differ once some clients are absent, the model a round later.
    partly = state_after(one).server.params - state_after(other).server.params
    assert np.abs(partly).max() > 1e-3


@pytest.mark.parametrize(
    ("rho", "schedule"),
    [(0.0, "k_over_K"), (0.3, "k_over_K"), (0.3, "k_over_Km1"), (1.0, "k_over_Km1")],
)
def test_control_is_the_mean_gradient_weighted_by_rates(rho, schedule):
    """Option II, whatever the controls were: c_i - m cancels."""
    lr, num_steps = 0.1, 5

    def mean_gradient(visit):
        rates = decaying(lr, rho, jnp.array(num_steps), schedule)
        correction = visit.message.control - visit.state
        y, total = visit.message.params, jnp.zeros(DIM)
        for k in range(num_steps):
            g, eta = visit.oracle.grad(y, k), rates.at(jnp.array(k))
            y, total = y - eta * (g + correction), total + eta * g
        return total / rates.total

    probes = fs.Probes(client={"new": lambda v: v.new_state, "mean": mean_gradient})
    algorithm = fs.fedmoswa(lr, rho, 1.5, 0.4, schedule=schedule)
    values = state_after(algorithm, num_steps=num_steps, probes=probes)[1]
    assert_close(values["new"], values["mean"], TOLERANCE)
    assert np.abs(values["new"][-1]).max() > 1e-3


@pytest.mark.parametrize("num_steps", [1, 2, 5, 50])
@pytest.mark.parametrize("rho", [0.0, 0.1, 1.0])
def test_sum_of_rates(num_steps, rho):
    at_floor = np.linspace(0.3, rho * 0.3, num_steps + 1)[:-1]
    reaching = np.linspace(0.3, rho * 0.3, num_steps)
    for schedule, rates in (("k_over_K", at_floor), ("k_over_Km1", reaching)):
        ours = decaying(0.3, rho, jnp.array(num_steps), schedule)
        assert_close(ours.at(jnp.arange(num_steps)), rates, TOLERANCE)
        assert_close(ours.total, rates.sum(), TOLERANCE)


def test_inclusive_pseudo_code_has_one_step_more():
    """The loop over k = 0..K of Algorithm 1, as printed."""
    literal = 0.3 * (1 - np.arange(6) / 5) + np.arange(6) / 5 * 0.1 * 0.3
    assert_close(decaying(0.3, 0.1, jnp.array(6), "k_over_Km1").at(jnp.arange(6)), literal, 1e-13)


def test_rate_decayed_to_zero_keeps_controls():
    """Option II would divide by the sum of rates."""
    algorithm = fs.fedmoswa(lambda round: jnp.where(round < 2, 0.1, 0.0))
    early, late = state_after(algorithm, num_rounds=2), state_after(algorithm, num_rounds=5)
    assert_close((late.server, late.clients), (early.server, early.clients), TOLERANCE)


@pytest.mark.slow
def test_sharded_run_vmaps_and_differentiates():
    """The hyper-parameters that the shards close over are swept and differentiated like others."""
    rows = jax.tree.map(lambda value: jnp.stack([value, 1.2 * value]), hyper("fedmoswa"))

    def sweep(strategy):
        def final_loss(values, task, timeline):
            state = train("fedmoswa", values, task, timeline, jax.random.key(2), strategy)
            return jnp.sum(state.server.params["w"] ** 2)

        over = jax.vmap(jax.value_and_grad(final_loss), (0, None, None))
        return compiled(over)(rows, task(), current_timeline())

    assert_close(sweep("sharded"), sweep("vmapped"), TOLERANCE)


def test_fedmo_finds_the_optimum():
    """Full participation, exact gradients: the fixed point is the optimum, FedAvg's is not."""
    found = state_after(fs.fedmo(0.1), 600, NUM_QUADRATICS, 10).server.params
    # The slowest of them contracts by 0.95 per round or better: 600 leave 1e-13.
    np.testing.assert_allclose(found, optimum(), rtol=0, atol=1e-9)
