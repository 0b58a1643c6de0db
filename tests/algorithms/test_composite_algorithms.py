"""FedMiD, FedDualAvg and FedAvg with subgradients against NumPy, in all geometries."""

import dataclasses

import jax
import jax.numpy as jnp
import network
import numpy as np
import pytest
from jax.tree_util import Partial
from network import (
    FEATURES,
    HIDDEN,
    full_gradient,
    network_data,
    network_losses,
    network_params,
    rounds,
)
from quadratics import state_after
from scipy.optimize import brentq
from small_problems import SIZES, assert_close, compiled, quadratic_task, random_quadratics

import fedjax_sim as fs
from fedjax_sim import prox
from fedjax_sim.engine import Probes

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-11  # double precision, three rounds of at most ten steps: digits below

LR, SERVER_LR = 0.1, 0.7
KERNEL = slice(HIDDEN, -HIDDEN)
NUM_CLIENTS, DIM = 6, 4
HESSIANS, CENTRES = random_quadratics(NUM_CLIENTS, DIM, seed=3)
START = np.array([1.0, -2.0, 0.5, 0.0])
L1 = prox.composite(prox.L1(0.3))
BALL = prox.composite(prox.L1Ball(1.0))
HALF = prox.composite(prox.L1(0.5))


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


def server(algorithm, num_steps, num_rounds=4, cohort_size=4, task=None, start=START):
    """The server's state after the given rounds, cohorts in cyclic order."""
    clients = (HESSIANS, CENTRES) if task is None else task
    sizes = num_rounds, cohort_size, num_steps
    return state_after(algorithm, *sizes, clients=clients, start=start).server


def final(*args, **kwargs):
    return np.asarray(server(*args, **kwargs).params)


def gradient(x, cohort):
    return np.mean([HESSIANS[i] @ (x - CENTRES[i]) for i in cohort], axis=0)


def soft(v, t):
    return np.sign(v) * np.maximum(np.abs(v) - t, 0)


def scalar_problem(algorithm, num_rounds):
    """The limit on f(x) = (x - 3)^2 / 2 with psi = |x| / 2, five local steps."""
    task = quadratic_task(np.ones((1, 1, 1)), np.full((1, 1), 3.0), 5)
    return final(algorithm, 5, num_rounds, task=task, start=np.zeros(1))[0]


def linear_task(slopes, num_steps):
    """f_i(x) = <g_i, x>."""

    def oracle(slopes, client, key, max_steps):
        del key, max_steps
        g = slopes[client]
        return fs.Oracle(lambda x, k: g + 0 * x, lambda x, k: g @ x, lambda x: g + 0 * x)

    count = len(slopes)
    steps = np.full(count, num_steps, np.int32)
    return fs.Task(Partial(oracle, jnp.asarray(slopes)), np.ones(count, np.int32), steps)


# ---- FedMiD


def of_the_model(dual, primal, argmin):
    """Gradient of h, its inverse and P_c: these of the kernel, and the Euclidean ones beside it."""
    without_c = (on_kernel(lambda v, c, f=f: f(v)) for f in (dual, primal))
    dual, primal = (lambda x, f=f: f(x, 0.0) for f in without_c)
    return dual, primal, on_kernel(argmin)


def euclidean(proximal):
    return of_the_model(lambda x: x, lambda y: y, proximal)


def derived_fedmid(
    maps, local_prox=True, server_prox=True, weight_by_examples=False, dual_deltas=False
):
    """Yuan, 2023, Algorithms 5 and 7."""
    dual, primal, argmin = maps
    x = argmin(dual(network.start()), 0.0)
    for visits in rounds():
        w = shares(visits, weight_by_examples)
        ends = []
        for _, batches in visits:
            y = x
            for weights in batches:
                step = dual(y) - LR * network.gradient(y, weights)
                y = argmin(step, LR) if local_prox else primal(step)
            ends.append(y)
        sent = [dual(y) - dual(x) if dual_deltas else y - x for y in ends]
        weight = SERVER_LR * w @ [LR * len(batches) for _, batches in visits]
        moved = dual(x) + SERVER_LR * w @ np.array(sent)
        x = argmin(moved, weight) if server_prox else primal(moved)
    return x


