"""TERM against NumPy, printed weights and value, FedAvg at t = 0, and large exponents."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, loss, start, visits, whole_data_weights
from instance_q import assert_printed, final_state, models, setup
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision
THREE = {"clients": ([1.0, 2.0, 0.5], [1.0, -1.0, 3.0]), "num_steps": 2}
LOSSES = np.array([0.5, 1.0, 2.25])  # at the start
CHANGES = -np.array([0.19, -0.36, 0.2925])  # x - y of one visit from the start


def test_term():
    lr, tilt, server_lr = ALGORITHMS["term"][1].values()
    x, everything = start(), whole_data_weights()
    for cohort in visits():
        changes, losses = [], []
        for client, batches in cohort:
            y = x
            for weights in batches:
                y = y - lr * gradient()(y, weights)
            changes.append(x - y)
            losses.append(loss()(x, everything[client]))
        shares = np.exp(tilt * np.array(losses))
        x = x - server_lr * np.average(changes, axis=0, weights=shares)
    assert_close(flat(trained("term").server.params), x, TOLERANCE)


def test_printed_weights_and_value():
    """The offset is t times the objective; at t = 1 the weights are the printed ones."""
    state, path = final_state(fs.term(0.1), setup(rounds=1, **THREE))
    assert_printed(state.server.offset, "1.530015")
    weights = np.exp(LOSSES) / np.exp(LOSSES).sum()
    assert_printed(weights, "0.119001", "0.196199", "0.684801")
    assert_close(path[0, 0], -weights @ CHANGES, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("tilt", [1e-6, 0.0])
def test_small_tilts_are_fedavg(tilt):
    state, path = final_state(fs.term(0.1, tilt), setup(rounds=2, **THREE))
    assert_close(path[:, 0], models(fs.fedavg(0.1), 2, **THREE), 1e-5 if tilt else TOLERANCE)
    first, _ = final_state(fs.term(0.1, tilt), setup(rounds=1, **THREE))
    if tilt:
        assert float(first.server.offset / tilt) == pytest.approx(1.25, rel=1e-5)
    assert np.isfinite(state.server.offset)


@pytest.mark.slow
@pytest.mark.parametrize("tilt", [400.0, -400.0])
def test_large_exponents_stay_finite(tilt):
    """At a fixed model the offset reaches the logarithm of exp(900), 60 per round."""
    given = setup(rounds=20, **THREE)
    algorithm = fs.term(jnp.float32(0.0), jnp.float32(tilt))
    state, path = final_state(algorithm, given)
    assert (path == 0).all()
    exponents = tilt * LOSSES
    exact = exponents.max() + np.log(np.exp(exponents - exponents.max()).mean())
    assert float(state.server.offset) == pytest.approx(exact, rel=1e-12)


@pytest.mark.slow
def test_tilts_order_the_largest_loss():
    """With one local step the limit is the minimiser of the tilted objective."""
    a, c = map(np.asarray, THREE["clients"])
    grid = np.linspace(-2, 4, 600_001)
    table = a / 2 * (grid[:, None] - c) ** 2
    largest = []
    for tilt in (-0.2, 0.0, 1.0, 3.0):
        x = models(fs.term(0.05, tilt), 3000, clients=THREE["clients"], num_steps=1)[-1]
        tilted = np.log(np.exp(tilt * table).mean(1)) / tilt if tilt else table.mean(1)
        assert x == pytest.approx(grid[tilted.argmin()], abs=1e-5)
        largest.append((a / 2 * (x - c) ** 2).max())
    assert largest == sorted(largest, reverse=True)


def test_refuses_stale_uploads():
    """Client 0 would weigh its loss against an offset of another round than client 1."""
    timeline = fs.timelines.full(2, 3, 2)
    version = np.array([[0, 0, 0], [0, 1, 1]], np.int32)
    timeline = dataclasses.replace(timeline, version=version, max_staleness=1)
    with pytest.raises(ValueError, match="expected none: the offset of all exponents"):
        fs.init(fs.term(0.1), setup(timeline, **THREE))


def test_refuses_oracles_without_a_loss():
    given = setup(rounds=1, **THREE)

    def oracle(client, key, max_steps):
        return given.task.oracle(client, key, max_steps)._replace(full_loss=None)

    task = fs.Task(oracle, given.task.num_examples, given.task.num_steps)
    for algorithm in (fs.term(0.1), fs.q_fedavg(0.1)):
        with pytest.raises(ValueError, match="full_loss is None; expected a task whose oracle"):
            final_state(algorithm, fs.Setup(task, given.timeline, given.params))
