"""FedMuon and Muon against NumPy, and steps that do not depend on the scale of the gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from instance_q import assert_printed
from small_problems import assert_close, compiled, logistic_params

import fedjax_sim as fs
from fedjax_sim.algorithms._muon import muon_or_adam, orthogonalized

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision
RNG = np.random.default_rng(0)
NUM_CLIENTS, STEPS = 3, 4
TARGETS = {"w": RNG.normal(size=(NUM_CLIENTS, 4, 2)), "b": RNG.normal(size=(NUM_CLIENTS, 4))}
START = {"w": RNG.normal(size=(4, 2)), "b": RNG.normal(size=4)}


def newton_schulz(matrix):
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def task(scale=1.0) -> fs.Task:
    """Squared distances to the clients' targets, times a scale."""

    def oracle(client, key, max_steps):
        def grad(x, step=0):
            return {name: scale * (x[name] - jnp.asarray(TARGETS[name])[client]) for name in x}

        return fs.Oracle(grad, lambda x, k: jnp.zeros(()), grad)

    return fs.Task(oracle, np.ones(NUM_CLIENTS, np.int32), np.full(NUM_CLIENTS, STEPS))


def final(algorithm, rounds=3, scale=1.0):
    @compiled
    def solve(params):
        timeline = fs.timelines.full(rounds, NUM_CLIENTS, STEPS)
        return fs.run(algorithm, fs.Setup(task(scale), timeline, params), jax.random.key(0))[0]

    return solve(jax.tree.map(jnp.asarray, START)).server


def test_newton_schulz():
    matrix = np.diag([3.0, 4.0, 0.1])
    actual = orthogonalized(jnp.asarray(matrix))
    assert_printed(np.diag(actual), "0.72249", "1.11895", "0.68183")
    assert_close(np.asarray(actual), newton_schulz(matrix), TOLERANCE)
    tall = RNG.normal(size=(5, 2))
    assert_close(np.asarray(orthogonalized(jnp.asarray(tall))), newton_schulz(tall), TOLERANCE)


def test_fedmuon():
    lr, mix, beta, decay, b1, b2 = 0.05, 0.6, 0.7, 0.1, 0.8, 0.9
    x = {name: value.copy() for name, value in START.items()}
    direction = {name: np.zeros_like(value) for name, value in x.items()}
    momentum = np.zeros((4, 2))
    for _ in range(3):
        ends, momenta = [], []
        for client in range(NUM_CLIENTS):
            y, big = dict(x), momentum
            m, v = np.zeros(4), np.zeros(4)
            for k in range(1, STEPS + 1):
                g = {name: y[name] - TARGETS[name][client] for name in y}
                big = beta * big + (1 - beta) * g["w"]
                # The kernel is tall, 4 x 2.
                u = {"w": np.sqrt(2) * newton_schulz(beta * big + (1 - beta) * g["w"])}
                m, v = b1 * m + (1 - b1) * g["b"], b2 * v + (1 - b2) * g["b"] ** 2
                u["b"] = m / (1 - b1**k) / (np.sqrt(v / (1 - b2**k)) + 1e-8)
                y = {
                    name: y[name]
                    - lr * (mix * u[name] + (1 - mix) * direction[name] + decay * y[name])
                    for name in y
                }
            ends.append(y)
            momenta.append(big)
        new = {name: np.mean([end[name] for end in ends], axis=0) for name in x}
        direction = {name: (x[name] - new[name]) / (STEPS * lr) for name in x}
        x, momentum = new, np.mean(momenta, axis=0)
    state = final(fs.fedmuon(lr, mix, beta, decay, b1, b2))
    assert_close(state.params, x, 1e-6)  # optax corrects Adam's bias in float32
    assert_close(state.params["w"], x["w"], TOLERANCE)
    assert_close(state.direction["w"], direction["w"], TOLERANCE)
    assert_close(state.momentum["w"], momentum, TOLERANCE)
    assert state.momentum["b"] is None


@pytest.mark.slow
def test_steps_do_not_depend_on_the_scale_of_the_gradients():
    """The claim for Muon; its only scale is the 1e-7 beside the norm."""
    large, larger = (final(fs.fedmuon(0.05), scale=scale).params["w"] for scale in (1, 1e3))
    np.testing.assert_allclose(larger, large, rtol=1e-5)
    assert np.abs(large - START["w"]).max() > 0.1


def test_diloco_with_muon():
    """The worker keeps the states: Muon with momentum b1, and AdamW with the decays 0.9 and b2."""
    lr, b1, b2, decay = 0.05, 0.7, 0.9, 0.1
    x = START
    states = [(np.zeros((4, 2)), np.zeros(4), np.zeros(4)) for _ in range(NUM_CLIENTS)]
    for round in range(2):
        ends = []
        for client, (big, m, v) in enumerate(states):
            y = x
            for k in range(STEPS * round + 1, STEPS * (round + 1) + 1):
                g = {name: y[name] - TARGETS[name][client] for name in y}
                big = b1 * big + (1 - b1) * g["w"]
                u = {"w": np.sqrt(2) * newton_schulz(b1 * big + (1 - b1) * g["w"])}
                m, v = 0.9 * m + 0.1 * g["b"], b2 * v + (1 - b2) * g["b"] ** 2
                u["b"] = m / (1 - 0.9**k) / (np.sqrt(v / (1 - b2**k)) + 1e-8)
                y = {name: y[name] - lr * (u[name] + decay * y[name]) for name in y}
            states[client] = big, m, v
            ends.append(y)
        x = {name: np.mean([end[name] for end in ends], axis=0) for name in x}
    algorithm = fs.diloco(lr, 1.0, 0.0, decay, b1, b2, inner="muon")
    assert_close(final(algorithm, rounds=2).params, x, TOLERANCE)


def test_models_without_matrices_have_no_momentum():
    assert jax.tree.leaves(fs.fedmuon(0.1).init(logistic_params()).momentum) == []


@pytest.mark.slow
def test_selected_leaves_of_several_kernels():
    """Kernels [blocks, outputs, inputs] take one Muon step each; stacked biases take Adam's."""
    blocks = {"kernel": RNG.normal(size=(2, 4, 3)), "bias": RNG.normal(size=(2, 4))}
    gradient = jax.tree.map(jnp.asarray, blocks)
    both = muon_or_adam(0.9, 0.9, 0.95, lambda path, leaf: path[-1] == "kernel")
    with jax.numpy_dtype_promotion("standard"):  # optax mixes counts and decays
        update, _ = both.update(gradient, both.init(gradient), gradient)
    expected = [np.sqrt(4 / 3) * newton_schulz(0.19 * kernel) for kernel in blocks["kernel"]]
    assert_close(np.asarray(update["kernel"]), np.stack(expected), TOLERANCE)
    assert_close(np.asarray(update["bias"]), np.sign(blocks["bias"]), 1e-6)  # Adam's first step


def test_biases_are_no_matrices():
    """At the start of the run, and in both algorithms."""
    start = jax.tree.map(jnp.asarray, START)
    setup = fs.Setup(task(), fs.timelines.full(1, NUM_CLIENTS, STEPS), start)
    everything = {"matrices": lambda path, leaf: True}
    for algorithm in (fs.fedmuon(0.1, **everything), fs.diloco(0.1, inner="muon", **everything)):
        with pytest.raises(ValueError, match=r"matrices selects b of shape \(4,\); expected"):
            fs.init(algorithm, setup)
