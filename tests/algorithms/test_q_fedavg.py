"""q-FedAvg against NumPy, printed steps, FedAvg at q = 0, and the largest loss."""

import numpy as np
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, loss, start, visits, whole_data_weights
from instance_q import assert_printed, models
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision
# F = (0.5, 1, 2.25) at the start.
THREE = {"clients": ([1.0, 2.0, 0.5], [1.0, -1.0, 3.0]), "num_steps": 2}


def test_q_fedavg():
    lr, q = ALGORITHMS["q_fedavg"][1].values()
    x, everything = start(), whole_data_weights()
    for cohort in visits():
        changes, bounds = [], []
        for client, batches in cohort:
            y, value = x, loss()(x, everything[client])
            for weights in batches:
                y = y - lr * gradient()(y, weights)
            step = (x - y) / lr
            changes.append(value**q * step)
            bounds.append(q * value ** (q - 1) * (step @ step) + value**q / lr)
        x = x - np.sum(changes, axis=0) / np.sum(bounds)
    # The library adds 1e-10 to the losses.
    assert_close(flat(trained("q_fedavg").server.params), x, 1e-9)


@pytest.mark.parametrize(
    ("q", "printed"),
    [
        pytest.param(0.0, "0.040833", marks=pytest.mark.slow),
        (1.0, "0.062774"),
        pytest.param(2.0, "0.089076", marks=pytest.mark.slow),
    ],
)
def test_printed_first_steps(q, printed):
    assert_printed(models(fs.q_fedavg(0.1, q), 1, **THREE), printed)


@pytest.mark.slow
def test_q_0_is_fedavg():
    assert_close(models(fs.q_fedavg(0.1, 0.0), **THREE), models(fs.fedavg(0.1), **THREE), TOLERANCE)


@pytest.mark.slow
def test_larger_q_lowers_the_largest_loss():
    """The paper's claim; with one local step the limit is the minimiser of the fair objective."""
    a, c = map(np.asarray, THREE["clients"])
    grid = np.linspace(-2, 4, 600_001)
    table = a / 2 * (grid[:, None] - c) ** 2
    losses = []
    for q in (0.0, 1.0, 5.0):
        x = models(fs.q_fedavg(0.1, q), 3000, clients=THREE["clients"], num_steps=1)[-1]
        assert x == pytest.approx(grid[(table ** (q + 1)).sum(1).argmin()], abs=1e-5)
        losses.append(a / 2 * (x - c) ** 2)
    assert losses[2].max() < losses[1].max() < losses[0].max()
    assert losses[2].mean() > losses[0].mean()
