"""Mime, MimeLite and FedLin against NumPy, their limits, and their timelines."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import ALGORITHMS, current_timeline, paired_timeline, trained
from derivations import flat, gradient, start, visits, whole_data_weights
from instance_q import LR, OPTIMUM, A, assert_printed, final_state, models, setup, task
from small_problems import assert_close, assert_identical

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision, contractive maps


def followed(rounds, lr, momentum, corrected):
    """Model and momentum after rounds of local steps."""
    x, m = start(), np.zeros_like(start())
    for cohort in rounds:
        full = [gradient()(x, whole_data_weights()[client]) for client, _ in cohort]
        c, ends = np.mean(full, axis=0), []
        for _, batches in cohort:
            y = x
            for weights in batches:
                h = gradient()(y, weights)
                h = h - gradient()(x, weights) + c if corrected else h
                y = y - lr * ((1 - momentum) * h + momentum * m)
            ends.append(y)
        x, m = np.mean(ends, axis=0), (1 - momentum) * c + momentum * m
    return x, m


def test_mimelite():
    state = trained("mimelite", current_timeline()).server
    expected = followed(visits(), **ALGORITHMS["mimelite"][1], corrected=False)
    assert_close((flat(state.params), flat(state.opt_state[0].ema)), expected, TOLERANCE)


def test_mime():
    state = trained("mime").server
    rounds = visits(paired_timeline())[1::2]
    expected = followed(rounds, **ALGORITHMS["mime"][1], corrected=True)
    assert_close((flat(state.params), flat(state.opt_state[0].ema)), expected, TOLERANCE)


def pairs(rounds):
    problem = task()
    timeline = fs.timelines.full(rounds, problem.num_clients, problem.num_steps)
    return fs.timelines.repeat_rounds(timeline, 2)


@pytest.mark.slow
def test_mimelite_on_instance_q():
    path = models(fs.mimelite(LR), 600)
    assert_printed(path[:3], "0.0706329871", "0.1994126564", "0.3682114362")
    assert_printed(path[-1], "0.7492495152")


def test_mime_finds_the_optimum():
    """The paper's claim: neither the state nor the limit has the clients' drift."""
    path = models(fs.mime(LR), timeline=pairs(600))
    np.testing.assert_array_equal(path[2::2], path[1:-1:2])  # rounds of gradients
    assert_printed(path[1:6:2], "0.0720739562", "0.2020882660", "0.3717546998")
    np.testing.assert_allclose(path[-1], OPTIMUM, atol=1e-10)


def test_any_optimizer():
    """One step per visit on all clients: the centralised optimizer, whatever it is."""
    x, adam = np.zeros(1), optax.adam(1.0, 0.8, 0.9, eps=1e-2)
    m, v, path = 0.0, 0.0, []
    for t in range(1, 4):
        g = np.mean([1.0 * (x - 0), 3.0 * (x - 1)])
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        x = x - LR * m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.9**t)) + 1e-2)
        path.append(x[0])
    one_step = fs.timelines.repeat_rounds(fs.timelines.full(3, 2, 1), 2)
    actual = models(fs.mime(LR, optimizer=adam), timeline=one_step, num_steps=1)
    np.testing.assert_allclose(actual[1::2], path, rtol=1e-7)  # optax counts in float32


@pytest.mark.parametrize("algorithm", [fs.mime(LR), fs.fedlin(LR)], ids=["mime", "fedlin"])
def test_one_round_only_sends_gradients(algorithm):
    one = setup(fs.timelines.full(1, 2, 5))
    fs.init(algorithm, one)
    path = final_state(algorithm, one)[1]
    assert_identical(path[-1], one.params)


@pytest.mark.slow
def test_values_of_timelines_are_checked_before_compilation():
    """Inside of compiled programs the timeline has no values."""
    given = setup(fs.timelines.cyclic(4, 2, 1, task().num_steps))
    given = dataclasses.replace(given, params=given.params[None])
    keys = jax.random.split(jax.random.key(0), 1)
    for refused in (
        lambda: fs.simulate(fs.mime(LR), given, keys),
        lambda: fs.compare({"fedavg": fs.fedavg(LR), "mime": fs.mime(LR)}, given, keys),
        lambda: fs.sweep(fs.mime, given, {"lr": [LR]}, keys),
        lambda: fs.forecast(fs.mime(LR), given, keys),
    ):
        with pytest.raises(ValueError, match="rounds 0 and 1 of the timeline have different"):
            refused()


def quadratic(client, key, max_steps):
    """F(w) = (w - 2)^2 / 2 for all clients."""
    del client, key, max_steps
    return fs.Oracle(lambda w, k: w - 2, lambda w, k: (w - 2) ** 2 / 2, lambda w: w - 2)


def after_updates(algorithm, updates, in_pairs, steps=4):
    """Models after each server update on the quadratic, from 0."""
    problem = fs.Task(quadratic, num_examples=np.ones(2, int), num_steps=np.full(2, steps))
    timeline = fs.timelines.full(updates, 2, problem.num_steps)
    timeline = fs.timelines.repeat_rounds(timeline, 2) if in_pairs else timeline
    given = fs.Setup(problem, timeline, jnp.array(0.0), eval_fn=lambda w: {"w": w})
    _, history = fs.run(algorithm, given, jax.random.key(0))
    return np.asarray(history.metrics["w"])[in_pairs :: 1 + in_pairs]


def test_complete_optimizers_descend():
    """Four steps of rate 0.1 * 0.7 per update: the distance to 2 shrinks by (1 - 0.07)^4."""
    path = after_updates(fs.mimelite(0.1, optimizer=optax.sgd(0.7)), 3, in_pairs=False)
    np.testing.assert_allclose(path, 2 - 2 * 0.93 ** (4 * np.arange(1, 4)), rtol=1e-6)


@pytest.mark.parametrize(("rate", "inner"), [((0.1,), 1.0), ((), 0.1)])
def test_adam_is_that_of_fedjax(rate, inner):
    """FedJAX 0.0.17's Mime with adam(0.1) prints 0.40 and 0.79 here: lr multiplies the updates."""
    algorithm = fs.mime(*rate, optimizer=optax.adam(inner))
    path = after_updates(algorithm, 2, in_pairs=True)
    np.testing.assert_allclose(path, [0.40, 0.79], atol=0.005)


