"""FedAvg with averaged output against stored shadow iterates and the theorems' weights."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import assert_close, compiled, quadratic_task, random_quadratics

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

LR, MU, STEPS, ROUNDS, CLIENTS = 0.1, 0.3, 3, 4, 5
START = np.array([1.0, -2.0])
HESSIANS, CENTRES = random_quadratics(CLIENTS, 2)


def shadow_iterates() -> np.ndarray:
    """``[R, K + 1, d]`` of FedAvg with exact gradients."""
    x, means_of_rounds = START, []
    for _ in range(ROUNDS):
        local = np.tile(x, (CLIENTS, 1))
        means = [local.mean(0)]
        for _ in range(STEPS):
            local = local - LR * np.einsum("mij,mj->mi", HESSIANS, local - CENTRES)
            means.append(local.mean(0))
        means_of_rounds.append(means)
        x = means[-1]
    return np.array(means_of_rounds)


def trained(algorithm):
    task = quadratic_task(HESSIANS, CENTRES, STEPS)
    timeline = fs.timelines.full(ROUNDS, CLIENTS, STEPS)

    @compiled
    def go(task):
        return fs.run(algorithm, fs.Setup(task, timeline, jnp.asarray(START)), jax.random.key(0))[
            0
        ].server

    return go(task)


TIMES = np.arange(ROUNDS * STEPS)


@pytest.mark.parametrize(
    ("factor", "at", "weights"),
    [
        (1.0, "end", np.ones(ROUNDS * STEPS)),
        (1 + 1 / (ROUNDS * STEPS), "start", (1 + 1 / (ROUNDS * STEPS)) ** -(TIMES + 1.0)),
        (1 - LR * MU / 2, "start", (1 - LR * MU / 2) ** (ROUNDS * STEPS - TIMES - 1.0)),
    ],
    ids=["proposition 2.1", "theorem 2.19", "theorem B.18"],
)
def test_output_has_the_weights_of_the_theorem(factor, at, weights):
    """Sums of 12 iterates in double precision."""
    shadow = shadow_iterates()
    chosen = (shadow[:, 1:] if at == "end" else shadow[:, :-1]).reshape(-1, 2)
    expected = weights @ chosen / weights.sum()
    state = trained(fs.averaged_fedavg(LR, factor, at))
    assert_close(state.params, expected, 1e-13)
    assert_close(state.current, shadow[-1, -1], 1e-13)


def test_forgetting_everything_leaves_the_last_iterate():
    assert_close(trained(fs.averaged_fedavg(LR, 0.0)).params, shadow_iterates()[-1, -1], 1e-13)


@pytest.mark.parametrize("at", ["start", "end"])
def test_before_the_first_step_the_model_is_the_initial_one(at):
    """All clients report after no steps; an empty average was a model of zeros."""
    task = quadratic_task(HESSIANS, CENTRES, STEPS)
    timeline = fs.timelines.full(2, CLIENTS, STEPS)
    idle = np.zeros_like(timeline.num_steps)
    timeline = dataclasses.replace(timeline, num_steps=idle)
    setup = fs.Setup(task, timeline, jnp.asarray(START))
    state, _ = fs.run(fs.averaged_fedavg(LR, at=at), setup, jax.random.key(0))
    np.testing.assert_array_equal(state.server.params, START)
