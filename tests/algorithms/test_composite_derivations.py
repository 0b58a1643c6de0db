"""The composite methods against NumPy, three rounds of the network with ragged clients and dropout.

The regulariser acts on the network's kernel only, a 3 x 2 matrix.  The derivations share no code
with the library and are written from the thesis' algorithms; proximal operators by NumPy's SVD and
by bisection.
"""

import jax
import numpy as np
import pytest
from network import (
    EPOCHS,
    FEATURES,
    HIDDEN,
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
from small_problems import SIZES, assert_close, compiled

import fedjax_sim as fs
from fedjax_sim import prox

pytestmark = pytest.mark.usefixtures("x64")

# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11
KERNEL = slice(HIDDEN, -HIDDEN)
LR, SERVER_LR = 0.1, 0.7


def nuclear(v, c):
    u, s, w = np.linalg.svd(v)
    return u[:, : len(s)] @ np.diag(np.clip(s - 0.4 * c, 0, None)) @ w


def l1(v, c):
    return np.where(np.abs(v) > 0.4 * c, v - 0.4 * c * np.sign(v), 0)


def l1_ball(v, c):
    """By bisection for the threshold."""
    if np.abs(v).sum() <= 0.8:
        return v
    low, high = 0.0, np.abs(v).max()
    for _ in range(200):
        middle = (low + high) / 2
        if np.clip(np.abs(v) - middle, 0, None).sum() > 0.8:
            low = middle
        else:
            high = middle
    return np.sign(v) * np.clip(np.abs(v) - low, 0, None)


# Library's regulariser, its prox in NumPy.
REGULARIZERS = {
    "nuclear": (prox.Nuclear(0.4), nuclear),
    "l1": (prox.L1(0.4), l1),
    "l1_ball": (prox.L1Ball(0.8), l1_ball),
}


def on_kernel(proximal):
    def apply(model, c):
        shrunk = proximal(model[KERNEL].reshape(FEATURES, HIDDEN), c)
        return np.concatenate([model[:HIDDEN], shrunk.ravel(), model[-HIDDEN:]])

    return apply


def shares(visits, weight_by_examples):
    weights = np.array([SIZES[client] if weight_by_examples else 1.0 for client, _ in visits])
    return weights / weights.sum()


def derived_fedmid(proximal, local_prox=True, server_prox=True, weight_by_examples=False):
    P = on_kernel(proximal)
    x = P(start(), 0.0)
    for visits in rounds():
        w = shares(visits, weight_by_examples)
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                y = y - LR * gradient(y, weights)
                y = P(y, LR) if local_prox else y
            models.append(y)
        weight = SERVER_LR * w @ [LR * len(batches) for _, batches in visits]
        x = x + SERVER_LR * (w @ np.array(models) - x)
        x = P(x, weight) if server_prox else x
    return x


def derived_feddualavg(proximal, local_prox=True, weight_by_examples=False):
    P = on_kernel(proximal)
    y, elapsed = start(), 0.0
    for visits in rounds():
        w = shares(visits, weight_by_examples)
        duals = []
        for _, batches in visits:
            z, t = y, elapsed
            for weights in batches:
                z = z - LR * gradient(P(z, t) if local_prox else z, weights)
                t = t + LR
            duals.append(z)
        y = y + SERVER_LR * (w @ np.array(duals) - y)
        elapsed = elapsed + SERVER_LR * w @ [LR * len(batches) for _, batches in visits]
    return P(y, elapsed), y, elapsed


@pytest.fixture(params=REGULARIZERS)
def regularizer(request):
    psi, proximal = REGULARIZERS[request.param]
    return prox.composite(psi, where=prox.kernels), proximal


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        (fs.fedmid, {}),
        (fs.fedmid_osp, {"local_prox": False}),
        (lambda *args: fs.fedmid(*args, server_prox=False), {"server_prox": False}),
        (lambda *args: fs.fedmid(*args, delta_space="dual"), {}),  # Euclidean: the same
    ],
    ids=["fedmid", "osp", "no_server_prox", "dual_changes"],
)
def test_fedmid(regularizer, factory, options):
    composite, proximal = regularizer
    state = final(factory(LR, composite, SERVER_LR))
    assert_close(flat(state.server.params), derived_fedmid(proximal, **options), TOLERANCE)


