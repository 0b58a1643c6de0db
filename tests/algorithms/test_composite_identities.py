"""Where composite methods coincide with each other and with simpler ones, and what they solve."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from small_problems import assert_close, compiled, quadratic_task, random_quadratics

import fedjax_sim as fs
from fedjax_sim import prox
from fedjax_sim.engine import Probes

pytestmark = pytest.mark.usefixtures("x64")

# Double precision, a few dozen steps of maps that do not expand: round-off does not accumulate.
TOLERANCE = 1e-12

NUM_CLIENTS, DIM = 6, 4
HESSIANS, CENTRES = random_quadratics(NUM_CLIENTS, DIM, seed=3)
START = np.array([1.0, -2.0, 0.5, 0.0])
L1 = prox.composite(prox.L1(0.3))
BALL = prox.composite(prox.L1Ball(1.0))
NONE = prox.composite(prox.Zero())
FAMILY = {
    "fedmid": fs.fedmid,
    "fedmid_osp": fs.fedmid_osp,
    "feddualavg": fs.feddualavg,
    "feddualavg_osp": fs.feddualavg_osp,
}


def server(algorithm, num_steps, num_rounds=4, cohort_size=4, task=None, start=START):
    """The server's state after the given rounds, cohorts in cyclic order."""
    task = quadratic_task(HESSIANS, CENTRES, num_steps) if task is None else task
    timeline = fs.timelines.cyclic(
        num_rounds, task.num_clients, min(cohort_size, task.num_clients), num_steps
    )

    @compiled
    def solve(task):
        return fs.run(algorithm, fs.Setup(task, timeline, jnp.asarray(start)), jax.random.key(0))[
            0
        ].server

    return solve(task)


def final(*args, **kwargs):
    return np.asarray(server(*args, **kwargs).params)


@pytest.mark.parametrize("server_lr", [0.4, 1.0, 2.0])
@pytest.mark.parametrize("name", FAMILY)
def test_without_regulariser_all_are_fedavg(name, server_lr):
    expected = final(fs.fedavgm(0.2, server_lr, momentum=0.0), 5)
    assert_close(final(FAMILY[name](0.2, NONE, server_lr), 5), expected, TOLERANCE)
    assert np.abs(expected - START).max() > 0.1


def test_fedmid_under_a_constraint_is_parallel_projected_sgd():
    """Averages of feasible points are feasible: the server's projection has nothing to do."""
    with_prox = final(fs.fedmid(0.2, BALL), 5)
    assert_close(final(fs.fedmid(0.2, BALL, server_prox=False), 5), with_prox, TOLERANCE)
    assert np.abs(with_prox - final(fs.fedavg(0.2), 5)).max() > 0.1


def test_a_start_outside_the_constraint_is_projected_if_asked():
    composite = prox.composite(prox.L2Ball(1.0))
    projected = fs.fedmid(0.2, composite).init(jnp.asarray(START)).params
    assert_close(jnp.linalg.norm(projected), 1.0, TOLERANCE)
    raw = fs.fedmid(0.2, composite, project_start=False).init(jnp.asarray(START)).params
    assert_close(raw, START, 0.0)


def gradient(x, cohort):
    return np.mean([HESSIANS[i] @ (x - CENTRES[i]) for i in cohort], axis=0)


def soft(v, t):
    return np.sign(v) * np.maximum(np.abs(v) - t, 0)


def cohorts(num_rounds, size=4):
    return np.arange(num_rounds * size).reshape(num_rounds, size) % NUM_CLIENTS


def test_fedmid_osp_of_one_step_is_minibatch_proximal_gradient():
    x = START
    for cohort in cohorts(4):
        x = soft(x - 0.2 * gradient(x, cohort), 0.2 * 0.3)
    assert_close(final(fs.fedmid_osp(0.2, L1), 1), x, TOLERANCE)


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


def test_one_client_without_server_prox_is_proximal_gradient():
    task = quadratic_task(HESSIANS[:1], CENTRES[:1], 5)
    x = START
    for _ in range(4 * 5):
        x = soft(x - 0.2 * gradient(x, [0]), 0.2 * 0.3)
    assert_close(final(fs.fedmid(0.2, L1, server_prox=False), 5, task=task), x, TOLERANCE)


@pytest.mark.parametrize("composite", [L1, BALL], ids=["l1", "l1_ball"])
def test_dual_of_feddualavg_osp_is_fedavg(composite):
    state = server(fs.feddualavg_osp(0.2, composite, 0.7), 5)
    expected = final(fs.fedavgm(0.2, 0.7, momentum=0.0), 5)
    assert_close(state.dual, expected, TOLERANCE)
    elapsed = 4 * 0.7 * 0.2 * 5
    assert_close(state.params, composite.argmin(jnp.asarray(expected), elapsed), TOLERANCE)


