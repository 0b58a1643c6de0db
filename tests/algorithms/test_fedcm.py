"""FedCM against NumPy, as MoFedSAM without perturbation, and its drift."""

import numpy as np
import pytest
from catalogue import ALGORITHMS, model, trained
from derivations import flat, gradient, start, visits
from instance_q import LR, assert_printed, models
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision


def test_fedcm():
    lr, server_lr, mix = ALGORITHMS["fedcm"][1].values()
    x, direction = start(), np.zeros_like(start())
    for cohort in visits():
        deltas, directions = [], []
        for _, batches in cohort:
            y = x
            for weights in batches:
                y = y - lr * (mix * gradient()(y, weights) + (1 - mix) * direction)
            deltas.append(x - y)
            directions.append((x - y) / (len(batches) * lr))
        x, direction = x - server_lr * np.mean(deltas, axis=0), np.mean(directions, axis=0)
    state = trained("fedcm").server
    assert_close((flat(state.params), flat(state.direction)), (x, direction), TOLERANCE)


@pytest.mark.slow
def test_special_cases():
    expected = model("mofedsam", radius=0.0, mix=0.4)
    assert_close(model("fedcm", server_lr=1.0, mix=0.4), expected, TOLERANCE)
    assert_close(model("fedcm", server_lr=1.0, mix=1.0), model("fedavg"), TOLERANCE)


def test_drift_is_that_of_a_smaller_rate():
    """The limit on instance Q is FedAvg's with the rate mix * lr."""
    path = models(fs.fedcm(LR), 600)
    assert_printed(path[:3], "0.0706329871", "0.1956356817", "0.3557695534")
    assert_printed(path[-1], "0.7424269505")
    assert_printed(models(fs.fedavg(0.1 * LR), 600)[-1], "0.7424269505")
