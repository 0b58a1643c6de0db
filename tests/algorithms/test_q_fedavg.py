"""q-FedAvg against NumPy, printed steps, FedAvg at q = 0, and the largest loss."""

import jax
import jax.numpy as jnp
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


def test_long_steps_in_half_precision():
    """Their squared norm does not exist in float16; with q = 0 it has no influence."""

    def oracle(client, key, max_steps):
        def grad(x, step=0):
            return x - jnp.float16(300)

        return fs.Oracle(grad, lambda x, step: jnp.float32(1), grad, lambda x: jnp.float32(1))

    task = fs.Task(oracle, np.ones(2, np.int32), np.ones(2, np.int32))
    setup = fs.Setup(task, fs.timelines.full(1, 2, 1), jnp.zeros(4, jnp.float16))
    for algorithm in (fs.q_fedavg(0.125, q=0.0), fs.fedavg(0.125)):
        state, _ = fs.run(algorithm, setup, jax.random.key(0))
        np.testing.assert_allclose(state.server.params, 300 / 8, rtol=1e-2)
