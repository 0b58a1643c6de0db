"""FedCM, FedExP, FedNova and FedVARP against NumPy, and the claims on instance Q."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, start, visits
from instance_q import FEDAVG, LR, assert_printed, models, setup, task
from small_problems import SIZES, assert_close

import fedjax_sim as fs
from fedjax_sim.algorithms.fednova import fednova

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision, contractive maps

# ---- FedCM


def test_fedcm():
    lr, server_lr, mix = ALGORITHMS["fedcm"][1].values()
    x, direction = start(), np.zeros_like(start())
    for cohort in visits():
        deltas, directions = [], []
        for _, batches in cohort:
            y = x
            for weights in batches:
                y = y - lr * (mix * gradient()(y, weights) + (1 - mix) * direction)
            deltas.append(x - y)
            directions.append((x - y) / (len(batches) * lr))
        x, direction = x - server_lr * np.mean(deltas, axis=0), np.mean(directions, axis=0)
    state = trained("fedcm").server
    assert_close((flat(state.params), flat(state.direction)), (x, direction), TOLERANCE)


def test_drift_is_that_of_a_smaller_rate():
    """The limit on instance Q is FedAvg's with the rate mix * lr."""
    path = models(fs.fedcm(LR), 600)
    assert_printed(path[:3], "0.0706329871", "0.1956356817", "0.3557695534")
    assert_printed(path[-1], "0.7424269505")
    assert_printed(models(fs.fedavg(0.1 * LR), 600)[-1], "0.7424269505")


# ---- FedExP


@pytest.mark.parametrize("name", ["fedexp", pytest.param("fedexp_average", marks=pytest.mark.slow)])
def test_fedexp(name):
    values = ALGORITHMS[name][1]
    x, steps = start(), []
    for cohort in visits():
        deltas = []
        for _, batches in cohort:
            y = x
            for weights in batches:
                y = y - values["lr"] * gradient()(y, weights)
            deltas.append(x - y)
        mean = np.mean(deltas, axis=0)
        ratio = np.mean([d @ d for d in deltas]) / (2 * (mean @ mean + values["eps"]))
        steps.append(max(1.0, ratio))
        last, x = x, x - steps[-1] * mean
    assert max(steps) > 1
    expected = (last + x) / 2 if name == "fedexp_average" else x
    assert_close(flat(trained(name).server.params), expected, TOLERANCE)


def test_orthogonal_equal_displacements():
    """The paper's claim: the step is M / 2, and interpolating problems are solved faster."""
    unit = {"clients": (np.eye(4), np.zeros((4, 4))), "num_steps": 2, "start": 1.0}
    exact = (1 - 2 * 0.75 / 4) ** 10
    path = models(fs.fedexp(0.5, eps=0.0), 10, **unit)
    assert_printed(path[-1], *["0.0090949470"] * 4)
    np.testing.assert_allclose(path[-1], exact, rtol=1e-12)
    assert_printed(models(fs.fedavg(0.5), 10, **unit)[-1], *["0.1253815679"] * 4)


def test_instance_q_does_not_converge():
    """The mean displacement vanishes at FedAvg's limit, the single ones do not."""
    path = models(fs.fedexp(LR), 200)
    assert_printed(path[:3], "0.415965", "0.819809", "0.493823")
    assert np.abs(np.diff(path[-50:])).max() > 0.1


@pytest.mark.slow
def test_eps_may_be_a_schedule():
    decaying = fs.local.exponential_decay(1e-3, 0.5)
    path = models(fs.fedexp(LR, eps=decaying))
    assert_close(path[0], models(fs.fedexp(LR, eps=1e-3))[0], TOLERANCE)
    assert abs(path[2] - models(fs.fedexp(LR, eps=1e-3))[2]) > 1e-6


# ---- FedNova


UNEQUAL = {"num_steps": (1, 9)}


def test_fednova():
    """Momentum and a proximal term at once: the coefficients are followed one by one."""
    lr, server_lr, momentum, mu = ALGORITHMS["fednova"][1].values()
    x = start()
    for cohort in visits():
        changes, steps = [], []
        for _, batches in cohort:
            y, velocity = x, np.zeros_like(x)
            velocity_terms, terms = np.zeros(len(batches)), np.zeros(len(batches))
            for k, weights in enumerate(batches):
                velocity = momentum * velocity + gradient()(y, weights)
                velocity_terms = momentum * velocity_terms + (np.arange(len(batches)) == k)
                y = y - lr * (velocity + mu * (y - x))
                terms = (1 - lr * mu) * terms + velocity_terms
            changes.append((x - y) / terms.sum())
            steps.append(len(batches))
        x = x - server_lr * np.mean(steps) * np.mean(changes, axis=0)
    assert_close(flat(trained("fednova").server.params), x, TOLERANCE)