@pytest.mark.parametrize(
    ("factory", "options", "name"),
    [
        (fs.fedmid, {}, "nuclear"),
        (fs.fedmid, {}, "l1"),
        (fs.fedmid, {}, "l1_ball"),
        (fs.fedmid_osp, {"local_prox": False}, "l1"),
        (lambda *args: fs.fedmid(*args, server_prox=False), {"server_prox": False}, "nuclear"),
        # Equal, since Euclidean.
        (lambda *args: fs.fedmid(*args, delta_space="dual"), {}, "l1_ball"),
    ],
    ids=["nuclear", "l1", "l1_ball", "osp", "no_server_prox", "dual_changes"],
)
def test_fedmid(factory, options, name):
    psi, proximal = REGULARIZERS[name]
    state = network.final(factory(LR, prox.composite(psi, where=prox.kernels), SERVER_LR))
    assert_close(
        network.flat(state.server.params), derived_fedmid(euclidean(proximal), **options), TOLERANCE
    )


def test_weights_by_examples_reach_the_regularisers_weight():
    """Ragged clients: the mean of the clients' rates is weighted as their changes are."""
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    state = network.final(fs.fedmid(LR, composite, SERVER_LR), weighting=fs.weight_by_examples)
    derived = derived_fedmid(euclidean(l1), weight_by_examples=True)
    assert_close(network.flat(state.server.params), derived, TOLERANCE)


def test_fedmid_under_a_constraint_is_parallel_projected_sgd():
    """Averages of feasible points are feasible: the server's projection has nothing to do."""
    with_prox = final(fs.fedmid(0.2, BALL), 5)
    assert_close(final(fs.fedmid(0.2, BALL, server_prox=False), 5), with_prox, TOLERANCE)
    assert np.abs(with_prox - final(fs.fedavg(0.2), 5)).max() > 0.1


@pytest.mark.parametrize("factory", [fs.fedmid, fs.fedmid_osp])
def test_a_start_outside_the_constraint_is_projected_if_asked(factory):
    composite = prox.composite(prox.L2Ball(1.0))
    projected = factory(0.2, composite).init(jnp.asarray(START)).params
    assert_close(jnp.linalg.norm(projected), 1.0, TOLERANCE)
    raw = factory(0.2, composite, project_start=False).init(jnp.asarray(START)).params
    assert_close(raw, START, 0.0)


@pytest.mark.parametrize(
    ("algorithm", "limit"),
    [
        # Both clients and server shrink: F + 2 psi.
        (fs.fedmid(1e-3, HALF), 2.0),
        (fs.fedmid_osp(1e-3, HALF), 2.5),
        (fs.fedmid(1e-3, HALF, server_prox=False), 2.5),
    ],
    ids=["twice", "server_only", "clients_only"],
)
def test_fedmid_regularises_twice(algorithm, limit):
    """Up to the bias of five steps at this rate, about 0.001, after 15 time constants."""
    assert abs(scalar_problem(algorithm, 3000) - limit) < 2e-3


def test_dual_changes_fit_a_geometry_that_is_not_euclidean():
    """One step, one client, unit server rate, no server prox: exactly a mirror step."""
    task = quadratic_task(HESSIANS[:1], CENTRES[:1], 1)
    positive = np.array([0.4, 0.3, 0.2, 0.1])
    simplex = prox.composite(prox.Simplex(), prox.Entropy())
    algorithm = fs.fedmid(0.2, simplex, delta_space="dual", server_prox=False)
    x = positive
    for _ in range(4):
        x = x * np.exp(-0.2 * gradient(x, [0]))
        x = x / x.sum()
    assert_close(final(algorithm, 1, task=task, start=positive), x, TOLERANCE)
    printed = fs.fedmid(0.2, simplex, server_prox=False)
    assert np.abs(final(printed, 1, task=task, start=positive) - x).max() > 1e-3


