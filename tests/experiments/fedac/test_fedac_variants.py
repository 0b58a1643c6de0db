"""FedAc-II of the authors' program against NumPy."""

import numpy as np
import pytest
from network import final, flat, gradient, mean, rounds, start
from small_problems import assert_close

import fedjax_sim as fs
from experiments.fedac.variants import fedac_ii_of_the_program

pytestmark = pytest.mark.usefixtures("x64")

LR, MU, K = 0.05, 0.3, 4


@pytest.mark.slow
def test_fedac_ii_of_the_program():
    gamma = max(np.sqrt(LR / (MU * K)), LR)
    alpha = 3 / (2 * gamma * MU) - 1 / 2
    beta = 2 * alpha**2 / (alpha - 1)
    x = ag = start()
    for visits in rounds():
        pairs = []
        for _, batches in visits:
            y, y_ag = x, ag
            for weights in batches:
                middle = y / beta + (1 - 1 / beta) * y_ag
                g = gradient(middle, weights)
                y_ag = middle - LR * g
                y = (1 - 1 / alpha) * y + middle / alpha - gamma * g
            pairs.append((y, y_ag))
        x, ag = mean(pairs)
    state = final(fedac_ii_of_the_program(LR, MU, K)).server
    # In double precision and over three rounds round-off stays digits below.
    assert_close((flat(state.params), flat(state.main)), (ag, x), 1e-11)
    printed = final(fs.fedac(LR, MU, K, "II")).server
    assert np.abs(flat(printed.params) - ag).max() > 1e-6
