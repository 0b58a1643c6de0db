"""Averages over steps and over rounds of FedDualAvg against NumPy."""

import dataclasses

import jax
import network
import numpy as np
import pytest
from composite_problems import LR, l1, on_kernel
from network import full_gradient, network_data, network_losses, network_params
from small_problems import SIZES, assert_close, compiled

import fedjax_sim as fs
from fedjax_sim import prox

pytestmark = pytest.mark.usefixtures("x64")


# In double precision and over three rounds of at most ten steps, round-off stays digits below.
TOLERANCE = 1e-11


@pytest.mark.slow
def test_averages_over_rounds_and_over_steps():
    """Full batches, so that all visits are equally long."""
    composite = prox.composite(prox.L1(0.4), where=prox.kernels)
    P = on_kernel(l1)
    num_clients, num_steps = len(SIZES), 4
    data = network_data()
    task = fs.empirical_task(network_losses, data, fs.full_batch(num_steps))
    timeline = fs.timelines.full(3, num_clients, num_steps)

    def run(algorithm):
        def go(task, timeline):
            return fs.run(algorithm, fs.Setup(task, timeline, network_params()), jax.random.key(0))[
                0
            ]

        return network.flat(compiled(go)(task, timeline).server.params)

    y, elapsed, steps, ends = network.start(), 0.0, [], []
    for _ in range(3):
        duals = np.tile(y, (num_clients, 1))
        for _ in range(num_steps):
            moves = [full_gradient(P(z, elapsed), i) for i, z in enumerate(duals)]
            duals = duals - LR * np.array(moves)
            elapsed += LR
            steps.append(P(duals.mean(0), elapsed))
        y = duals.mean(0)
        ends.append(P(y, elapsed))
    over_steps = run(fs.averaged_feddualavg(LR, composite))
    assert_close(over_steps, np.mean(steps, axis=0), TOLERANCE)
    over_rounds = run(fs.average_rounds(fs.feddualavg(LR, composite)))
    assert_close(over_rounds, np.mean(ends, axis=0), TOLERANCE)
    assert np.abs(over_steps - over_rounds).max() > 1e-3


@pytest.mark.parametrize(
    ("num_steps", "message"),
    [([[4, 4], [4, 3]], "num_steps is 3 in a visit; expected 4"), ([[2, 2], [2, 2]], "is 2 in a")],
    ids=["one is shorter", "all are shorter than max_steps"],
)
def test_refuses_visits_of_other_lengths(num_steps, message):
    """The average would count the last models of the shorter visits several times."""
    task = fs.empirical_task(network_losses, network_data(), fs.full_batch(4))
    timeline = fs.timelines.cyclic(2, len(SIZES), 2, 4)
    algorithm = fs.averaged_feddualavg(LR, prox.composite(prox.L1(0.4)))
    other = dataclasses.replace(timeline, num_steps=np.array(num_steps, np.int32))
    for fits in (timeline, dataclasses.replace(other, mask=other.num_steps == 4)):
        fs.init(algorithm, fs.Setup(task, fits, network_params()))
    with pytest.raises(ValueError, match=message):
        fs.init(algorithm, fs.Setup(task, other, network_params()))
