"""Generators whose draws depend on how many clients run together are refused as keys."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_problems import NUM_CLIENTS, no_data

import fedjax_sim as fs
from fedjax_sim import timelines
from fedjax_sim.algorithms.scaffold import gradient_controls
from fedjax_sim.diagnostics import heterogeneity, smoothness
from fedjax_sim.diagnostics.client_updates import client_models
from fedjax_sim.diagnostics.gradient_moments import sampled_moments
from fedjax_sim.diagnostics.iterate_bias import simulate_paths
from fedjax_sim.diagnostics.lanczos import ritz
from fedjax_sim.diagnostics.planes import filter_normalized
from fedjax_sim.diagnostics.sharpness import client_sharpness
from fedjax_sim.wrappers.robust.attacks.attackers import random_clients

FULL = timelines.full(2, NUM_CLIENTS, 2)
SETUP = fs.Setup(no_data(), FULL, jnp.zeros(1))
BATCH = fs.Setup(no_data(), FULL, jnp.zeros((1, 1)))
AVG = fs.fedavg(0.1)
DURATIONS = timelines.deterministic(np.ones(NUM_CLIENTS))


def metric(w):
    return (w**2).sum()


def one(key):
    return jax.random.split(key, 1)


def generate(client, key):
    return {"x": client + jax.random.normal(key, (2,))}


def absolute(w, batch, key):
    return (w - batch["x"]) ** 2


# Everything that takes a key, on its shortest arguments.
ENTRIES = {
    "run": lambda key: fs.run(AVG, SETUP, key),
    "simulate": lambda key: fs.simulate(AVG, SETUP, key),
    "simulate, seeds": lambda key: fs.simulate(AVG, BATCH, one(key)),
    "forecast": lambda key: fs.forecast(AVG, SETUP, key),
    "compare": lambda key: fs.compare({"avg": AVG}, BATCH, one(key)),
    "sweep": lambda key: fs.sweep(fs.fedavg, BATCH, {"lr": [0.1]}, one(key)),
    "measure": lambda key: fs.measure_executions(AVG, SETUP, key),
    "fork": lambda key: fs.fork(fs.init(AVG, SETUP), {"a": AVG, "b": AVG}, SETUP, key),
    "hypergradient": lambda key: fs.hypergradient(metric, fs.fedavg, SETUP, key),
    "advise": lambda key: fs.advise(SETUP, key=key),
    "game": lambda key: fs.valuation.game(AVG, SETUP, key, metric, mode="min"),
    "influence": lambda key: fs.valuation.influence(AVG, SETUP, key, metric, mode="min"),
    "fed_sv": lambda key: fs.valuation.fed_sv(AVG, SETUP, key, metric, mode="min"),
    "audit": lambda key: fs.diagnostics.audit(AVG, SETUP, one(key), 0, metric, delta=0.1),
    "controls": lambda key: gradient_controls(None, SETUP, key),
    "generated_task": lambda key: fs.generated_task(
        absolute, generate, 3, fs.full_batch(1), key=key
    ),
    "generated_data": lambda key: fs.generated_data(generate, [0], key=key),
    "attackers": lambda key: random_clients(key, 10, 0.2),
    "uniform": lambda key: timelines.uniform(key, 2, NUM_CLIENTS, 2, 2),
    "poisson": lambda key: timelines.poisson(key, 2, NUM_CLIENTS, 0.5, 2, slots=4),
    "dropout": lambda key: timelines.dropout(key, FULL, 0.5),
    "lose_uploads": lambda key: timelines.lose_uploads(key, FULL, 0.5),
    "geometric_steps": lambda key: timelines.geometric_steps(key, FULL, 0.5, 4),
    "arrivals": lambda key: timelines.arrivals(
        key, DURATIONS, horizon=2.0, num_clients=NUM_CLIENTS, num_steps=1, buffer=1
    ),
    "subset": lambda key: timelines.sample_without_replacement(key, 4, 2),
    "heterogeneity": lambda key: heterogeneity.heterogeneity(SETUP.task, jnp.zeros((1, 1)), key),
    "curvature": lambda key: smoothness.curvature(SETUP.task, jnp.zeros((1, 1)), key),
    "moments": lambda key: sampled_moments(SETUP.task, jnp.zeros((1, 1)), key),
    "sharpness": lambda key: client_sharpness(SETUP.task, jnp.zeros(1), key),
    "ritz": lambda key: ritz(lambda x: x, jnp.zeros(2), key, 1),
    "models": lambda key: client_models(AVG, SETUP, fs.init(AVG, SETUP), key),
    "paths": lambda key: simulate_paths(lambda x: x, jax.random.normal, 0.1, 2.0, [1], 4, key),
    "planes": lambda key: filter_normalized(key, jnp.zeros((2, 2))),
}


@pytest.mark.parametrize(
    ("entry", "generator"), [*((entry, "rbg") for entry in ENTRIES), ("run", "unsafe_rbg")]
)
def test_refused_wherever_keys_enter(entry, generator):
    with pytest.raises(ValueError, match=f"of the generator {generator}, whose draws under"):
        ENTRIES[entry](jax.random.key(0, impl=generator))


@pytest.mark.parametrize("part", ["init", "init_client", "selection.init"])
def test_refused_in_the_states_of_an_algorithm(part):
    """A checkpoint with such a key could not be restored, either."""
    key = jax.random.key(0, impl="rbg")

    def named(params):
        return collections.namedtuple("State", ["params", "key"])(params, key)

    if part == "selection.init":

        def choose(state, candidates, round):
            return fs.selection.Choice(candidates.present), state

        selector = fs.selection.Selector(choose, init=lambda num_clients: key)
        algorithm = fs.selection.select(AVG, selector)
    else:
        algorithm = AVG._replace(**{part: named})
    with pytest.raises(
        ValueError, match=rf"key.*, which algorithm\.{part} returns, is of the generator rbg"
    ):
        fs.init(algorithm, SETUP)


def test_refused_as_the_default():
    """The package's own keys would be of it, too."""
    with jax.default_prng_impl("rbg"), pytest.raises(ValueError, match="JAX's default is of the"):
        fs.run(AVG, SETUP, jax.random.key(0, impl="threefry2x32"))
    with jax.default_prng_impl("rbg"), pytest.raises(ValueError, match="key is of the generator"):
        fs.run(AVG, SETUP, jax.random.key(0))


def test_reason():
    """The claim of the message: the first key's draws alone are the same under vmap."""
    for generator, same in (("threefry2x32", True), ("rbg", False), ("unsafe_rbg", False)):
        keys = jax.random.split(jax.random.key(0, impl=generator), 2)
        together = jax.vmap(jax.random.normal)(keys)
        np.testing.assert_equal(
            bool((together == jnp.stack([*map(jax.random.normal, keys)])).all()), same
        )
