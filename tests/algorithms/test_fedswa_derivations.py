"""FedSWA, FedMoSWA and the methods they are compared with, against NumPy on a non-convex problem.

Three rounds of a network with two hidden units, ragged clients of whom some drop out, minibatches
without replacement.  The derivations share no code with the library and are written from the
papers' update rules, one client and one step after the other.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from network import (
    EPOCHS,
    IS_MATRIX,
    final,
    flat,
    full_gradient,
    gradient,
    network_data,
    network_losses,
    network_params,
    rounds,
    start,
    timeline,
)
from small_problems import NUM_CLIENTS, SIZES, assert_close, compiled

import fedjax_sim as fs
from fedjax_sim import transforms

pytestmark = pytest.mark.usefixtures("x64")

# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def mean(values):
    return np.mean(values, axis=0)


def decayed(lr, rho, num_steps, endpoint=False):
    """np.linspace, which shares nothing with the library's formula."""
    if num_steps == 1:
        return np.array([lr])
    return np.linspace(lr, rho * lr, num_steps + (not endpoint))[:num_steps]


def test_the_gradient_by_hand_is_the_gradient():
    weights = np.random.default_rng(1).uniform(size=SIZES.sum())

    def total(params):
        return jnp.sum(weights * network_losses(params, network_data().examples, None))

    assert_close(gradient(start(), weights), flat(jax.grad(total)(network_params())), 1e-13)


@pytest.mark.parametrize("schedule", ["k_over_K", "k_over_Km1"])
def test_fedswa(schedule):
    lr, rho, alpha = 0.1, 0.2, 1.5
    x = start()
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            etas = decayed(lr, rho, len(batches), schedule == "k_over_Km1")
            for eta, weights in zip(etas, batches, strict=True):
                y = y - eta * gradient(y, weights)
            models.append(y)
        x = x + alpha * (mean(models) - x)
    state = final(fs.fedswa(lr, rho, alpha, schedule))
    assert_close(flat(state.server.params), x, TOLERANCE)


def derived_fedmoswa(
    lr, rho, alpha, gammas, option="II", trapezoid=False, displacement=False, controls=None
):
    """``controls`` [M, d]: the clients' first ones, whose mean is the server's."""
    x = start()
    controls = np.zeros((NUM_CLIENTS, len(x))) if controls is None else controls.copy()
    m = controls.mean(0)
    for gamma, visits in zip(gammas, rounds(), strict=True):
        models, changes = [], []
        for client, batches in visits:
            y, etas = x, decayed(lr, rho, len(batches))
            for eta, weights in zip(etas, batches, strict=True):
                correction = m - controls[client]
                if displacement:
                    y = y - eta * gradient(y, weights) - correction
                else:
                    y = y - eta * (gradient(y, weights) + correction)
            divisor = len(batches) * lr * (1 + rho) / 2 if trapezoid else etas.sum()
            divisor = len(batches) if displacement else divisor
            new = {
                "I": lambda: full_gradient(x, client),  # noqa: B023
                "I-minibatch": lambda: gradient(x, batches[0]),  # noqa: B023
                "II": lambda: controls[client] - m + (x - y) / divisor,  # noqa: B023
            }[option]()
            models.append(y)
            changes.append(new - m)
            controls[client] = new
        m = m + gamma * mean(changes)
        x = x + alpha * (mean(models) - x)
    return x, m, controls


FEDMOSWA = {
    "default": ({}, {"gammas": [0.3] * 3}),
    "option_I": ({"option": "I"}, {"gammas": [0.3] * 3, "option": "I"}),
    "minibatch": ({"option": "I-minibatch"}, {"gammas": [0.3] * 3, "option": "I-minibatch"}),
    # The first released program: gamma 1 in the first round, its own divisor.
    "released": (
        {"first_gamma": 1.0, "divisor": "trapezoid"},
        {"gammas": [1.0, 0.3, 0.3], "trapezoid": True},
    ),
    # The released SCAFFOLD+ (which has rho = alpha = 1).
    "displacement": (
        {"units": "displacement"},
        {"gammas": [0.3] * 3, "displacement": True},
    ),
}


