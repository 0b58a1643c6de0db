"""FedAvg with subgradients against NumPy, and what it refuses."""

import network
import numpy as np
import pytest
from composite_problems import BALL, KERNEL, LR, SERVER_LR
from network import rounds
from small_problems import assert_close

import fedjax_sim as fs
from fedjax_sim import prox

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def test_fedavg_with_subgradients():
    x = network.start()
    chosen = np.zeros_like(x)
    chosen[KERNEL] = 0.4
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                moved = y - LR * network.gradient(y, weights)
                y = moved - LR * chosen * np.sign(y)
            models.append(y)
        x = x + SERVER_LR * (np.mean(models, axis=0) - x)
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    state = network.final(fs.fedavg_subgradient(LR, composite, SERVER_LR))
    assert_close(network.flat(state.server.params), x, TOLERANCE)


@pytest.mark.parametrize(
    ("composite", "message"),
    [
        (BALL, "expected a penalty, not a constraint"),
        (prox.composite(prox.L1(0.1), prox.PNorm(1.5)), "expected Euclidean"),
    ],
)
def test_refusals(composite, message):
    with pytest.raises(ValueError, match=message):
        fs.fedavg_subgradient(0.1, composite)
