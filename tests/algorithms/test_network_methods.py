"""SAM, ACG and dynamic regularisation on the small network, against NumPy."""

import numpy as np
import optax
import pytest
from catalogue import moved
from network import (
    IS_MATRIX,
    final,
    flat,
    gradient,
    mean,
    regular,
    regularized,
    rounds,
    sam_offset,
    start,
)
from quadratics import NUM_CLIENTS as NUM_QUADRATICS
from quadratics import optimum, state_after
from small_problems import NUM_CLIENTS, assert_close

import fedjax_sim as fs
from fedjax_sim import transforms, tree

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-11  # double precision, three rounds of at most ten steps: digits below

# ---- FedSAM and FedASAM


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


# ---- MoFedSAM


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


# ---- FedGAMMA


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


# ---- FedLESAM


def test_fedlesam():
    lr, radius = 0.1, 0.3
    x, received = start(), {}
    for visits in rounds():
        models = []
        for client, batches in visits:
            old = received.get(client, x)
            e = radius * (old - x) / (np.linalg.norm(old - x) + 1e-7)
            y = x
            for weights in batches:
                y = y - lr * gradient(y + e, weights)
            received[client] = x
            models.append(y)
        x = mean(models)
    assert_close(flat(final(fs.fedlesam(lr, radius)).server.params), x, TOLERANCE)


# ---- FedSMOO


@pytest.mark.parametrize("regularize", [False, True])
def test_fedsmoo(regularize):
    lr, mu, radius = 0.1, 0.3, 0.2
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
                y = y - lr * (g + mu * (duals[client] - x + y))
            duals[client] += y - x
            models.append(y)
        x = mean(models) + duals.mean(0)
        total = mean([pulls[client] for client, _ in visits])
        common = radius * total / (np.linalg.norm(total) + 1e-7)
    transform = regular if regularize else transforms.unchanged
    state = final(fs.fedsmoo(lr, mu, radius, transform))
    actual = flat(state.server.params), flat(state.clients.dual), flat(state.clients.pull)
    assert_close(actual, (x, duals, pulls), TOLERANCE)


# ---- FedInit


def test_fedinit():
    lr, beta = 0.1, 0.3
    x, last = start(), np.tile(start(), (NUM_CLIENTS, 1))
    for visits in rounds():
        models = []
        for client, batches in visits:
            y = x + beta * (x - last[client])
            for weights in batches:
                y = y - lr * gradient(y, weights)
            last[client] = y
            models.append(y)
        x = mean(models)
    state = final(fs.fedinit(lr, beta))
    assert_close((flat(state.server.params), flat(state.clients)), (x, last), TOLERANCE)


# ---- FedSpeed


@pytest.mark.parametrize("regularize", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_fedspeed(normalised, regularize):
    lr, mu, radius, mix = 0.1, 0.4, 0.2, 0.7
    x, corrections = start(), np.zeros((NUM_CLIENTS, len(start())))
    for visits in rounds():
        amended = []
        for client, batches in visits:
            y = x
            for weights in batches:
                first = gradient(y, weights)
                ascent = sam_offset(first, radius) if normalised else radius * first
                g = (1 - mix) * first + mix * gradient(y + ascent, weights)
                g = regularized(g, y) if regularize else g
                y = y - lr * (g - corrections[client] + mu * (y - x))
            corrections[client] -= mu * (y - x)
            amended.append(y - corrections[client] / mu)
        x = mean(amended)
    transform = regular if regularize else transforms.unchanged
    state = final(fs.fedspeed(lr, mu, radius, mix, normalised, transform))
    assert_close((flat(state.server.params), flat(state.clients)), (x, corrections), TOLERANCE)


# ---- FedGloSS


@pytest.mark.parametrize("regularize", [False, True])
def test_fedgloss(regularize):
    """In the order of the paper's algorithm: ascent, visits, duals, descent at the model itself."""
    lr, server_lr, beta, radius, local_radius = 0.1, 0.8, 4.0, 0.2, 0.3
    x, direction, dual = start(), None, np.zeros_like(start())
    duals = np.zeros((NUM_CLIENTS, len(start())))
    for visits in rounds():
        z = x if direction is None else x + radius * direction / np.linalg.norm(direction)
        moves = []
        for client, batches in visits:
            y = z
            for weights in batches:
                g = gradient(y + sam_offset(gradient(y, weights), local_radius), weights)
                g = regularized(g, y) if regularize else g
                y = y - lr * (g - duals[client] + (y - z) / beta)
            duals[client] -= (y - z) / beta
            moves.append(y - z)
        dual = dual - np.sum(moves, axis=0) / (beta * NUM_CLIENTS)
        direction = -mean(moves)
        x = x - server_lr * direction - beta * dual
    transform = regular if regularize else transforms.unchanged
    state = final(fs.fedgloss(lr, server_lr, 1 / beta, radius, local_radius, transform))
    actual = flat(state.server.params), flat(state.server.dual), flat(state.clients)
    assert_close(actual, (x, dual, duals), TOLERANCE)


# ---- FedACG


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


def test_fedacg_model_is_the_mean_of_the_clients_models():
    probes = fs.Probes(
        client={"model": lambda visit: visit.message - visit.upload},
        server={"params": lambda update: update.new_state.params},
    )
    values = state_after(fs.fedacg(0.1), probes=probes)[1]
    assert_close(values["params"], values["model"].mean(1), TOLERANCE)


# ---- FedDyn


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


@pytest.mark.slow
def test_released_feddyn_is_another_method():
    """Its penalties have no gradient, and its server adds a multiple of all past displacements."""
    a = 0.3
    inert = optax.chain(
        optax.GradientTransformation(
            lambda params: tree.zeros_like(params),
            lambda g, sums, params=None: (
                tree.add_scale(g, a, tree.add(sums, g)),
                tree.add(sums, g),
            ),
        ),
        optax.sgd(1.0),
    )
    released = state_after(fs.fedavg(0.2, inert)).server.params
    for ours in (fs.feddyn(0.2, a), fs.fedavg(0.2)):
        assert moved(released, state_after(ours).server.params) > 1e-3


def test_finds_the_optimum():
    """Full participation, exact gradients: the fixed point is the optimum, FedAvg's is not."""
    found = state_after(fs.feddyn(0.1, mu=0.5), 600, NUM_QUADRATICS, 10).server.params
    # The slowest of them contracts by 0.95 per round or better: 600 leave 1e-13.
    np.testing.assert_allclose(found, optimum(), rtol=0, atol=1e-9)
