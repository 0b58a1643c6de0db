"""FedSMOO against NumPy, and where it coincides with FedDyn."""

import numpy as np
import pytest
from catalogue import model
from network import final, flat, gradient, mean, regular, regularized, rounds, start
from small_problems import NUM_CLIENTS, assert_close

import fedjax_sim as fs
from fedjax_sim import transforms

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


@pytest.mark.parametrize("regularize", [False, True])
def test_fedsmoo(regularize):
    lr, mu, radius = 0.1, 0.3, 0.2
    x, common = start(), np.zeros_like(start())
    duals, pulls = np.zeros((2, NUM_CLIENTS, len(start())))
    for visits in rounds():
        models = []
        for client, batches in visits:
            y = x
            for weights in batches:
                ascent = gradient(y, weights) - pulls[client] - common
                e = radius * ascent / (np.linalg.norm(ascent) + 1e-7)
                pulls[client] += e - common
                g = gradient(y + e, weights)
                g = regularized(g, y) if regularize else g
                y = y - lr * (g + mu * (duals[client] - x + y))
            duals[client] += y - x
            models.append(y)
        x = mean(models) + duals.mean(0)
        total = mean([pulls[client] for client, _ in visits])
        common = radius * total / (np.linalg.norm(total) + 1e-7)
    transform = regular if regularize else transforms.unchanged
    state = final(fs.fedsmoo(lr, mu, radius, transform))
    actual = flat(state.server.params), flat(state.clients.dual), flat(state.clients.pull)
    assert_close(actual, (x, duals, pulls), TOLERANCE)


@pytest.mark.slow
def test_without_radius_it_is_feddyn():
    assert_close(model("fedsmoo", mu=0.4, radius=0.0), model("feddyn", mu=0.4), TOLERANCE)