@pytest.mark.slow
def test_server_only_form_has_dual_changes():
    """One local step under the entropy: the options are those of FedMiD without local prox."""
    positive = np.array([0.4, 0.3, 0.2, 0.1])
    simplex = prox.composite(prox.Simplex(), prox.Entropy())
    expected = fs.fedmid(0.2, simplex, local_prox=False, delta_space="dual")
    actual = fs.fedmid_osp(0.2, simplex, delta_space="dual")
    assert_close(final(actual, 3, start=positive), final(expected, 3, start=positive), 0.0)
    printed = final(fs.fedmid_osp(0.2, simplex), 3, start=positive)
    assert np.abs(printed - final(actual, 3, start=positive)).max() > 1e-3


def test_refuses_pairs_without_a_closed_form():
    algorithm = fs.fedmid(0.1, prox.composite(prox.Nuclear(0.1), prox.PNorm(1.5)))
    with pytest.raises(ValueError, match="psi is Nuclear, mirror PNorm"):
        algorithm.init(jnp.ones((2, 2)))


# ---- FedDualAvg


def derived_feddualavg(maps, local_prox=True, weight_by_examples=False, project=True):
    """Yuan, 2023, Algorithms 6 and 8: the model, the dual, and the sum of the rates."""
    dual, primal, argmin = maps
    y, elapsed = dual(argmin(dual(network.start()), 0.0) if project else network.start()), 0.0
    for visits in rounds():
        w = shares(visits, weight_by_examples)
        ends = []
        for _, batches in visits:
            z, t = y, elapsed
            for weights in batches:
                z = z - LR * network.gradient(argmin(z, t) if local_prox else primal(z), weights)
                t = t + LR
            ends.append(z)
        y = y + SERVER_LR * (w @ np.array(ends) - y)
        elapsed = elapsed + SERVER_LR * w @ [LR * len(batches) for _, batches in visits]
    return argmin(y, elapsed), y, elapsed


@pytest.mark.parametrize(
    ("name", "project", "local_prox"),
    [
        ("nuclear", True, True),
        ("l1", True, False),
        ("l1_ball", True, True),
        ("l1_ball", True, False),
        ("l1_ball", False, True),
    ],
)
def test_feddualavg(name, project, local_prox):
    psi, proximal = REGULARIZERS[name]
    composite = prox.composite(psi, where=prox.kernels)
    factory = fs.feddualavg if local_prox else fs.feddualavg_osp
    state = network.final(factory(LR, composite, SERVER_LR, project_start=project))
    x, y, elapsed = derived_feddualavg(euclidean(proximal), local_prox, project=project)
    assert_close(network.flat(state.server.params), x, TOLERANCE)
    assert_close(network.flat(state.server.dual), y, TOLERANCE)
    assert_close(state.server.elapsed, elapsed, TOLERANCE)


def test_weights_by_examples_reach_the_dual():
    """Ragged clients: the mean of the clients' rates is weighted as their changes are."""
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    algorithm = fs.feddualavg(LR, composite, SERVER_LR)
    state = network.final(algorithm, weighting=fs.weight_by_examples)
    derived = derived_feddualavg(euclidean(l1), weight_by_examples=True)[0]
    assert_close(network.flat(state.server.params), derived, TOLERANCE)


def test_a_schedule_of_client_rates():
    """The regulariser's weight is the sum of the rates that were used."""
    x, y, elapsed = network.start(), network.start(), 0.0
    P = on_kernel(l1)
    for t, visits in enumerate(rounds()):
        lr = LR / (1 + t)
        duals = []
        for _, batches in visits:
            z = y
            for k, weights in enumerate(batches):
                z = z - lr * network.gradient(P(z, elapsed + lr * k), weights)
            duals.append(z)
        y = np.mean(duals, axis=0)
        elapsed += lr * np.mean([len(batches) for _, batches in visits])
        x = P(y, elapsed)
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    state = network.final(fs.feddualavg(lambda round: LR / (1 + round.astype(float)), composite))
    assert_close(network.flat(state.server.params), x, TOLERANCE)