@pytest.mark.parametrize("local_prox", [True, False], ids=["feddualavg", "osp"])
def test_feddualavg(regularizer, local_prox):
    composite, proximal = regularizer
    factory = fs.feddualavg if local_prox else fs.feddualavg_osp
    state = final(factory(LR, composite, SERVER_LR))
    x, y, elapsed = derived_feddualavg(proximal, local_prox)
    assert_close(flat(state.server.params), x, TOLERANCE)
    assert_close(flat(state.server.dual), y, TOLERANCE)
    assert_close(state.server.elapsed, elapsed, TOLERANCE)


@pytest.mark.parametrize("name", ["fedmid", "feddualavg"])
def test_weights_by_examples_reach_the_regularisers_weight(name):
    """Ragged clients: the mean of the clients' rates is weighted as their changes are."""
    task = fs.empirical_task(network_losses, network_data(), EPOCHS)
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    algorithm = getattr(fs, name)(LR, composite, SERVER_LR)

    @compiled
    def go(task, timeline):
        key = jax.random.key(2)
        return fs.run(
            algorithm,
            fs.Setup(task, timeline, network_params(), weighting=fs.weight_by_examples),
            key,
        )[0]

    derived = {
        "fedmid": lambda: derived_fedmid(l1, weight_by_examples=True),
        "feddualavg": lambda: derived_feddualavg(l1, weight_by_examples=True)[0],
    }[name]()
    assert_close(flat(go(task, timeline()).server.params), derived, TOLERANCE)


@pytest.mark.parametrize("order", ["together", "after"])
def test_fedavg_with_subgradients(order):
    x = start()
    chosen = np.zeros_like(x)
    chosen[KERNEL] = 0.4
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                moved = y - LR * gradient(y, weights)
                y = moved - LR * chosen * np.sign(y if order == "together" else moved)
            models.append(y)
        x = x + SERVER_LR * (np.mean(models, axis=0) - x)
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    state = final(fs.fedavg_subgradient(LR, composite, SERVER_LR, order))
    assert_close(flat(state.server.params), x, TOLERANCE)


def test_a_schedule_of_client_rates():
    """The regulariser's weight is the sum of the rates that were used."""
    x, y, elapsed = start(), start(), 0.0
    P = on_kernel(l1)
    for t, visits in enumerate(rounds()):
        lr = LR / (1 + t)
        duals = []
        for _, batches in visits:
            z = y
            for k, weights in enumerate(batches):
                z = z - lr * gradient(P(z, elapsed + lr * k), weights)
            duals.append(z)
        y = np.mean(duals, axis=0)
        elapsed += lr * np.mean([len(batches) for _, batches in visits])
        x = P(y, elapsed)
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    state = final(fs.feddualavg(lambda round: LR / (1 + round.astype(float)), composite))
    assert_close(flat(state.server.params), x, TOLERANCE)


def test_averages_over_rounds_and_over_steps():
    """Full batches, so that all visits are equally long."""
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    P = on_kernel(l1)
    num_clients, num_steps = len(SIZES), 4
    data = network_data()
    task = fs.empirical_task(network_losses, data, fs.full_batch(num_steps))
    timeline = fs.timelines.full(3, num_clients, num_steps)

    def run(algorithm):
        def go(task, timeline):
            return fs.run(algorithm, fs.Setup(task, timeline, network_params()), jax.random.key(0))[
                0
            ]

        return flat(compiled(go)(task, timeline).server.params)

    y, elapsed, steps, ends = start(), 0.0, [], []
    for _ in range(3):
        duals = np.tile(y, (num_clients, 1))
        for _ in range(num_steps):
            moves = [full_gradient(P(z, elapsed), i) for i, z in enumerate(duals)]
            duals = duals - LR * np.array(moves)
            elapsed += LR
            steps.append(P(duals.mean(0), elapsed))
        y = duals.mean(0)
        ends.append(P(y, elapsed))
    over_steps = run(fs.averaged_feddualavg(LR, composite))
    assert_close(over_steps, np.mean(steps, axis=0), TOLERANCE)
    over_rounds = run(fs.average_rounds(fs.feddualavg(LR, composite)))
    assert_close(over_rounds, np.mean(ends, axis=0), TOLERANCE)
    assert np.abs(over_steps - over_rounds).max() > 1e-3


def test_average_over_rounds_of_any_algorithm():
    """FedMoSWA keeps client states; whoever gets the average would train another model."""
    plain, averaged = (final(a) for a in (fs.fedmoswa(LR), fs.average_rounds(fs.fedmoswa(LR))))
    for new, old in ((averaged.server.inner, plain.server), (averaged.clients, plain.clients)):
        for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
            assert_close(a, b, TOLERANCE)
    assert float(averaged.server.num_averaged) == len(rounds())
