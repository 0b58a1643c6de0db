"""MoFedSAM against NumPy, and where it coincides with FedSAM and FedAvg."""

import numpy as np
import pytest
from catalogue import model, moved
from network import final, flat, gradient, mean, regular, regularized, rounds, sam_offset, start
from quadratics import same_clients, state_after
from small_problems import assert_close

import fedjax_sim as fs
from fedjax_sim import transforms

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


@pytest.mark.parametrize("regularize", [False, True])
def test_mofedsam(regularize):
    lr, radius, mix = 0.1, 0.3, 0.2
    x, direction = start(), np.zeros_like(start())
    for visits in rounds():
        models, directions = [], []
        for _, batches in visits:
            y = x
            for weights in batches:
                g = gradient(y + sam_offset(gradient(y, weights), radius), weights)
                g = regularized(g, y) if regularize else g
                y = y - lr * (mix * g + (1 - mix) * direction)
            models.append(y)
            directions.append((x - y) / (lr * len(batches)))
        x, direction = mean(models), mean(directions)
    transform = regular if regularize else transforms.unchanged
    server = final(fs.mofedsam(lr, radius, mix, transform)).server
    assert_close((flat(server.params), flat(server.direction)), (x, direction), TOLERANCE)


@pytest.mark.slow
def test_without_momentum_it_is_fedsam():
    assert_close(model("mofedsam", radius=0.0, mix=1.0), model("fedavg"), TOLERANCE)
    assert_close(model("mofedsam", radius=0.3, mix=1.0), model("fedsam", radius=0.3), TOLERANCE)
    assert moved(model("mofedsam", radius=0.0, mix=0.5), model("fedavg")) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fs.mofedsam(0.1)])
def test_identical_clients_act_as_one(algorithm):
    several = state_after(algorithm, 3, 6, clients=same_clients(6))
    one = state_after(algorithm, 3, 1, clients=same_clients(1))
    assert_close(several.server.params, one.server.params, TOLERANCE)