@pytest.mark.parametrize("factory", [fs.feddualavg, fs.feddualavg_osp, fs.averaged_feddualavg])
def test_dual_starts_inside_the_constraint_unless_asked(factory):
    """The theorems require an initial model in the domain of psi."""
    inside = factory(0.2, BALL).init(jnp.asarray(START))
    assert float(jnp.abs(inside.dual).sum()) <= 1 + TOLERANCE
    assert_close(inside.dual, BALL.argmin(jnp.asarray(START), 0.0), TOLERANCE)
    raw = factory(0.2, BALL, project_start=False).init(jnp.asarray(START))
    assert_close(raw.dual, START, 0.0)
    for state in (inside, raw):  # the model is in the domain in either case
        assert_close(state.params, BALL.argmin(jnp.asarray(START), 0.0), TOLERANCE)


@pytest.mark.parametrize("composite", [L1, BALL], ids=["l1", "l1_ball"])
def test_dual_of_feddualavg_osp_is_fedavg(composite):
    state = server(fs.feddualavg_osp(0.2, composite, 0.7, project_start=False), 5)
    expected = final(fs.fedavgm(0.2, 0.7, momentum=0.0), 5)
    assert_close(state.dual, expected, TOLERANCE)
    elapsed = 4 * 0.7 * 0.2 * 5
    assert_close(state.params, composite.argmin(jnp.asarray(expected), elapsed), TOLERANCE)


def test_feddualavg_solves_the_regularised_problem():
    assert abs(scalar_problem(fs.feddualavg(0.1, HALF), 500) - 2.5) < 1e-9


@pytest.mark.slow
def test_feddualavg_is_exact_on_linear_losses():
    """With any number of local steps: as if clients were averaged after each. FedMiD is not."""
    slopes = np.random.default_rng(0).normal(size=(4, DIM))
    task = linear_task(slopes, 7)
    state = server(fs.feddualavg(0.1, L1, 0.6), 7, 3, task=task)
    weight = 0.6 * 0.1 * 3 * 7
    dual = START - weight * slopes.mean(0)
    assert_close(state.dual, dual, TOLERANCE)
    assert_close(state.params, soft(dual, weight * 0.3), TOLERANCE)
    local = final(fs.fedmid_osp(0.1, L1), 7, 3, task=task)
    synchronised = final(fs.fedmid_osp(0.1, L1), 1, 21, task=task)
    assert_close(local, synchronised, TOLERANCE)  # linear and without local prox, still exact
    midway = final(fs.fedmid(0.1, L1, server_prox=False), 7, 3, task=task)
    assert (
        np.abs(midway - final(fs.fedmid(0.1, L1, server_prox=False), 1, 21, task=task)).max() > 0.01
    )


def test_feddualavg_with_entropy_is_exponentiated_gradient():
    task = quadratic_task(HESSIANS[:1], CENTRES[:1], 5)
    positive = np.array([0.4, 0.3, 0.2, 0.1])
    simplex = prox.composite(prox.Simplex(), prox.Entropy())
    x = positive
    for _ in range(20):
        x = x * np.exp(-0.2 * gradient(x, [0]))
        x = x / x.sum()
    assert_close(final(fs.feddualavg(0.2, simplex), 5, task=task, start=positive), x, TOLERANCE)


# ---- geometries


P, B, WEIGHT, LOW, HIGH = 1.6, 0.3, 0.2, -0.05, 0.4


def p_norm_dual(x):
    norm = (np.abs(x) ** P).sum() ** (1 / P)
    return np.sign(x) * np.abs(x) ** (P - 1) * norm ** (2 - P) / (P - 1) if norm else 0 * x


def p_norm_primal(y):
    """The x with ``p_norm_dual(x) = y``, found by its norm."""
    if not y.any():
        return y

    def entries(norm):
        return (np.abs(y) * (P - 1) * norm ** (P - 2)) ** (1 / (P - 1))

    def excess(norm):
        return (entries(norm) ** P).sum() ** (1 / P) - norm

    return np.sign(y) * entries(brentq(excess, 1e-6, 1e6, xtol=1e-300, rtol=1e-15))