def test_mean_dual_moves_by_the_mean_gradient_at_every_step():
    """Of FedDualAvg within a round; FedMiD's mean model does not."""
    algorithm = fs.feddualavg(0.2, L1)
    task = quadratic_task(HESSIANS, CENTRES, 5)

    def mean_dual(num_steps):
        timeline = fs.timelines.full(1, NUM_CLIENTS, num_steps)
        key = jax.random.key(0)
        state = fs.run(algorithm, fs.Setup(task, timeline, jnp.asarray(START)), key)[0]
        return np.asarray(state.server.dual)

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


def scalar_problem(algorithm, num_rounds):
    """The limit on f(x) = (x - 3)^2 / 2 with psi = |x| / 2, five local steps."""
    task = quadratic_task(np.ones((1, 1, 1)), np.full((1, 1), 3.0), 5)
    return final(algorithm, 5, num_rounds, task=task, start=np.zeros(1))[0]


HALF = prox.composite(prox.L1(0.5))


def test_feddualavg_solves_the_regularised_problem():
    assert abs(scalar_problem(fs.feddualavg(0.1, HALF), 500) - 2.5) < 1e-9


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


def linear_task(slopes, num_steps):
    """f_i(x) = <g_i, x>."""

    def oracle(slopes, client, key, max_steps):
        del key, max_steps
        g = slopes[client]
        return fs.Oracle(lambda x, k: g + 0 * x, lambda x, k: g @ x, lambda x: g + 0 * x)

    count = len(slopes)
    steps = np.full(count, num_steps, np.int32)
    return fs.Task(Partial(oracle, jnp.asarray(slopes)), np.ones(count, np.int32), steps)


def test_feddualavg_is_exact_on_linear_losses():
    """However many local steps: as if all clients spoke after each of them. FedMiD is not."""
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


def test_theorem_4_3_is_false_for_fedmid():
    """Started at the optimum, without noise, it should stay: the bound is 0. OSP and duals do."""
    task = linear_task(np.array([[3.0], [-1.0]]), 1)
    positive = prox.composite(prox.Box(0.0))

    def visited(algorithm):
        found = [final(algorithm, 1, r, task=task, start=np.zeros(1)) for r in (1, 2, 3)]
        return np.concatenate(found)

    small, eta = 1e-6, 0.25
    for factory in (fs.feddualavg, fs.fedmid_osp):
        assert_close(visited(factory(small * eta, positive, 1 / small)), np.zeros(3), TOLERANCE)
    # Only the second client moves, by eta / 2; then the mean slope 1 moves the model back by eta.
    moves = visited(fs.fedmid(small * eta, positive, 1 / small))
    assert_close(moves, [eta / 2, 0.0, eta / 2], 1e-9)  # rates a million apart lose digits


@pytest.mark.parametrize("name", FAMILY)
def test_scaling_loss_and_regulariser_against_the_rate(name):
    factory = FAMILY[name]
    base = final(factory(0.2, L1, 0.8), 5)
    scaled = quadratic_task(4 * HESSIANS, CENTRES, 5)
    other = factory(0.05, prox.composite(prox.L1(1.2)), 0.8)
    assert_close(final(other, 5, task=scaled), base, TOLERANCE)


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


def test_feddualavg_with_entropy_is_exponentiated_gradient():
    task = quadratic_task(HESSIANS[:1], CENTRES[:1], 5)
    positive = np.array([0.4, 0.3, 0.2, 0.1])
    simplex = prox.composite(prox.Simplex(), prox.Entropy())
    x = positive
    for _ in range(20):
        x = x * np.exp(-0.2 * gradient(x, [0]))
        x = x / x.sum()
    assert_close(final(fs.feddualavg(0.2, simplex), 5, task=task, start=positive), x, TOLERANCE)


@pytest.mark.parametrize("name", FAMILY)
def test_models_of_a_constraint_stay_inside(name):
    """What the server shows after every round, also for rates that overshoot."""
    task = quadratic_task(HESSIANS, CENTRES, 5)
    timeline = fs.timelines.cyclic(6, NUM_CLIENTS, 4, 5)
    probes = Probes(server={"l1": lambda update: jnp.sum(jnp.abs(update.new_state.params))})
    algorithm = FAMILY[name](0.2, BALL, 1.5)
    _, history = fs.run(
        algorithm, fs.Setup(task, timeline, jnp.asarray(START)), jax.random.key(0), probes=probes
    )
    assert np.max(history.probes["l1"]) <= 1 + TOLERANCE


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fs.fedmid(0.1, L1, delta_space="both"), "delta_space is 'both'"),
        (lambda: fs.fedavg_subgradient(0.1, L1, order="before"), "order is 'before'"),
        (lambda: fs.fedavg_subgradient(0.1, BALL), "expected a penalty"),
        (
            lambda: fs.fedavg_subgradient(0.1, prox.composite(prox.L1(0.1), prox.PNorm(1.5))),
            "expected Euclidean",
        ),
        (
            lambda: fs.fedmid(0.1, prox.composite(prox.Nuclear(0.1), prox.PNorm(1.5))).init(
                jnp.ones((2, 2))
            ),
            "psi is Nuclear, mirror PNorm",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(ValueError, match=message):
        make()
