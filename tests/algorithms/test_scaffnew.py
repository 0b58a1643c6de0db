"""Scaffnew against NumPy, its Lyapunov function, its rate, and where it is SCAFFOLD."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from catalogue import ALGORITHMS, full_timeline, trained
from derivations import flat, gradient, start, visits
from instance_q import LR, OPTIMUM, A, B, assert_printed, models, setup
from small_problems import SIZES, assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision


def test_scaffnew():
    lr, p = ALGORITHMS["scaffnew"][1].values()
    x = start()
    controls = np.zeros((len(SIZES), len(x)))
    for cohort in visits(full_timeline()):
        models = np.empty_like(controls)
        for client, batches in cohort:
            y = x
            for weights in batches:
                y = y - lr * (gradient()(y, weights) - controls[client])
            models[client] = y
        x = models.mean(0)
        next_controls = controls + p / lr * (x - models)
        last, controls = controls, next_controls
    state = trained("scaffnew")
    assert_close(flat(state.server.params), x, TOLERANCE)
    # Clients correct their controls at the next visit, by the model that they receive then.
    assert_close(flat(state.clients.control), last, TOLERANCE)
    assert_close(flat(state.clients.sent), models, TOLERANCE)


def steps_of(lr, p, coins):
    """ProxSkip on instance Q, step by step: models, controls and Psi after the coins.

    ``lr`` may be an array with the rate of every step.
    """
    y, h = np.zeros(2), np.zeros(2)
    for rate, communicates in np.broadcast(lr, coins):
        moved = y - rate * (A * (y - B) - h)
        y = np.full(2, moved.mean()) if communicates else moved
        h = h + p / rate * (y - moved)
    best = A * (OPTIMUM - B)
    return y, h, np.sum((y - OPTIMUM) ** 2) + (lr / p) ** 2 * np.sum((h - best) ** 2)


def test_lyapunov_function():
    """The paper's claim: it contracts by 1 - min(lr mu, p^2) per step in expectation."""
    lr, p = 1 / 3, 3**-0.5
    expected = sum(
        p ** sum(coins) * (1 - p) ** (6 - sum(coins)) * steps_of(lr, p, coins)[2]
        for coins in itertools.product((0, 1), repeat=6)
    )
    psi = steps_of(lr, p, ())[2]
    assert_printed(psi, "1.5")
    assert_printed(expected, "0.0122944292")
    assert expected <= (1 - min(lr * A.min(), p**2)) ** 6 * psi


def test_rounds_are_the_steps_between_communications():
    lr, p, counts = 1 / 3, 0.4, [3, 1, 4, 2]
    coins = [k == count - 1 for count in counts for k in range(count)]
    timeline = fs.timelines.full(4, 2, 4)
    steps = jnp.broadcast_to(jnp.array(counts, jnp.int32)[:, None], (4, 2))
    path = models(fs.scaffnew(lr, p), timeline=dataclasses.replace(timeline, num_steps=steps))
    np.testing.assert_allclose(path[-1], steps_of(lr, p, coins)[0][0], rtol=1e-12)


def test_schedule_of_rates():
    """The control changes by p / eta with the rate of the steps that it corrects."""
    rates, p, num_steps = [0.3, 0.1, 0.05, 0.2], 0.4, 3
    path = models(fs.scaffnew(lambda round: jnp.array(rates)[round], p), 4, num_steps=num_steps)
    for t in range(4):
        coins = [k == num_steps - 1 for _ in range(t + 1) for k in range(num_steps)]
        expected = steps_of(np.repeat(rates[: t + 1], num_steps), p, coins)[0][0]
        np.testing.assert_allclose(path[t], expected, rtol=1e-12)


@pytest.mark.slow
def test_fixed_steps_are_scaffold():
    path = models(fs.scaffnew(LR, 1 / 5))
    assert_printed(path, "0.415965", "0.6287227782", "0.7150249370")
    assert_close(path, models(fs.scaffold(LR)), TOLERANCE)


def test_communication_after_every_step_is_gradient_descent():
    path = models(fs.scaffnew(LR, 1.0), num_steps=1)
    x, expected = 0.0, []
    for _ in path:
        x = x - LR * np.mean(A * (x - B))
        expected.append(x)
    assert_close(path, np.array(expected), TOLERANCE)


@pytest.mark.slow
def test_local_steps_save_communication():
    """Rounds to a relative error of 1e-6 with diagonal Hessians of condition 100."""
    hessians = np.array([[1, 0.01, 0.3], [0.8, 0.02, 0.01]])
    centres = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 2.0]])
    best = (hessians * centres).sum(0) / hessians.sum(0)
    for num_steps, expected in [(1, 910), (10, 108)]:
        path = models(
            fs.scaffnew(1.0, 1 / num_steps),
            expected + 5,
            clients=(hessians, centres),
            num_steps=num_steps,
        )
        errors = np.linalg.norm(path - best, axis=1) / np.linalg.norm(best)
        assert np.argmax(errors < 1e-6) + 1 == expected


@pytest.mark.slow
def test_refuses_other_timelines():
    algorithm = fs.scaffnew(LR, 0.2)
    for timeline, num_steps, message in [
        (fs.timelines.cyclic(4, 2, 1, 5), 5, "a round of the timeline has 1 of 2 clients"),
        (
            dataclasses.replace(
                fs.timelines.full(2, 2, 5), lost=np.array([[False] * 2, [True] * 2])
            ),
            5,
            "a round of the timeline has 0 of 2 clients",
        ),
        (None, (1, 9), "visits of 1 to 9 steps; expected the same number"),
    ]:
        with pytest.raises(ValueError, match=message):
            fs.run(algorithm, setup(timeline, num_steps=num_steps), jax.random.key(0))
