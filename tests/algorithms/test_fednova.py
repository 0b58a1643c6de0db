"""FedNova against NumPy, its effective steps, and the bias that FedAvg has with unequal steps."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, model, trained
from derivations import flat, gradient, start, visits
from instance_q import LR, assert_printed, models, setup
from small_problems import assert_close

import fedjax_sim as fs
from fedjax_sim.algorithms.fednova import fednova

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision
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
def test_equal_steps_are_fedavg():
    assert_close(models(fednova(LR)), models(fs.fedavg(LR)), TOLERANCE)
    assert np.abs(model("fednova", server_lr=1, momentum=0, mu=0)["w"]).max() > 0


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
