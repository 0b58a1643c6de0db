"""FedAvg with subgradients of the authors' program against NumPy."""

import numpy as np
import pytest
from network import FEATURES, HIDDEN, final, flat, gradient, mean, rounds, start
from small_problems import assert_close

from experiments.fco.variants import fedavg_subgradient_of_the_program
from fedjax_sim import prox

pytestmark = pytest.mark.usefixtures("x64")

LR, SERVER_LR = 0.1, 0.7


def test_subgradients_after_the_gradient_step():
    x = start()
    penalty = np.zeros_like(x)
    penalty[HIDDEN : HIDDEN + FEATURES * HIDDEN] = 0.4
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                moved = y - LR * gradient(y, weights)
                y = moved - LR * penalty * np.sign(moved)
            models.append(y)
        x = x + SERVER_LR * (mean(models) - x)
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    state = final(fedavg_subgradient_of_the_program(LR, composite, SERVER_LR))
    # In double precision and over three rounds round-off stays digits below.
    assert_close(flat(state.server.params), x, 1e-11)


def test_refuses_what_the_paper_s_method_refuses():
    ball = prox.composite(prox.L1Ball(1.0))
    with pytest.raises(ValueError, match="expected a penalty, not a constraint"):
        fedavg_subgradient_of_the_program(0.1, ball)
