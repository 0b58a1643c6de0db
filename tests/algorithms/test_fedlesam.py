"""FedLESAM against NumPy, and where it coincides with FedAvg."""

import numpy as np
import pytest
from catalogue import model, moved
from network import final, flat, gradient, mean, rounds, start
from quadratics import state_after
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def test_fedlesam():
    lr, radius = 0.1, 0.3
    x, received = start(), {}
    for visits in rounds():
        models = []
        for client, batches in visits:
            old = received.get(client, x)
            e = radius * (old - x) / (np.linalg.norm(old - x) + 1e-7)
            y = x
            for weights in batches:
                y = y - lr * gradient(y + e, weights)
            received[client] = x
            models.append(y)
        x = mean(models)
    assert_close(flat(final(fs.fedlesam(lr, radius)).server.params), x, TOLERANCE)


@pytest.mark.slow
def test_without_radius_it_is_fedavg():
    assert_close(model("fedlesam", radius=0.0), model("fedavg"), TOLERANCE)
    assert moved(model("fedlesam", radius=0.3), model("fedavg")) > 1e-3


@pytest.mark.slow
def test_first_visits_of_fedlesam_are_fedavg():
    """Three rounds of two clients, nobody twice; from the fourth round on it differs."""
    fedlesam, fedavg = fs.fedlesam(0.1, radius=0.3), fs.fedavg(0.1)
    expected = state_after(fedavg, 3, cohort_size=2).server.params
    assert_close(state_after(fedlesam, 3, cohort_size=2).server.params, expected, TOLERANCE)
    fourth = state_after(fedlesam, 4, cohort_size=2).server.params
    assert np.abs(fourth - state_after(fedavg, 4, cohort_size=2).server.params).max() > 1e-3
