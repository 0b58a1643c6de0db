"""The released programs' FedMoSWA, SCAFFOLD+ and FedLESAM against NumPy, and their identities."""

import jax.numpy as jnp
import numpy as np
import pytest
from network import final, flat, gradient, mean, rounds, start
from quadratics import state_after
from small_problems import NUM_CLIENTS, assert_close

import fedjax_sim as fs
from experiments.fedswa import variants
from fedjax_sim.algorithms.fedswa import decaying

pytestmark = pytest.mark.usefixtures("x64")

# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def derived(lr, rho, alpha, gammas, *, divisor, displacement=False):
    x = start()
    controls = np.zeros((NUM_CLIENTS, len(x)))
    m = controls.mean(0)
    for gamma, visits in zip(gammas, rounds(), strict=True):
        models, changes = [], []
        for client, batches in visits:
            y, correction = x, m - controls[client]
            etas = np.linspace(lr, rho * lr, len(batches) + 1)[:-1]
            for eta, weights in zip(etas, batches, strict=True):
                if displacement:
                    y = y - eta * gradient(y, weights) - correction
                else:
                    y = y - eta * (gradient(y, weights) + correction)
            new = controls[client] - m + (x - y) / divisor(etas)
            models.append(y)
            changes.append(new - m)
            controls[client] = new
        m = m + gamma * mean(changes)
        x = x + alpha * (mean(models) - x)
    return x, m, controls


def parts(state):
    return flat(state.server.params), flat(state.server.control), flat(state.clients)


@pytest.mark.slow
def test_fedmoswa_of_the_first_program():
    """Gamma 1 in the first round and a divisor of its own."""
    algorithm = variants.fedmoswa_first_program(0.1, 0.2, 1.5, 0.3)
    expected = derived(
        0.1, 0.2, 1.5, [1.0, 0.3, 0.3], divisor=lambda etas: len(etas) * 0.1 * 1.2 / 2
    )
    assert_close(parts(final(algorithm)), expected, TOLERANCE)


def test_fedmo_of_the_second_program():
    expected = derived(0.1, 1.0, 1.0, [1.0, 0.4, 0.4], divisor=np.sum)
    assert_close(parts(final(variants.fedmo_second_program(0.1))), expected, TOLERANCE)


@pytest.mark.slow
def test_scaffold_plus():
    expected = derived(0.1, 1.0, 1.0, [0.3] * 3, divisor=len, displacement=True)
    assert_close(parts(final(variants.scaffold_plus(0.1, 0.3))), expected, TOLERANCE)


@pytest.mark.slow
def test_scaffold_plus_at_a_constant_rate_is_fedmo():
    expected = state_after(fs.fedmo(0.1, 0.3)).server.params
    assert_close(state_after(variants.scaffold_plus(0.1, 0.3)).server.params, expected, TOLERANCE)

    def halved(round):
        return 0.1 * 0.5 ** round.astype(float)

    changed = state_after(variants.scaffold_plus(halved, 0.3)).server.params
    assert np.abs(changed - state_after(fs.fedmo(halved, 0.3)).server.params).max() > 1e-4


@pytest.mark.parametrize("num_steps", [1, 2, 5, 50])
@pytest.mark.parametrize("rho", [0.0, 0.1, 1.0])
def test_divisor_of_the_first_program_is_too_small(num_steps, rho):
    exact = decaying(0.3, rho, jnp.array(num_steps)).total
    trapezoid = variants.trapezoid(0.3, rho, jnp.array(num_steps))
    assert_close(exact / trapezoid, 1 + (1 - rho) / (num_steps * (1 + rho)), TOLERANCE)


def test_fedswa_of_the_second_program_has_about_fedavgs_budget():
    """The sum of K rates from 2 eta to 0 is eta (K + 1)."""
    x = start()
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for eta, weights in zip(np.linspace(0.2, 0, len(batches) + 1), batches, strict=False):
                y = y - eta * gradient(y, weights)
            models.append(y)
        x = mean(models)
    state = final(variants.fedswa_second_program(0.1))
    assert_close(flat(state.server.params), x, TOLERANCE)


def test_fedlesam_of_the_program():
    lr, radius = 0.1, 0.3
    x = before = start()
    for visits in rounds():
        e = radius * (before - x) / (np.linalg.norm(before - x) + 1e-7)
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                y = y - lr * gradient(y + e, weights)
            models.append(y)
        before, x = x, mean(models)
    state = final(variants.fedlesam_of_the_program(lr, radius))
    assert_close(flat(state.server.params), x, TOLERANCE)


def test_fedlesam_of_the_program_without_radius_is_fedavg():
    expected = state_after(fs.fedavg(0.1)).server.params
    actual = state_after(variants.fedlesam_of_the_program(0.1, radius=0.0)).server.params
    assert_close(actual, expected, TOLERANCE)
    changed = state_after(variants.fedlesam_of_the_program(0.1, radius=0.3)).server.params
    assert np.abs(changed - expected).max() > 1e-3