def hypentropy_dual(x):
    return np.sign(x) * np.log((np.abs(x) + np.sqrt(x**2 + B**2)) / B)


def hypentropy_primal(y):
    return B * (np.exp(y) - np.exp(-y)) / 2


def soft_before(primal):
    """P_c of an l1 penalty, for gradients of h that preserve signs and zeros."""
    return lambda y, c: primal(soft(y, c * WEIGHT))


def clipped(y, c):
    """P_c of the box."""
    del c
    return np.clip(hypentropy_primal(y), LOW, HIGH)


# Library's composite; gradient of h, its inverse and P_c in NumPy.
CASES = {
    "p_norm_l1": (
        (prox.L1(WEIGHT), prox.PNorm(P)),
        (p_norm_dual, p_norm_primal, soft_before(p_norm_primal)),
    ),
    "hypentropy_l1": (
        (prox.L1(WEIGHT), prox.Hypentropy(B)),
        (hypentropy_dual, hypentropy_primal, soft_before(hypentropy_primal)),
    ),
    "hypentropy_box": (
        (prox.Box(LOW, HIGH), prox.Hypentropy(B)),
        (hypentropy_dual, hypentropy_primal, clipped),
    ),
}


def geometry(name):
    """The library's composite and the maps of the whole model: Euclidean but for the kernel."""
    (psi, mirror), maps = CASES[name]
    return prox.composite(psi, mirror, prox.kernels), of_the_model(*maps)


@pytest.mark.parametrize(
    ("name", "local_prox", "space"),
    [
        ("p_norm_l1", True, "primal"),
        ("p_norm_l1", False, "dual"),
        ("hypentropy_l1", True, "dual"),
        ("hypentropy_l1", False, "primal"),
        ("hypentropy_box", True, "primal"),
        ("hypentropy_box", False, "dual"),
    ],
)
def test_fedmid_in_other_geometries(name, local_prox, space):
    composite, maps = geometry(name)
    factory = fs.fedmid if local_prox else fs.fedmid_osp
    state = network.final(factory(LR, composite, SERVER_LR, delta_space=space))
    expected = derived_fedmid(maps, local_prox, dual_deltas=space == "dual")
    assert_close(network.flat(state.server.params), expected, TOLERANCE)


