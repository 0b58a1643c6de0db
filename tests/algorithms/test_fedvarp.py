"""FedVARP against NumPy, and its rounds without the noise of participation."""

import dataclasses

import jax
import numpy as np
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, start, visits
from instance_q import FEDAVG, LR, assert_printed, models, setup, task
from small_problems import SIZES, assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision


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


def test_full_participation_is_fedavg():
    assert_close(models(fs.fedvarp(LR)), models(fs.fedavg(LR)), TOLERANCE)


def test_one_client_at_a_time_finds_the_limit_of_full_participation():
    """The paper's claim on instance Q; FedAvg oscillates."""
    alternating = fs.timelines.cyclic(800, 2, 1, task().num_steps)
    path = models(fs.fedvarp(LR), timeline=alternating)
    assert_printed(path[:3], "0.0", "0.83193", "0.9072113457")
    np.testing.assert_allclose(path[-2:], FEDAVG, atol=5e-11)
    assert_printed(models(fs.fedavg(LR), timeline=alternating)[-2:], "0.5453709519", "0.9235904959")


def test_refuses_lost_uploads():
    """The client would keep a displacement that the server's memory does not contain."""
    timeline = fs.timelines.full(2, 2, 5)
    for lost in (np.zeros((2, 2), bool), np.eye(2, dtype=bool)):
        given = setup(dataclasses.replace(timeline, lost=lost))
        if not lost.any():
            fs.init(fs.fedvarp(LR), given)
            continue
        with pytest.raises(ValueError, match="lost has 2 lost uploads; expected none: the server"):
            fs.init(fs.fedvarp(LR), given)


def test_refuses_unequal_weights():
    weighted = dataclasses.replace(setup(), weighting=fs.weight_by_examples)
    message = "weighting is weight_by_examples; expected uniform_weights: the server's memory"
    with pytest.raises(ValueError, match=message):
        fs.run(fs.fedvarp(LR), weighted, jax.random.key(0))
