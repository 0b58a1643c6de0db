"""FedMiD and its server-only form: derivation, coincidences, the problem that they solve."""

import jax.numpy as jnp
import network
import numpy as np
import pytest
from composite_problems import (
    BALL,
    CENTRES,
    HALF,
    HESSIANS,
    L1,
    LR,
    REGULARIZERS,
    SERVER_LR,
    START,
    cohorts,
    final,
    gradient,
    l1,
    on_kernel,
    scalar_problem,
    shares,
    soft,
)
from network import rounds
from small_problems import assert_close, quadratic_task

import fedjax_sim as fs
from fedjax_sim import prox

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


def derived_fedmid(proximal, local_prox=True, server_prox=True, weight_by_examples=False):
    P = on_kernel(proximal)
    x = P(network.start(), 0.0)
    for visits in rounds():
        w = shares(visits, weight_by_examples)
        models = []
        for _, batches in visits:
            y = x
            for weights in batches:
                y = y - LR * network.gradient(y, weights)
                y = P(y, LR) if local_prox else y
            models.append(y)
        weight = SERVER_LR * w @ [LR * len(batches) for _, batches in visits]
        x = x + SERVER_LR * (w @ np.array(models) - x)
        x = P(x, weight) if server_prox else x
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
    assert_close(network.flat(state.server.params), derived_fedmid(proximal, **options), TOLERANCE)


def test_weights_by_examples_reach_the_regularisers_weight():
    """Ragged clients: the mean of the clients' rates is weighted as their changes are."""
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    state = network.final(fs.fedmid(LR, composite, SERVER_LR), weighting=fs.weight_by_examples)
    derived = derived_fedmid(l1, weight_by_examples=True)
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


def test_fedmid_osp_of_one_step_is_minibatch_proximal_gradient():
    x = START
    for cohort in cohorts(4):
        x = soft(x - 0.2 * gradient(x, cohort), 0.2 * 0.3)
    assert_close(final(fs.fedmid_osp(0.2, L1), 1), x, TOLERANCE)


def test_one_client_without_server_prox_is_proximal_gradient():
    task = quadratic_task(HESSIANS[:1], CENTRES[:1], 5)
    x = START
    for _ in range(4 * 5):
        x = soft(x - 0.2 * gradient(x, [0]), 0.2 * 0.3)
    assert_close(final(fs.fedmid(0.2, L1, server_prox=False), 5, task=task), x, TOLERANCE)


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


@pytest.mark.parametrize("factory", [fs.fedmid, fs.fedmid_osp])
def test_refuses_other_spaces(factory):
    with pytest.raises(ValueError, match="delta_space is 'both'; expected 'primal' or 'dual'"):
        factory(0.1, L1, delta_space="both")


def test_refuses_pairs_without_a_closed_form():
    algorithm = fs.fedmid(0.1, prox.composite(prox.Nuclear(0.1), prox.PNorm(1.5)))
    with pytest.raises(ValueError, match="psi is Nuclear, mirror PNorm"):
        algorithm.init(jnp.ones((2, 2)))