def test_only_visits_that_arrive_with_steps_count():
    """Client 1 takes no steps, the upload of client 3 is lost: the means are over 0 and 2."""
    a, b = np.array([1.0, 2.0, 3.0, 0.5]), np.array([2.0, -1.0, 1.0, 5.0])
    momentum, num_steps = 0.9, np.array([1, 0, 4, 2])
    timeline = dataclasses.replace(
        fs.timelines.full(1, 4, num_steps), lost=np.array([[False, False, False, True]])
    )
    changes, steps = [], []
    for client in (0, 2):
        y, velocity, total, newest = 0.0, 0.0, 0.0, 0.0
        for _ in range(num_steps[client]):
            velocity = momentum * velocity + a[client] * (y - b[client])
            newest = 1 + momentum * newest
            y, total = y - LR * velocity, total + newest
        changes.append(y / total)
        steps.append(total)
    actual = models(
        fednova(LR, momentum=momentum), timeline=timeline, clients=(a, b), num_steps=num_steps
    )
    np.testing.assert_allclose(actual, [np.mean(steps) * np.mean(changes)], rtol=TOLERANCE)


def effective(num_steps, **hyper):
    """A of a visit: a constant gradient of 1 moves the model by the rate times A."""
    problem = setup(clients=([0.0], [0.0]), num_steps=num_steps)
    zero, one = jnp.array(0), jnp.array(1)
    work = fs.Work(zero, zero, jnp.array(num_steps), one, zero, one, num_steps)
    ones = fs.Oracle(lambda y, k: y * 0 + 1, lambda y, k: y.sum(), lambda y: y * 0 + 1)
    upload, _ = fednova(LR, **hyper).local(problem.params, (), ones, work)
    # x - y is A times the rate only without the proximal term, which moves y back.
    return float(upload.effective_steps), float(upload.normalised[0])


def test_effective_steps():
    assert effective(5) == pytest.approx((5, LR))
    assert_printed(effective(5, momentum=0.9)[0], "13.1441")
    # With the proximal term the mean of the steps counts, and A divides the displacement.
    steps, change = effective(5, mu=2.0)
    assert steps == 5
    assert change == pytest.approx(LR)


@pytest.mark.slow
def test_unequal_steps_on_instance_q():
    nova = models(fednova(LR), 400, **UNEQUAL)
    assert_printed(nova[0], "0.2665684425")
    assert_printed(nova[-1], "0.5160370254")
    # sum (1 - r_i) b_i / sum (1 - r_i) with r_i = (1 - lr a_i)^K_i; the last digit is rounded.
    assert_printed(models(fs.fedavg(LR), 400, **UNEQUAL)[-1], "0.9056288960")
    assert_printed((1 - 0.7**9) / (1 - 0.9 + 1 - 0.7**9), "0.9056288960")


def test_unequal_steps_do_not_bias_the_limit():
    """The paper's claim, to first order in the rate: the optimum is 0.5."""
    same = {"clients": ([1.0, 1.0], [0.0, 1.0]), **UNEQUAL}
    assert_printed(models(fs.fedavg(0.001), 6000, **same)[-1], "0.8996395")
    assert_printed(models(fednova(0.001), 6000, **same)[-1], "0.4990003")


# ---- FedVARP


def test_fedvarp():
    lr, server_lr = ALGORITHMS["fedvarp"][1].values()
    x = start()
    memory = np.zeros((len(SIZES), len(x)))
    for cohort in visits():
        before, changes = memory.mean(0), []
        for client, batches in cohort:
            y = x
            for weights in batches:
                y = y - lr * gradient()(y, weights)
            changes.append(x - y - memory[client])
            memory[client] = x - y
        x = x - server_lr * (before + np.mean(changes, axis=0))
    state = trained("fedvarp")
    assert_close(flat(state.server.params), x, TOLERANCE)
    assert_close(flat(state.clients), memory, TOLERANCE)
    assert_close(flat(state.server.memory), memory.mean(0), TOLERANCE)


def test_one_client_at_a_time_finds_the_limit_of_full_participation():
    """The paper's claim on instance Q; FedAvg oscillates."""
    alternating = fs.timelines.cyclic(800, 2, 1, task().num_steps)
    path = models(fs.fedvarp(LR), timeline=alternating)
    assert_printed(path[:3], "0.0", "0.83193", "0.9072113457")
    np.testing.assert_allclose(path[-2:], FEDAVG, atol=5e-11)
    assert_printed(models(fs.fedavg(LR), timeline=alternating)[-2:], "0.5453709519", "0.9235904959")
