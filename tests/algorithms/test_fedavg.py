"""FedAvg and FedSGD: derivations, coincidences, and closed forms on quadratics."""

import derivations
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, current_timeline, model, task
from derivations import flat, gradient, start, visits
from quadratics import CENTRES, DIM, HESSIANS, NUM_CLIENTS, START, final, optimum, same_clients
from small_problems import (
    SIZES,
    assert_close,
    compiled,
    logistic_data,
    logistic_losses,
    logistic_params,
    quadratic_task,
    recorded_rounds,
    rotated,
)

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")


# Double precision, contractive maps: round-off does not accumulate.
TOLERANCE = 1e-12


def test_fedavg():
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2)
    assert_close(flat(model("fedavg")), expected, TOLERANCE)


def test_fedsgd():
    expected = derivations.fedsgd(gradient(), visits(), start(), 0.2)
    assert_close(flat(model("fedsgd")), expected, TOLERANCE)


def test_schedule_of_rates():
    decay = ALGORITHMS["fedavg_schedule"][1]["decay"]
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2 / (1 + decay * t))
    assert_close(flat(model("fedavg_schedule")), expected, TOLERANCE)
    assert_close(model("fedavg_schedule", decay=0.0), model("fedavg"), TOLERANCE)


def test_weights_by_examples():
    setup = fs.Setup(task(), current_timeline(), logistic_params(), weighting=fs.weight_by_examples)
    run = compiled(lambda setup: fs.run(fs.fedavg(0.2), setup, jax.random.key(2))[0])
    expected = derivations.fedavg(gradient(), visits(), start(), lambda t: 0.2, sizes=SIZES)
    assert_close(flat(run(setup).server.params), expected, TOLERANCE)


def test_one_client_is_plain_sgd():
    """M = 1: there is no averaging, rounds only group the steps."""
    data, batches = fs.from_clients([logistic_data().client(5)]), rotated(2)
    single = fs.empirical_task(logistic_losses, data, batches)
    timeline, key = fs.timelines.full(3, 1, single.num_steps), jax.random.key(4)
    setup = fs.Setup(single, timeline, logistic_params())
    run = compiled(lambda setup: fs.run(fs.fedavg(0.2), setup, key)[0])
    x, examples = start(), data.examples
    gradient = derivations.logistic_gradient(examples["x"], examples["y"])
    for [(_, steps)] in recorded_rounds(SIZES[5:6], batches, timeline, key):
        for weights in steps:
            x = x - 0.2 * gradient(x, weights)
    assert_close(flat(run(setup).server.params), x, TOLERANCE)


def test_one_client_in_every_round_is_sgd():
    """R visits of one client, K steps each, are one run of R K steps."""
    timeline = fs.timelines.single(4, NUM_CLIENTS, 3, client=2)
    setup = fs.Setup(quadratic_task(HESSIANS, CENTRES, 3), timeline, jnp.asarray(START))
    run = compiled(lambda setup: fs.run(fs.fedavg(0.1), setup, jax.random.key(0))[0])
    x = START
    for _ in range(12):
        x = x - 0.1 * HESSIANS[2] @ (x - CENTRES[2])
    assert_close(run(setup).server.params, x, TOLERANCE)


def test_refuses_a_client_that_does_not_exist():
    with pytest.raises(ValueError, match=r"client is 3; expected 0 \.\. 2"):
        fs.timelines.single(1, 3, 1, client=3)


def test_one_step_is_fedsgd():
    expected = final(fs.fedsgd(0.2), num_steps=1)
    assert_close(final(fs.fedavg(0.2), num_steps=1), expected, TOLERANCE)
    assert np.abs(expected - START).max() > 0.1


@pytest.mark.slow
def test_identical_clients_act_as_one():
    expected = final(fs.fedavg(0.2), clients=same_clients(1))
    assert_close(final(fs.fedavg(0.2), clients=same_clients(NUM_CLIENTS)), expected, TOLERANCE)


def contractions(lr, num_steps):
    """[M, d, d]: (I - lr A_i)^K."""
    return np.linalg.matrix_power(np.eye(DIM) - lr * HESSIANS, num_steps)


def fixed_point(lr, num_steps):
    """Fixed point of FedAvg with gradient steps, which differs from the minimiser."""
    left = np.eye(DIM) - contractions(lr, num_steps)
    return np.linalg.solve(left.sum(0), np.einsum("mij,mj->i", left, CENTRES))


@pytest.mark.slow
def test_trajectory_on_quadratics_is_affine():
    """x_t = z + P^t (x_0 - z) with P the mean contraction and z its fixed point."""
    lr, num_steps, num_rounds = 0.1, 5, 4
    end = fixed_point(lr, num_steps)
    power = np.linalg.matrix_power(contractions(lr, num_steps).mean(0), num_rounds)
    actual = final(fs.fedavg(lr), num_rounds, NUM_CLIENTS, num_steps)
    assert_close(actual, end + power @ (START - end), TOLERANCE)


def test_converges_to_a_point_that_is_not_the_optimum():
    lr, num_steps = 0.1, 20
    end = final(fs.fedavg(lr), 60, NUM_CLIENTS, num_steps)
    # The slowest mode shrinks at least by 0.95^20 per round: to below 1e-20 after 60.
    assert_close(end, fixed_point(lr, num_steps), TOLERANCE)
    assert np.linalg.norm(end - optimum()) > 0.01


def test_many_local_steps_average_the_local_optima():
    end = final(fs.fedavg(0.5), 2, NUM_CLIENTS, 400)
    # (1 - 0.5 * 0.5)^400 is below 1e-49.
    assert_close(end, CENTRES.mean(0), TOLERANCE)


def test_equal_hessians_have_no_drift():
    clients = np.repeat(HESSIANS[:1], NUM_CLIENTS, axis=0), CENTRES
    end = final(fs.fedavg(0.1), 60, NUM_CLIENTS, 20, clients=clients)
    assert_close(end, CENTRES.mean(0), TOLERANCE)


@pytest.mark.parametrize("build", [fs.fedavg, fs.fedsgd])
def test_scaled_objective_with_scaled_rate(build):
    """F -> 3 F with lr -> lr / 3 leaves the trajectory."""
    scaled = final(build(0.1 / 3), clients=(3 * HESSIANS, CENTRES))
    assert_close(scaled, final(build(0.1)), TOLERANCE)


@pytest.mark.parametrize("build", [fs.fedavg, fs.fedsgd, lambda lr, s: fs.fedprox(lr, 0.1, s)])
def test_refuses_a_number_as_server_optimizer(build):
    with pytest.raises(
        ValueError, match=r"server is 0\.7; expected an optax.GradientTransformation"
    ):
        build(0.1, 0.7)