@pytest.mark.parametrize("variant", FEDMOSWA)
def test_fedmoswa(variant):
    ours, theirs = FEDMOSWA[variant]
    state = final(fs.fedmoswa(0.1, 0.2, 1.5, 0.3, **ours))
    actual = flat(state.server.params), flat(state.server.control), flat(state.clients)
    assert_close(actual, derived_fedmoswa(0.1, 0.2, 1.5, **theirs), TOLERANCE)


def test_fedmoswa_from_gradient_controls():
    task = fs.empirical_task(network_losses, network_data(), EPOCHS)
    algorithm = fs.fedmoswa(0.1, 0.2, 1.5, 0.3)

    @compiled
    def go(task, timeline):
        state = fs.init(algorithm, fs.Setup(task, timeline, network_params()))
        state = fs.gradient_controls(state, task, jax.random.key(0))
        return fs.advance(
            algorithm,
            fs.Setup(task, timeline, None, eval_every=timeline.num_rounds),
            state,
            jax.random.key(2),
        )[0]

    state = go(task, timeline())
    first = np.stack([full_gradient(start(), client) for client in range(NUM_CLIENTS)])
    actual = flat(state.server.params), flat(state.server.control), flat(state.clients)
    expected = derived_fedmoswa(0.1, 0.2, 1.5, [0.3] * 3, controls=first)
    assert_close(actual, expected, TOLERANCE)


def test_fedmo():
    state = final(fs.fedmo(0.1, gamma=0.3))
    expected = derived_fedmoswa(0.1, 1.0, 1.0, [0.3] * 3)[0]
    assert_close(flat(state.server.params), expected, TOLERANCE)


def test_feddyn():
    """Both published forms: the server's own dual, and the mean of the clients' displacements."""
    lr, a = 0.1, 0.3
    x, h, duals = start(), 0.0, np.zeros((NUM_CLIENTS, len(start())))
    sums, z = np.zeros_like(duals), start()
    for visits in rounds():
        models, others = [], []
        for client, batches in visits:
            y, w = x, z
            for weights in batches:
                y = y - lr * (gradient(y, weights) - duals[client] + a * (y - x))
                w = w - lr * (gradient(w, weights) + a * (sums[client] - z + w))
            duals[client] -= a * (y - x)
            sums[client] += w - z
            models.append(y)
            others.append(w)
        h = h - a / NUM_CLIENTS * np.sum([y - x for y in models], axis=0)
        x = mean(models) - h / a
        z = mean(others) + sums.mean(0)
    assert_close(z, x, TOLERANCE)
    state = final(fs.feddyn(lr, a))
    assert_close((flat(state.server.params), flat(state.clients)), (x, duals), TOLERANCE)


def test_fedacg():
    lr, momentum, weight = 0.1, 0.7, 0.2
    x, m = start(), 0.0
    for visits in rounds():
        ahead = x + momentum * m
        models = []
        for _, batches in visits:
            y = ahead
            for weights in batches:
                y = y - lr * (gradient(y, weights) + weight * (y - ahead))
            models.append(y)
        m = momentum * m + mean(models) - ahead
        x = x + m
        np.testing.assert_allclose(x, mean(models), rtol=0, atol=1e-14)
    assert_close(flat(final(fs.fedacg(lr, momentum, weight)).server.params), x, TOLERANCE)


def sam_offset(g, radius):
    return radius * g / (np.linalg.norm(g) + 1e-12)


def regular(oracle):
    """A clip that acts (gradients here are of size 1 to 10), then decay."""
    return transforms.add_decayed_weights(transforms.clip_by_global_norm(oracle, 0.8, 1e-6), 0.05)


def regularized(g, y):
    """Of the gradient that enters the step: at the perturbed model, decay at y itself."""
    return g * min(1, 0.8 / (np.linalg.norm(g) + 1e-6)) + 0.05 * y


