"""FedSAM and FedASAM against NumPy, and where they coincide with FedAvg."""

import numpy as np
import pytest
from catalogue import model, moved
from network import IS_MATRIX, final, flat, gradient, mean, regular, regularized, rounds, start
from quadratics import same_clients, state_after
from small_problems import assert_close

import fedjax_sim as fs
from fedjax_sim import transforms

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


@pytest.mark.parametrize("regularize", [False, True])
@pytest.mark.parametrize("adaptive", [False, True])
def test_fedsam_and_fedasam(adaptive, regularize):
    lr, radius, eta = 0.1, 0.3, 0.05
    x = start()
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                g, t = gradient(y, weights), np.ones_like(y)
                if adaptive:
                    t = np.where(IS_MATRIX, np.abs(y) + eta, 1.0)
                e = radius * t**2 * g / np.linalg.norm(t * g)
                g = gradient(y + e, weights)
                y = y - lr * (regularized(g, y) if regularize else g)
            models.append(y)
        x = mean(models)
    transform = regular if regularize else transforms.unchanged
    algorithm = fs.fedsam(lr, radius, transform=transform)
    if adaptive:
        algorithm = fs.fedasam(lr, radius, eta, transform=transform)
    assert_close(flat(final(algorithm).server.params), x, TOLERANCE)


@pytest.mark.parametrize("name", ["fedsam", "fedasam"])
def test_without_radius_it_is_fedavg(name):
    assert_close(model(name, radius=0.0), model("fedavg"), TOLERANCE)
    assert moved(model(name, radius=0.3), model("fedavg")) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fs.fedsam(0.1), fs.fedasam(0.1)])
def test_identical_clients_act_as_one(algorithm):
    several = state_after(algorithm, 3, 6, clients=same_clients(6))
    one = state_after(algorithm, 3, 1, clients=same_clients(1))
    assert_close(several.server.params, one.server.params, TOLERANCE)
