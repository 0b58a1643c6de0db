"""q-FedAvg, TERM and AFL against NumPy, printed steps and weights, and the largest loss."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, loss, start, visits, whole_data_weights
from instance_q import assert_printed, final_state, models, setup
from small_problems import NUM_CLIENTS, assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision, contractive maps

# ---- q-FedAvg


# F = (0.5, 1, 2.25) at the start.
THREE = {"clients": ([1.0, 2.0, 0.5], [1.0, -1.0, 3.0]), "num_steps": 2}


def test_q_fedavg():
    lr, q = ALGORITHMS["q_fedavg"][1].values()
    x, everything = start(), whole_data_weights()
    for cohort in visits():
        changes, bounds = [], []
        for client, batches in cohort:
            y, value = x, loss()(x, everything[client])
            for weights in batches:
                y = y - lr * gradient()(y, weights)
            step = (x - y) / lr
            changes.append(value**q * step)
            bounds.append(q * value ** (q - 1) * (step @ step) + value**q / lr)
        x = x - np.sum(changes, axis=0) / np.sum(bounds)
    # The library adds 1e-10 to the losses.
    assert_close(flat(trained("q_fedavg").server.params), x, 1e-9)


@pytest.mark.parametrize(
    ("q", "printed"),
    [
        pytest.param(0.0, "0.040833", marks=pytest.mark.slow),
        (1.0, "0.062774"),
        pytest.param(2.0, "0.089076", marks=pytest.mark.slow),
    ],
)
def test_printed_first_steps(q, printed):
    assert_printed(models(fs.q_fedavg(0.1, q), 1, **THREE), printed)


@pytest.mark.slow
def test_larger_q_lowers_the_largest_loss():
    """The paper's claim; with one local step the limit is the minimiser of the fair objective."""
    a, c = map(np.asarray, THREE["clients"])
    grid = np.linspace(-2, 4, 600_001)
    table = a / 2 * (grid[:, None] - c) ** 2
    losses = []
    for q in (0.0, 1.0, 5.0):
        x = models(fs.q_fedavg(0.1, q), 3000, clients=THREE["clients"], num_steps=1)[-1]
        assert x == pytest.approx(grid[(table ** (q + 1)).sum(1).argmin()], abs=1e-5)
        losses.append(a / 2 * (x - c) ** 2)
    assert losses[2].max() < losses[1].max() < losses[0].max()
    assert losses[2].mean() > losses[0].mean()


# ---- TERM


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


# ---- AFL


CLIENTS = ([1.0, 2.0, 0.5], [1.0, -1.0, 3.0])  # F = (0.5, 1, 2.25) at the start
three = functools.partial(setup, clients=CLIENTS, num_steps=1)


def projected(v):
    """Projection onto the simplex by sorting (Held, Wolfe and Crowder, 1974)."""
    ordered = np.sort(v)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(v) + 1)
    last = np.nonzero(ordered > excess)[0][-1]
    return np.maximum(v - excess[last], 0)


def test_afl():
    """Partial cohorts; the evaluated model is the mean over the rounds."""
    lr, ascent_lr = ALGORITHMS["afl"][1].values()
    x, weights, iterates = start(), np.full(NUM_CLIENTS, 1 / NUM_CLIENTS), []
    for cohort in visits():
        step, losses = 0.0, np.zeros(NUM_CLIENTS)
        for client, batches in cohort:
            step = step + weights[client] * gradient()(x, batches[0])
            losses[client] = loss()(x, batches[0])
        larger = NUM_CLIENTS / len(cohort)
        x = x - lr * larger * step
        weights = projected(weights + ascent_lr * larger * losses)
        iterates.append(x)
    assert (weights == 0).any()
    server = trained("afl").server
    assert_close(server.inner.weights, weights, TOLERANCE)
    assert_close(flat(server.inner.params), x, TOLERANCE)
    assert_close(flat(server.params), np.mean(iterates, axis=0), TOLERANCE)


def test_codecs_leave_the_losses_of_afl_as_they_are():
    """A sign per entry gave all clients the same part of one client's loss."""
    plain = fs.afl(0.1, 3, ascent_lr=0.1, average=False)
    signed = fs.compressed(plain, fs.compression.scaled_sign())
    expected, found = (final_state(one, three(rounds=1))[0].server for one in (plain, signed))
    assert_close(found.weights, expected.weights, TOLERANCE)


def test_bits_of_afl_are_those_of_a_gradient_and_one_loss():
    floats, algorithm = jnp.zeros(9, jnp.float32), fs.afl(0.1, 1000)
    message = algorithm.broadcast(algorithm.init(floats), None)
    work = fs.Work(*[jnp.array(1)] * 5, None, 1)
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: x.sum(), lambda x: x)
    upload, _ = algorithm.local(message, (), oracle, work)
    assert upload.losses.shape == (1000,)
    number = upload.losses.dtype.itemsize * 8
    assert fs.tree.upload_bits(algorithm)(upload) == 9 * 32 + number
    signed = fs.compressed(algorithm, fs.compression.scaled_sign())
    assert fs.tree.upload_bits(signed)(upload) == 9 + 32 + number


@pytest.mark.slow
def test_printed_weights():
    state, _ = final_state(fs.afl(0.1, 3, ascent_lr=0.1, average=False), three(rounds=1))
    assert_printed(state.server.weights, "0.258333", "0.308333", "0.433333")


@pytest.mark.slow
def test_average_converges_to_the_worst_mixture():
    """At the saddle point the losses of the clients with positive weights are equal."""
    state, _ = final_state(fs.afl(0.02, 3, ascent_lr=0.02), three(rounds=20_000))
    a, c = map(np.asarray, CLIENTS)
    losses = a / 2 * (float(state.server.params[0]) - c) ** 2
    grid = np.linspace(-2, 4, 60_001)
    best = (a / 2 * (grid[:, None] - c) ** 2).max(axis=1).min()
    assert losses.max() == pytest.approx(best, rel=2e-3)
