"""SCAFFOLD-M against NumPy, its special cases, and its limit."""

import numpy as np
import pytest
from catalogue import ALGORITHMS, model, trained
from derivations import flat, gradient, start, visits
from instance_q import LR, OPTIMUM, assert_printed, models
from small_problems import SIZES, assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision


def test_scaffold_m():
    lr, server_lr, mix = ALGORITHMS["scaffold_m"][1].values()
    x, direction = start(), np.zeros_like(start())
    controls = np.zeros((len(SIZES), len(x)))
    for cohort in visits():
        mean, deltas, directions, new = controls.mean(0), [], [], controls.copy()
        for client, batches in cohort:
            y, gradients = x, []
            for weights in batches:
                gradients.append(gradient()(y, weights))
                own = gradients[-1] - controls[client] + mean
                y = y - lr * (mix * own + (1 - mix) * direction)
            new[client] = np.mean(gradients, axis=0)
            deltas.append(x - y)
            directions.append((x - y) / (len(batches) * lr))
        controls = new
        x, direction = x - server_lr * np.mean(deltas, axis=0), np.mean(directions, axis=0)
    state = trained("scaffold_m")
    assert_close(flat(state.server.params), x, TOLERANCE)
    assert_close(flat(state.server.direction), direction, TOLERANCE)
    assert_close(flat(state.clients), controls, TOLERANCE)
    assert_close(flat(state.server.control), controls.mean(0), TOLERANCE)


@pytest.mark.slow
def test_without_momentum_it_is_scaffold():
    expected = model("scaffold_II", server_lr=0.8)
    assert_close(model("scaffold_m", server_lr=0.8, mix=1.0), expected, TOLERANCE)
    path = models(fs.scaffold_m(LR, mix=1.0))
    assert_printed(path, "0.415965", "0.6287227782", "0.7150249370")


def test_momentum_without_bias():
    """The paper's claim: the limit is the optimum, FedCM's is not."""
    path = models(fs.scaffold_m(LR), 1500)
    assert_printed(path[:3], "0.0706329871", "0.1969927476", "0.3594951659")
    np.testing.assert_allclose(path[-1], OPTIMUM, atol=1e-10)


@pytest.mark.slow
def test_first_round_is_fedcm():
    assert_close(models(fs.scaffold_m(LR), 1), models(fs.fedcm(LR), 1), TOLERANCE)
