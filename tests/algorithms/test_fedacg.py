"""FedACG against NumPy, and where it coincides with simpler methods."""

import numpy as np
import pytest
from catalogue import model, moved
from network import final, flat, gradient, mean, rounds, start
from quadratics import same_clients, state_after
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def test_fedacg():
    lr, momentum, mu = 0.1, 0.7, 0.2
    x, m = start(), 0.0
    for visits in rounds():
        ahead = x + momentum * m
        models = []
        for _, batches in visits:
            y = ahead
            for weights in batches:
                y = y - lr * (gradient(y, weights) + mu * (y - ahead))
            models.append(y)
        m = momentum * m + mean(models) - ahead
        x = x + m
        np.testing.assert_allclose(x, mean(models), rtol=0, atol=1e-14)
    assert_close(flat(final(fs.fedacg(lr, momentum, mu)).server.params), x, TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "other"), [(0.0, "fedavg"), (0.4, "fedprox")])
def test_without_momentum_it_is_fedprox(mu, other):
    expected = model(other) if other == "fedavg" else model(other, mu=mu)
    assert_close(model("fedacg", momentum=0.0, mu=mu), expected, TOLERANCE)
    assert moved(model("fedacg", momentum=0.5, mu=mu), expected) > 1e-3


def test_fedacg_model_is_the_mean_of_the_clients_models():
    probes = fs.Probes(
        client={"model": lambda visit: visit.message - visit.upload},
        server={"params": lambda update: update.new_state.params},
    )
    values = state_after(fs.fedacg(0.1), probes=probes)[1]
    assert_close(values["params"], values["model"].mean(1), TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [fs.fedacg(0.1)])
def test_identical_clients_act_as_one(algorithm):
    several = state_after(algorithm, 3, 6, clients=same_clients(6))
    one = state_after(algorithm, 3, 1, clients=same_clients(1))
    assert_close(several.server.params, one.server.params, TOLERANCE)