@pytest.mark.parametrize(
    ("name", "local_prox"),
    [("p_norm_l1", True), ("p_norm_l1", False), ("hypentropy_l1", True), ("hypentropy_box", False)],
)
def test_feddualavg_in_other_geometries(name, local_prox):
    composite, maps = geometry(name)
    factory = fs.feddualavg if local_prox else fs.feddualavg_osp
    state = network.final(factory(LR, composite, SERVER_LR))
    expected = derived_feddualavg(maps, local_prox)[0]
    assert_close(network.flat(state.server.params), expected, TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_the_geometries_differ(name):
    """The kernel's end differs from that under the Euclidean map: the derivations see the map."""
    argmin = (lambda y, c: np.clip(y, LOW, HIGH)) if "box" in name else soft_before(lambda y: y)
    difference = derived_fedmid(geometry(name)[1]) - derived_fedmid(euclidean(argmin))
    assert np.abs(difference[KERNEL]).max() > 1e-3


# ---- the family


NONE = prox.composite(prox.Zero())


FAMILY = {
    "fedmid": fs.fedmid,
    "fedmid_osp": fs.fedmid_osp,
    "feddualavg": fs.feddualavg,
    "feddualavg_osp": fs.feddualavg_osp,
}


@pytest.mark.parametrize("name", FAMILY)
def test_without_regulariser_all_are_fedavg(name):
    task, timeline = quadratic_task(HESSIANS, CENTRES, 5), fs.timelines.cyclic(4, NUM_CLIENTS, 4, 5)

    def models(factory):
        def go(server_lr):
            setup = fs.Setup(task, timeline, jnp.asarray(START))
            return fs.run(factory(server_lr), setup, jax.random.key(0))[0].server.params

        return compiled(jax.vmap(go))(jnp.array([0.4, 1.0, 2.0]))

    expected = models(lambda server_lr: fs.fedavgm(0.2, server_lr, momentum=0.0))
    assert_close(models(lambda server_lr: FAMILY[name](0.2, NONE, server_lr)), expected, 1e-12)
    assert np.abs(expected - START).max() > 0.1


def test_theorem_4_3_is_false_for_fedmid():
    """Started at the optimum, without noise, it should stay: the bound is 0. OSP and duals do."""
    task = linear_task(np.array([[3.0], [-1.0]]), 1)
    positive = prox.composite(prox.Box(0.0))

    def visited(algorithm):
        probes = Probes(server={"model": lambda update: update.new_state.params})
        start = np.zeros(1)
        _, probed = state_after(algorithm, 3, 4, 1, clients=task, start=start, probes=probes)
        return np.ravel(probed["model"])

    small, eta = 1e-6, 0.25
    for factory in (fs.feddualavg, fs.fedmid_osp):
        assert_close(visited(factory(small * eta, positive, 1 / small)), np.zeros(3), 1e-12)
    # Only the second client moves, by eta / 2; then the mean slope 1 moves the model back by eta.
    moves = visited(fs.fedmid(small * eta, positive, 1 / small))
    assert_close(moves, [eta / 2, 0.0, eta / 2], 1e-9)  # rates a million apart lose digits


@pytest.mark.parametrize("name", FAMILY)
def test_scaling_loss_and_regulariser_against_the_rate(name):
    factory = FAMILY[name]
    base = final(factory(0.2, L1, 0.8), 5)
    scaled = quadratic_task(4 * HESSIANS, CENTRES, 5)
    other = factory(0.05, prox.composite(prox.L1(1.2)), 0.8)
    assert_close(final(other, 5, task=scaled), base, 1e-12)


@pytest.mark.parametrize("name", FAMILY)
def test_models_of_a_constraint_stay_inside(name):
    """The server's models after every round, also for rates that overshoot."""
    probes = Probes(server={"l1": lambda update: jnp.sum(jnp.abs(update.new_state.params))})
    algorithm = FAMILY[name](0.2, BALL, 1.5)
    clients = HESSIANS, CENTRES
    _, probed = state_after(algorithm, 6, 4, 5, clients=clients, start=START, probes=probes)
    assert np.max(probed["l1"]) <= 1 + 1e-12


# ---- FedAvg with subgradients


def test_fedavg_with_subgradients():
    x = network.start()
    chosen = np.zeros_like(x)
    chosen[KERNEL] = 0.4
    for visits in rounds():
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                moved = y - LR * network.gradient(y, weights)
                y = moved - LR * chosen * np.sign(y)
            models.append(y)
        x = x + SERVER_LR * (np.mean(models, axis=0) - x)
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    state = network.final(fs.fedavg_subgradient(LR, composite, SERVER_LR))
    assert_close(network.flat(state.server.params), x, TOLERANCE)


# ---- averages of FedDualAvg


@pytest.mark.slow
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

        return network.flat(compiled(go)(task, timeline).server.params)

    y, elapsed, steps, ends = network.start(), 0.0, [], []
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


@pytest.mark.parametrize(
    ("num_steps", "message"),
    [([[4, 4], [4, 3]], "num_steps is 3 in a visit; expected 4"), ([[2, 2], [2, 2]], "is 2 in a")],
    ids=["one is shorter", "all are shorter than max_steps"],
)
def test_refuses_visits_of_other_lengths(num_steps, message):
    """The average would count the last models of the shorter visits several times."""
    task = fs.empirical_task(network_losses, network_data(), fs.full_batch(4))
    timeline = fs.timelines.cyclic(2, len(SIZES), 2, 4)
    algorithm = fs.averaged_feddualavg(LR, prox.composite(prox.L1(0.4)))
    other = dataclasses.replace(timeline, num_steps=np.array(num_steps, np.int32))
    for fits in (timeline, dataclasses.replace(other, mask=other.num_steps == 4)):
        fs.init(algorithm, fs.Setup(task, fits, network_params()))
    with pytest.raises(ValueError, match=message):
        fs.init(algorithm, fs.Setup(task, other, network_params()))
