"""FedDualAvg and its server-only form: derivation, coincidences, limits."""

import dataclasses

import jax
import jax.numpy as jnp
import network
import numpy as np
import pytest
from composite_problems import (
    BALL,
    CENTRES,
    DIM,
    HALF,
    HESSIANS,
    L1,
    LR,
    NUM_CLIENTS,
    REGULARIZERS,
    SERVER_LR,
    START,
    cohorts,
    final,
    gradient,
    l1,
    linear_task,
    on_kernel,
    scalar_problem,
    server,
    shares,
    soft,
)
from network import rounds
from small_problems import assert_close, compiled, quadratic_task

import fedjax_sim as fs
from fedjax_sim import prox

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def derived_feddualavg(proximal, local_prox=True, weight_by_examples=False, project=True):
    P = on_kernel(proximal)
    y, elapsed = P(network.start(), 0.0) if project else network.start(), 0.0
    for visits in rounds():
        w = shares(visits, weight_by_examples)
        duals = []
        for _, batches in visits:
            z, t = y, elapsed
            for weights in batches:
                z = z - LR * network.gradient(P(z, t) if local_prox else z, weights)
                t = t + LR
            duals.append(z)
        y = y + SERVER_LR * (w @ np.array(duals) - y)
        elapsed = elapsed + SERVER_LR * w @ [LR * len(batches) for _, batches in visits]
    return P(y, elapsed), y, elapsed


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
    x, y, elapsed = derived_feddualavg(proximal, local_prox, project=project)
    assert_close(network.flat(state.server.params), x, TOLERANCE)
    assert_close(network.flat(state.server.dual), y, TOLERANCE)
    assert_close(state.server.elapsed, elapsed, TOLERANCE)


def test_weights_by_examples_reach_the_regularisers_weight():
    """Ragged clients: the mean of the clients' rates is weighted as their changes are."""
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    algorithm = fs.feddualavg(LR, composite, SERVER_LR)
    state = network.final(algorithm, weighting=fs.weight_by_examples)
    derived = derived_feddualavg(l1, weight_by_examples=True)[0]
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


def test_feddualavg_of_one_step_is_dual_averaging():
    y = START
    for t, cohort in enumerate(cohorts(4)):
        y = y - 0.2 * gradient(soft(y, 0.2 * t * 0.3), cohort)
    state = server(fs.feddualavg(0.2, L1), 1)
    assert_close(state.dual, y, TOLERANCE)
    assert_close(state.params, soft(y, 0.2 * 4 * 0.3), TOLERANCE)


@pytest.mark.parametrize("same", [1, 3], ids=["one_client", "identical_clients"])
def test_feddualavg_of_identical_clients_is_dual_averaging(same):
    task = quadratic_task(np.repeat(HESSIANS[:1], same, 0), np.repeat(CENTRES[:1], same, 0), 5)
    y = START
    for t in range(4 * 5):
        y = y - 0.2 * gradient(soft(y, 0.2 * t * 0.3), [0])
    assert_close(server(fs.feddualavg(0.2, L1), 5, task=task).dual, y, TOLERANCE)


@pytest.mark.parametrize("composite", [L1, BALL], ids=["l1", "l1_ball"])
def test_dual_of_feddualavg_osp_is_fedavg(composite):
    state = server(fs.feddualavg_osp(0.2, composite, 0.7, project_start=False), 5)
    expected = final(fs.fedavgm(0.2, 0.7, momentum=0.0), 5)
    assert_close(state.dual, expected, TOLERANCE)
    elapsed = 4 * 0.7 * 0.2 * 5
    assert_close(state.params, composite.argmin(jnp.asarray(expected), elapsed), TOLERANCE)


def test_mean_dual_moves_by_the_mean_gradient_at_every_step():
    """Within a round; FedMiD's mean model does not."""
    algorithm = fs.feddualavg(0.2, L1)
    task, timeline = quadratic_task(HESSIANS, CENTRES, 5), fs.timelines.full(1, NUM_CLIENTS, 5)

    @compiled
    def mean_dual(num_steps):
        visits = dataclasses.replace(
            timeline, num_steps=jnp.full_like(timeline.num_steps, num_steps)
        )
        setup = fs.Setup(task, visits, jnp.asarray(START))
        return fs.run(algorithm, setup, jax.random.key(0))[0].server.dual

    duals = np.tile(START, (NUM_CLIENTS, 1))
    for k in range(4):
        gradients = np.array(
            [
                h @ (soft(y, 0.2 * k * 0.3) - c)
                for h, c, y in zip(HESSIANS, CENTRES, duals, strict=True)
            ]
        )
        expected = mean_dual(k) - 0.2 * gradients.mean(0)
        assert_close(mean_dual(k + 1), expected, TOLERANCE)
        duals = duals - 0.2 * gradients


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