@pytest.mark.parametrize("regularize", [False, True])
@pytest.mark.parametrize("adaptive", [False, True])
def test_fedsam_and_fedasam(adaptive, regularize):
    lr, radius, eta = 0.1, 0.3, 0.05
    x = start()
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                g, t = gradient(y, weights), np.ones_like(y)
                if adaptive:
                    t = np.where(IS_MATRIX, np.abs(y) + eta, 1.0)
                e = radius * t**2 * g / np.linalg.norm(t * g)
                g = gradient(y + e, weights)
                y = y - lr * (regularized(g, y) if regularize else g)
            models.append(y)
        x = mean(models)
    transform = regular if regularize else transforms.unchanged
    algorithm = fs.fedsam(lr, radius, transform=transform)
    if adaptive:
        algorithm = fs.fedasam(lr, radius, eta, transform=transform)
    assert_close(flat(final(algorithm).server.params), x, TOLERANCE)


@pytest.mark.parametrize("regularize", [False, True])
def test_mofedsam(regularize):
    lr, radius, mix = 0.1, 0.3, 0.2
    x, direction = start(), np.zeros_like(start())
    for visits in rounds():
        models, directions = [], []
        for _, batches in visits:
            y = x
            for weights in batches:
                g = gradient(y + sam_offset(gradient(y, weights), radius), weights)
                g = regularized(g, y) if regularize else g
                y = y - lr * (mix * g + (1 - mix) * direction)
            models.append(y)
            directions.append((x - y) / (lr * len(batches)))
        x, direction = mean(models), mean(directions)
    transform = regular if regularize else transforms.unchanged
    server = final(fs.mofedsam(lr, radius, mix, transform)).server
    assert_close((flat(server.params), flat(server.direction)), (x, direction), TOLERANCE)


def test_fedgamma():
    lr, radius, server_lr = 0.1, 0.3, 0.8
    x, c, controls = start(), np.zeros_like(start()), np.zeros((NUM_CLIENTS, len(start())))
    for visits in rounds():
        moves, changes = [], []
        for client, batches in visits:
            y = x
            for weights in batches:
                g = gradient(y + sam_offset(gradient(y, weights), radius), weights)
                y = y - lr * (g - controls[client] + c)
            new = controls[client] - c + (x - y) / (len(batches) * lr)
            moves.append(y - x)
            changes.append(new - controls[client])
            controls[client] = new
        x = x + server_lr * mean(moves)
        c = c + np.sum(changes, axis=0) / NUM_CLIENTS
    state = final(fs.fedgamma(lr, radius, server_lr))
    actual = flat(state.server.params), flat(state.server.control), flat(state.clients)
    assert_close(actual, (x, c, controls), TOLERANCE)


@pytest.mark.parametrize("reference", ["client", "server"])
def test_fedlesam(reference):
    lr, radius = 0.1, 0.3
    x, before, received = start(), start(), {}
    for visits in rounds():
        models = []
        for client, batches in visits:
            old = before if reference == "server" else received.get(client, x)
            e = radius * (old - x) / (np.linalg.norm(old - x) + 1e-7)
            y = x
            for weights in batches:
                y = y - lr * gradient(y + e, weights)
            received[client] = x
            models.append(y)
        before, x = x, mean(models)
    assert_close(flat(final(fs.fedlesam(lr, radius, reference)).server.params), x, TOLERANCE)


@pytest.mark.parametrize("regularize", [False, True])
def test_fedsmoo(regularize):
    lr, weight, radius = 0.1, 0.3, 0.2
    x, common = start(), np.zeros_like(start())
    duals, pulls = np.zeros((2, NUM_CLIENTS, len(start())))
    for visits in rounds():
        models = []
        for client, batches in visits:
            y = x
            for weights in batches:
                ascent = gradient(y, weights) - pulls[client] - common
                e = radius * ascent / (np.linalg.norm(ascent) + 1e-7)
                pulls[client] += e - common
                g = gradient(y + e, weights)
                g = regularized(g, y) if regularize else g
                y = y - lr * (g + weight * (duals[client] - x + y))
            duals[client] += y - x
            models.append(y)
        x = mean(models) + duals.mean(0)
        total = mean([pulls[client] for client, _ in visits])
        common = radius * total / (np.linalg.norm(total) + 1e-7)
    transform = regular if regularize else transforms.unchanged
    state = final(fs.fedsmoo(lr, weight, radius, transform))
    actual = flat(state.server.params), flat(state.clients.dual), flat(state.clients.pull)
    assert_close(actual, (x, duals, pulls), TOLERANCE)
