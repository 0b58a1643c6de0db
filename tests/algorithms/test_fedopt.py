"""FedAvgM, FedAdagrad, FedAdam and FedYogi: derivations of their servers."""

import derivations
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import ALGORITHMS, current_timeline, model, task
from derivations import flat, gradient, start, visits
from instance_q import models
from quadratics import CENTRES, HESSIANS, NUM_CLIENTS, final, same_clients
from small_problems import assert_close, logistic_params

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


SERVERS = {
    "fedavgm": derivations.momentum,
    "fedadagrad": derivations.adagrad,
    "fedadam": derivations.adam,
    "fedyogi": derivations.yogi,
}


@pytest.mark.parametrize("name", SERVERS)
def test_server(name):
    numbers = {key: value for key, value in ALGORITHMS[name][1].items() if key != "lr"}
    server = SERVERS[name](**numbers)
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2, server=server)
    assert_close(flat(model(name)), expected, TOLERANCE)


def paper(name, server_lr, eps, b1=0.0, b2=0.0):
    """Reddi et al., 2021, Algorithm 2: v starts at tau^2, no correction, tau outside the root."""
    m, v = 0.0, eps**2

    def server(x, delta):
        nonlocal m, v
        m = b1 * m + (1 - b1) * delta
        square = delta**2
        v = {
            "fedadagrad": v + square,
            "fedyogi": v - (1 - b2) * square * np.sign(v - square),
            "fedadam": b2 * v + (1 - b2) * square,
        }[name]
        return x - server_lr * m / (np.sqrt(v) + eps)

    return server


PAPER = {
    "fedadagrad": {"server_lr": 0.1, "eps": 1e-2},
    "fedadam": {"server_lr": 0.1, "eps": 1e-2, "b1": 0.8, "b2": 0.9},
    "fedyogi": {"server_lr": 0.1, "eps": 1e-2, "b1": 0.8, "b2": 0.9},
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_rule(name):
    server = paper(name, **PAPER[name])
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2, server=server)
    algorithm = getattr(fs, name)(0.2, rule="paper", **PAPER[name])
    setup = fs.Setup(task(), current_timeline(), logistic_params())
    state, _ = jax.jit(lambda setup, key: fs.run(algorithm, setup, key))(setup, jax.random.key(2))
    assert_close(flat(state.server.params), expected, TOLERANCE)


def constant(client, key, max_steps):
    """The gradient is -1 everywhere, so the pseudo-gradient of one step of rate 1 is -1."""
    del client, key, max_steps
    return fs.Oracle(lambda w, k: 0 * w - 1, lambda w, k: -w, lambda w: 0 * w - 1)


# After 60 rounds: "paper" by the loop of `paper` above in double precision, "optax" by those of
# `derivations.adam` and `derivations.yogi`.
MOVED = {
    ("fedadam", "optax"): 5.9940,
    ("fedadam", "paper"): 10.7564,
    ("fedyogi", "optax"): 5.5853,
    ("fedyogi", "paper"): 10.0523,
}


@pytest.mark.parametrize(("name", "rule"), MOVED)
def test_rules_differ_by_the_correction_of_the_bias(name, rule):
    problem = fs.Task(constant, num_examples=np.ones(2, int), num_steps=np.ones(2, int))
    timeline = fs.timelines.full(60, 2, problem.num_steps)
    algorithm = getattr(fs, name)(1.0, 0.1, b1=0.9, b2=0.99, eps=1e-3, rule=rule)
    state, _ = fs.run(algorithm, fs.Setup(problem, timeline, jnp.array(0.0)), jax.random.key(0))
    assert abs(float(state.server.params) - MOVED[name, rule]) < 6e-5  # half a printed digit


@pytest.mark.parametrize("factory", [fs.fedadagrad, fs.fedadam, fs.fedyogi])
def test_rules_are_checked(factory):
    with pytest.raises(ValueError, match="rule is 'reddi'; expected 'optax' or 'paper'"):
        factory(0.1, 0.1, rule="reddi")
    with pytest.raises(ValueError, match="eps is 0; expected a positive number"):
        factory(0.1, 0.1, eps=0, rule="paper")


def test_without_momentum_it_is_fedavg():
    assert_close(model("fedavgm", server_lr=1.0, momentum=0.0), model("fedavg"), TOLERANCE)


@pytest.mark.slow
def test_identical_clients_act_as_one():
    expected = final(fs.fedavgm(0.2), clients=same_clients(1))
    assert_close(final(fs.fedavgm(0.2), clients=same_clients(NUM_CLIENTS)), expected, TOLERANCE)


def test_scaled_objective_with_scaled_rate():
    scaled = final(fs.fedavgm(0.1 / 3), clients=(3 * HESSIANS, CENTRES))
    assert_close(scaled, final(fs.fedavgm(0.1)), TOLERANCE)


@pytest.mark.parametrize("factory", [fs.fedavgm, fs.diloco])
def test_schedules_of_the_server_count_its_updates(factory):
    """A rate that becomes 0 after two updates: the model stays from then on."""
    schedule = optax.piecewise_constant_schedule(0.5, {2: 0.0})
    path = models(factory(0.1, server_lr=schedule), 4)
    constant = models(factory(0.1, server_lr=0.5), 4)
    assert_close(path[:2], constant[:2], 1e-6)  # optax's schedules are in float32
    assert (path[2:] == path[1]).all()
    assert abs(constant[3] - constant[1]) > 1e-3
