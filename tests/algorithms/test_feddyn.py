"""FedDyn against both published forms, its identities and its fixed point."""

import numpy as np
import optax
import pytest
from catalogue import model, moved
from network import final, flat, gradient, mean, rounds, start
from quadratics import NUM_CLIENTS as NUM_QUADRATICS
from quadratics import optimum, state_after
from small_problems import NUM_CLIENTS, assert_close

import fedjax_sim as fs
from fedjax_sim import tree

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def test_feddyn():
    """Both published forms: the server's own dual, and the mean of the clients' displacements."""
    lr, a = 0.1, 0.3
    x, h, duals = start(), 0.0, np.zeros((NUM_CLIENTS, len(start())))
    sums, z = np.zeros_like(duals), start()
    for visits in rounds():
        models, others = [], []
        for client, batches in visits:
            y, w = x, z
            for weights in batches:
                y = y - lr * (gradient(y, weights) - duals[client] + a * (y - x))
                w = w - lr * (gradient(w, weights) + a * (sums[client] - z + w))
            duals[client] -= a * (y - x)
            sums[client] += w - z
            models.append(y)
            others.append(w)
        h = h - a / NUM_CLIENTS * np.sum([y - x for y in models], axis=0)
        x = mean(models) - h / a
        z = mean(others) + sums.mean(0)
    assert_close(z, x, TOLERANCE)
    state = final(fs.feddyn(lr, a))
    assert_close((flat(state.server.params), flat(state.clients)), (x, duals), TOLERANCE)


@pytest.mark.slow
def test_the_term_matters():
    assert moved(model("feddyn", mu=0.3), model("fedavg")) > 1e-3


@pytest.mark.slow
def test_released_feddyn_is_another_method():
    """Its penalties have no gradient, and its server adds a multiple of all past displacements."""
    a = 0.3
    inert = optax.chain(
        optax.GradientTransformation(
            lambda params: tree.zeros_like(params),
            lambda g, sums, params=None: (
                tree.add_scale(g, a, tree.add(sums, g)),
                tree.add(sums, g),
            ),
        ),
        optax.sgd(1.0),
    )
    released = state_after(fs.fedavg(0.2, inert)).server.params
    for ours in (fs.feddyn(0.2, a), fs.fedavg(0.2)):
        assert moved(released, state_after(ours).server.params) > 1e-3


def test_finds_the_optimum():
    """Full participation, exact gradients: the fixed point is the optimum, FedAvg's is not."""
    found = state_after(fs.feddyn(0.1, mu=0.5), 600, NUM_QUADRATICS, 10).server.params
    # The slowest of them contracts by 0.95 per round or better: 600 leave 1e-13.
    np.testing.assert_allclose(found, optimum(), rtol=0, atol=1e-9)
