"""Where members of the FedAvg family coincide, and closed forms on quadratics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import assert_close, compiled, quadratic_task, random_quadratics

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12

NUM_CLIENTS, DIM = 6, 3
HESSIANS, CENTRES = random_quadratics(NUM_CLIENTS, DIM)
START = np.array([1.0, -2.0, 0.5])


def final(algorithm, num_steps, num_rounds=3, cohort_size=4, task=None, start=START):
    """The model after the given rounds, cohorts in cyclic order."""
    task = quadratic_task(HESSIANS, CENTRES, num_steps) if task is None else task
    timeline = fs.timelines.cyclic(
        num_rounds, task.num_clients, min(cohort_size, task.num_clients), num_steps
    )

    @compiled
    def solve(task):
        key = jax.random.key(0)
        return fs.run(algorithm, fs.Setup(task, timeline, jnp.asarray(start)), key)[0].server.params

    return np.asarray(solve(task))


@pytest.mark.parametrize(
    ("one", "other", "num_steps"),
    [
        (fs.fedavg(0.2), fs.fedsgd(0.2), 1),
        (fs.fedprox(0.2, mu=0.0), fs.fedavg(0.2), 5),
        # The proximal gradient is 0 at the start of the visit.
        (fs.fedprox(0.2, mu=7.0), fs.fedavg(0.2), 1),
        (fs.fedavgm(0.2, momentum=0.0), fs.fedavg(0.2), 5),
        (fs.fedavg(lambda round: 0.2), fs.fedavg(0.2), 5),
    ],
    ids=["one_step", "no_proximal_term", "proximal_one_step", "no_momentum", "constant_schedule"],
)
def test_coincide(one, other, num_steps):
    expected = final(other, num_steps)
    assert_close(final(one, num_steps), expected, TOLERANCE)
    assert np.abs(expected - START).max() > 0.1


def test_proximal_term_matters_from_the_second_step():
    difference = final(fs.fedprox(0.2, mu=0.5), 2) - final(fs.fedavg(0.2), 2)
    assert np.abs(difference).max() > 1e-3


@pytest.mark.parametrize("algorithm", [fs.fedavg(0.2), fs.fedprox(0.2, mu=0.5), fs.fedavgm(0.2)])
def test_identical_clients_act_as_one(algorithm):
    def clients(count):
        return quadratic_task(
            np.repeat(HESSIANS[:1], count, axis=0), np.repeat(CENTRES[:1], count, axis=0), 5
        )

    expected = final(algorithm, 5, task=clients(1))
    assert_close(final(algorithm, 5, task=clients(NUM_CLIENTS)), expected, TOLERANCE)


def contractions(lr, num_steps):
    """[M, d, d]: (I - lr A_i)^K."""
    return np.linalg.matrix_power(np.eye(DIM) - lr * HESSIANS, num_steps)


def fixed_point(lr, num_steps):
    """Where FedAvg with gradient steps ends up, which is not where the objective is minimal."""
    left = np.eye(DIM) - contractions(lr, num_steps)
    return np.linalg.solve(left.sum(0), np.einsum("mij,mj->i", left, CENTRES))


def optimum():
    return np.linalg.solve(HESSIANS.sum(0), np.einsum("mij,mj->i", HESSIANS, CENTRES))


def test_trajectory_on_quadratics_is_affine():
    """x_t = z + P^t (x_0 - z) with P the mean contraction and z its fixed point."""
    lr, num_steps, num_rounds = 0.1, 5, 4
    end = fixed_point(lr, num_steps)
    power = np.linalg.matrix_power(contractions(lr, num_steps).mean(0), num_rounds)
    actual = final(fs.fedavg(lr), num_steps, num_rounds, NUM_CLIENTS)
    assert_close(actual, end + power @ (START - end), TOLERANCE)


def test_converges_to_a_point_that_is_not_the_optimum():
    lr, num_steps = 0.1, 20
    end = final(fs.fedavg(lr), num_steps, num_rounds=60, cohort_size=NUM_CLIENTS)
    # The slowest mode shrinks at least by 0.95^20 a round: to below 1e-20 after 60.
    assert_close(end, fixed_point(lr, num_steps), TOLERANCE)
    assert np.linalg.norm(end - optimum()) > 0.01


def test_many_local_steps_average_the_local_optima():
    end = final(fs.fedavg(0.5), num_steps=400, num_rounds=2, cohort_size=NUM_CLIENTS)
    # (1 - 0.5 * 0.5)^400 is below 1e-49.
    assert_close(end, CENTRES.mean(0), TOLERANCE)


def test_equal_hessians_have_no_drift():
    task = quadratic_task(np.repeat(HESSIANS[:1], NUM_CLIENTS, axis=0), CENTRES, 20)
    end = final(fs.fedavg(0.1), 20, num_rounds=60, cohort_size=NUM_CLIENTS, task=task)
    assert_close(end, CENTRES.mean(0), TOLERANCE)


def test_proximal_visits_solve_the_proximal_problem():
    """Many steps: x <- mean_i (A_i + mu I)^-1 (A_i b_i + mu x)."""
    mu = 0.8
    proximal = np.linalg.inv(HESSIANS + mu * np.eye(DIM))
    x = START
    for _ in range(3):
        linear = np.einsum("mij,mj->mi", HESSIANS, CENTRES) + mu * x
        x = np.einsum("mij,mj->mi", proximal, linear).mean(0)
    # The local error shrinks by 1 - 0.4 (0.5 + 0.8) or better a step: below 1e-60 after 200.
    actual = final(fs.fedprox(0.4, mu), num_steps=200, num_rounds=3, cohort_size=NUM_CLIENTS)
    assert_close(actual, x, TOLERANCE)


@pytest.mark.parametrize(
    "build",
    [fs.fedavg, fs.fedsgd, lambda lr: fs.fedprox(lr, mu=0.06 / lr), lambda lr: fs.fedavgm(lr)],
    ids=["fedavg", "fedsgd", "fedprox", "fedavgm"],
)
def test_scaled_objective_with_scaled_rate(build):
    """F -> 3 F with lr -> lr / 3 leaves the trajectory; a proximal weight scales with F."""
    scaled = final(build(0.1 / 3), 5, task=quadratic_task(3 * HESSIANS, CENTRES, 5))
    assert_close(scaled, final(build(0.1), 5), TOLERANCE)