@pytest.mark.parametrize(
    ("form", "share"), [("ema", 0.1), pytest.param("trace", 1.0, marks=pytest.mark.slow)]
)
def test_forms_of_the_momentum(form, share):
    """U = V = share g + beta m: on equal clients Mime's local steps use the full gradient."""
    x, m, expected = 0.0, 0.0, []
    for _ in range(3):
        y = x
        for _ in range(4):
            y = y - 0.1 * (share * (y - 2) + 0.9 * m)
        m, x = share * (x - 2) + 0.9 * m, y
        expected.append(x)
    path = after_updates(fs.mime(0.1, 0.9, form=form), 3, in_pairs=True)
    np.testing.assert_allclose(path, expected, rtol=1e-6)
    if form == "trace":
        same = fs.mime(optimizer=optax.sgd(0.1, momentum=0.9))
        np.testing.assert_allclose(after_updates(same, 3, in_pairs=True), expected, rtol=1e-6)


def test_schedules_of_the_optimizer_count_updates():
    """The rate is 0.1 in all four steps of the first update, and 0 from the second on."""
    schedule = optax.piecewise_constant_schedule(0.1, {1: 0.0})
    path = after_updates(fs.mime(optimizer=optax.sgd(schedule)), 3, in_pairs=True)
    np.testing.assert_allclose(path, 2 - 2 * 0.9**4, rtol=1e-6)


# ---- FedLin


def test_fedlin():
    lr = ALGORITHMS["fedlin"][1]["lr"]
    x = start()
    for cohort in visits(paired_timeline())[1::2]:
        g = np.mean([gradient()(x, whole_data_weights()[i]) for i, _ in cohort], axis=0)
        ends = []
        for _, batches in cohort:
            y = x
            for weights in batches:
                change = gradient()(y, weights) - gradient()(x, weights)
                y = y - lr / len(batches) * (change + g)
            ends.append(y)
        x = np.mean(ends, axis=0)
    assert_close(flat(trained("fedlin").server.params), x, TOLERANCE)


def pairs_of(rounds, num_steps):
    return fs.timelines.repeat_rounds(fs.timelines.full(rounds, 2, np.array(num_steps)), 2)


@pytest.mark.slow
def test_unequal_steps_do_not_bias_the_limit():
    """The paper's claim: linear convergence to the optimum."""
    path = models(fs.fedlin(0.3), timeline=pairs_of(60, (1, 9)), num_steps=(1, 9))[1::2]
    assert_printed(path[:3], "0.3781448777", "0.5656316907", "0.6585889331")
    steps = np.array([1, 9])
    factor = 1 - A.mean() * np.mean((1 - (1 - 0.3 * A / steps) ** steps) / A)
    assert_printed(factor, "0.4958068297")
    errors = np.abs(path[:10] - OPTIMUM)
    np.testing.assert_allclose(errors[1:] / errors[:-1], factor, rtol=1e-9)
    np.testing.assert_allclose(path[-1], OPTIMUM, atol=1e-12)
