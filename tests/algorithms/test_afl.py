"""AFL against NumPy, printed weights, the worst mixture, and refusals."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, loss, start, visits
from instance_q import assert_printed, final_state, setup
from small_problems import NUM_CLIENTS, assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision
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


def test_refusals():
    with pytest.raises(ValueError, match="num_clients is 0"):
        fs.afl(0.1, 0)
    with pytest.raises(ValueError, match="num_clients is 4; expected 3, the clients of the task"):
        fs.init(fs.afl(0.1, 4), three())
    weighted = fs.Setup(
        three().task, three().timeline, jnp.zeros(1), weighting=fs.weight_by_examples
    )
    with pytest.raises(ValueError, match=r"expected uniform_weights: the clients' weights are"):
        fs.init(fs.afl(0.1, 3), weighted)
