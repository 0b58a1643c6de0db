"""FedAdamW against NumPy, its figures on instance Q, and its first round as local AdamW."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from catalogue import ALGORITHMS, trained
from derivations import flat, gradient, start, visits
from instance_q import A, B, assert_printed, final_state, models, setup
from small_problems import assert_close

import fedjax_sim as fs

pytestmark = pytest.mark.usefixtures("x64")

TOLERANCE = 1e-12  # some hundred operations in double precision


@pytest.mark.parametrize(
    "name", ["fedadamw", pytest.param("fedadamw_entry", marks=pytest.mark.slow)]
)
def test_fedadamw(name):
    lr, correction, decay, b1, b2, eps = ALGORITHMS[name][1].values()
    by_entry = name == "fedadamw_entry"
    x = start()
    direction, second, count = np.zeros_like(x), np.zeros_like(x), 0
    for cohort in visits():
        deltas, directions, seconds = [], [], []
        for _, batches in cohort:
            y, m, v = x, np.zeros_like(x), second
            for k, weights in enumerate(batches, 1):
                g = gradient()(y, weights)
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
                first = m / (1 - b1 ** (count + k if by_entry else k))
                root = np.sqrt(v / (1 - b2 ** (count + k))) + eps
                y = y - lr * (first / root + correction * direction + decay * y)
            deltas.append(x - y)
            directions.append((x - y) / (lr * len(batches)))
            # The leaves are the three weights and the bias.
            blocks = np.array([v[:3].mean()] * 3 + [v[3]])
            seconds.append(v if by_entry else blocks)
        x, direction = x - np.mean(deltas, axis=0), np.mean(directions, axis=0)
        second = np.mean(seconds, axis=0)
        count += round(np.mean([len(batches) for _, batches in cohort]))
    state = trained(name).server
    assert_close((flat(state.params), flat(state.direction)), (x, direction), TOLERANCE)
    assert state.num_steps == count
    sent = np.append(state.second_moment["w"], state.second_moment["b"])
    assert_close(sent, second if by_entry else second[2:], TOLERANCE)


@pytest.mark.slow
def test_instance_q():
    state, path = final_state(fs.fedadamw(0.01), setup(rounds=1, start=0.5))
    assert_printed(state.server.second_moment, "0.0057552868")
    path = models(fs.fedadamw(0.01), start=0.5)
    assert_printed(path, "0.4997506035", "0.5156442902", "0.5407265539")


@pytest.mark.parametrize("make", [fs.fedadamw, fs.fedmuon], ids=["fedadamw", "fedmuon"])
def test_a_round_without_steps_keeps_the_moments(make):
    """The cohort is one client without data: no upload says anything about them."""
    algorithm = make(0.1)
    state = algorithm.init({"w": jnp.ones((2, 3))})
    state = jax.tree.map(lambda x: x + jnp.ones_like(x), state)
    now = fs.Round(jnp.array(3), jnp.array(1), 1, jax.random.key(0))
    zero = jnp.array(0)
    work = fs.Work(zero, zero, zero, zero, zero, now.key, max_steps=2)
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: jnp.array(0.0), lambda x: x)
    sent, _ = algorithm.local(algorithm.broadcast(state, now), (), oracle, work)
    new = algorithm.update(state, sent, now)
    kept = "second_moment" if make is fs.fedadamw else "momentum"
    chex.assert_trees_all_equal(getattr(new, kept), getattr(state, kept))


@pytest.mark.parametrize("make", [fs.fedadamw, fs.fedmuon], ids=["fedadamw", "fedmuon"])
def test_moments_are_those_of_the_visits_with_steps(make):
    """A client without data halves the mean of two models, but not that of their moments."""
    algorithm = make(0.1)
    state = algorithm.init({"w": jnp.ones((2, 3))})
    now = fs.Round(jnp.array(0), jnp.array(2), 2, jax.random.key(0))
    zero, message = jnp.array(0), algorithm.broadcast(state, now)
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: jnp.array(0.0), lambda x: x)

    def updated(*numbers_of_steps):
        uploads = []
        for steps in map(jnp.array, numbers_of_steps):
            work = fs.Work(zero, zero, steps, zero, zero, now.key, max_steps=2)
            uploads.append(algorithm.local(message, (), oracle, work)[0])
        return algorithm.update(state, jax.tree.map(lambda *u: sum(u) / len(u), *uploads), now)

    alone, beside = updated(2), updated(2, 0)
    moments = {"params": None, "direction": None}
    chex.assert_trees_all_close(beside._replace(**moments), alone._replace(**moments), rtol=1e-12)
    half = (alone.params["w"] + state.params["w"]) / 2, alone.direction["w"] / 2
    chex.assert_trees_all_close((beside.params["w"], beside.direction["w"]), half, rtol=1e-12)


def test_a_leaf_without_entries_leaves_the_state_finite():
    """Its block mean would be 0 / 0, and the engine would report a diverged run."""
    algorithm = fs.fedadamw(0.1)
    state = algorithm.init({"w": jnp.ones(2), "nothing": jnp.zeros(0)})
    now = fs.Round(jnp.array(0), jnp.array(1), 1, jax.random.key(0))
    zero = jnp.array(0)
    work = fs.Work(zero, zero, jnp.array(2), zero, zero, now.key, max_steps=2)
    oracle = fs.Oracle(lambda x, k: x, lambda x, k: jnp.array(0.0), lambda x: x)
    sent, _ = algorithm.local(algorithm.broadcast(state, now), (), oracle, work)
    chex.assert_tree_all_finite((state, algorithm.update(state, sent, now)))


@pytest.mark.slow
def test_first_round_is_local_adamw():
    """From v = 0 and without a direction, as FedAvg with AdamW whose state is reset."""
    adamw = fs.fedavg(local_optimizer=optax.adamw(0.01, weight_decay=0.1))
    ours = fs.fedadamw(0.01, correction=0.0, weight_decay=0.1)
    expected = models(adamw, 2, start=0.5)
    actual = models(ours, 2, start=0.5)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-6)  # optax counts in float32
    assert abs(actual[1] - expected[1]) > 1e-4  # the second round starts from the mean of v


@pytest.mark.slow
def test_kept_second_moments_end_the_oscillation_of_local_adamw():
    """The claim for the mean of v: from v = 0 a visit begins with a step of the whole rate.

    With one step per visit local AdamW is sign descent, which stays half a rate from the optimum.
    """
    options = {"rounds": 200, "start": 0.525, "num_steps": 1, "clients": (A, 0 * B)}
    local = models(fs.fedavg(local_optimizer=optax.adamw(0.05, weight_decay=0.0)), **options)
    kept = models(fs.fedadamw(0.05, correction=0.0, weight_decay=0.0), **options)
    np.testing.assert_allclose(np.abs(local[50:]), 0.025, rtol=1e-4)
    assert np.abs(kept[-1]) < 1e-3


@pytest.mark.parametrize("argument", ["blocks", "first_count"])
def test_refuses_other_names(argument):
    with pytest.raises(ValueError, match=f"{argument} is 'all'; expected '"):
        fs.fedadamw(0.01, **{argument: "all"})
