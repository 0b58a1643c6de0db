"""Mime and MimeLite against NumPy, their limits, and cohorts of two rounds."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from catalogue import ALGORITHMS, current_timeline, paired_timeline, trained
from derivations import flat, gradient, start, visits, whole_data_weights
from instance_q import LR, OPTIMUM, assert_printed, final_state, models, setup, task
from small_problems import assert_close, assert_identical

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision


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


@pytest.mark.slow
def test_without_momentum():
    """MimeLite is FedAvg, and Mime's first steps are at the mean gradient."""
    assert_close(models(fs.mimelite(LR, momentum=0.0)), models(fs.fedavg(LR)), TOLERANCE)


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


@pytest.mark.parametrize("algorithm", [fs.mime(LR), fs.fedlin(LR)])
def test_refuses_a_cohort_of_one_round(algorithm):
    alternating = setup(fs.timelines.cyclic(4, 2, 1, task().num_steps))
    message = "rounds 0 and 1 of the timeline have different cohorts; expected two rounds"
    with pytest.raises(ValueError, match=message):
        fs.run(algorithm, alternating, jax.random.key(0))


def test_refuses_steps_without_a_gradient():
    """If all gradients are lost, the server has the mean gradient at an older model."""
    full = fs.timelines.full(4, 2, task().num_steps)
    for row, lost in [(2, [True, False]), (3, [True, True])]:
        fs.init(fs.mime(LR), setup(with_lost(full, row, lost)))
    with pytest.raises(
        ValueError, match="round 2 of the timeline loses all uploads; expected at l"
    ):
        fs.init(fs.mime(LR), setup(with_lost(full, 2, [True, True])))


@pytest.mark.parametrize("algorithm", [fs.mime(LR), fs.fedlin(LR)], ids=["mime", "fedlin"])
def test_one_round_only_sends_gradients(algorithm):
    one = setup(fs.timelines.full(1, 2, 5))
    fs.init(algorithm, one)
    path = final_state(algorithm, one)[1]
    assert_identical(path[-1], one.params)


def with_lost(timeline, row, lost) -> fs.Timeline:
    """Loses uploads of one round."""
    none = np.zeros(timeline.mask.shape, bool)
    none[row] = lost
    return dataclasses.replace(timeline, lost=none)


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


def test_refuses_what_is_not_an_optimizer():
    with pytest.raises(ValueError, match=r"optimizer is 0.9; expected an optax"):
        fs.mime(LR, optimizer=0.9)  # pyright: ignore[reportArgumentType]
